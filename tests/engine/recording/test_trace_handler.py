"""A profiler's handler that logs a line per trace: real profilers, processes that are killed, and real gloo ranks.

The ranks run this file as a script; each scenario is a test.
"""

import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.recording import trace_handler as module
from ranks.engine_ranks import Scenarios
from ranks.recorded_ranks import folder, train, wrapped
from torch.profiler import ProfilerActivity, profile, schedule

import overlaplab
from overlaplab import trace_handler
from overlaplab.report import terminal
from overlaplab.sections.run_tables import RunTables

scenario = Scenarios(__file__)
LONG_S = 100.0


class Lines(logging.Handler):
    """What is logged for the project."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        logging.getLogger("overlaplab").addHandler(self)
        logging.getLogger("overlaplab").setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def wait_for(self, number: int = 1) -> list[str]:
        """What was logged, with its level, once there is so much."""
        until = time.monotonic() + LONG_S
        while len(self.records) < number and time.monotonic() < until:
            time.sleep(0.05)
        return [f"{record.levelname}: {record.getMessage()}" for record in self.records]


def profiled(handler: Callable[[profile], None], step: Callable[[int], None], *, repeat: int = 1) -> None:
    """Two steps of each four are recorded."""
    cycle = schedule(wait=1, warmup=1, active=2, repeat=repeat)
    with profile(activities=[ProfilerActivity.CPU], schedule=cycle, on_trace_ready=handler) as profiler:
        for number in range(4 * repeat):
            step(number)
            profiler.step()


def line_of(path: Path) -> str:
    return terminal.line(RunTables(run=overlaplab.load_run(path)))


@scenario()
def lines_with_waits(comm: Communicator) -> None:
    """Of all ranks' files, by rank 0 alone; the rank that sleeps is the late one."""
    out, lines, ddp = folder(comm), Lines(), wrapped()

    def step(number: int) -> None:
        if comm.rank == 1:
            time.sleep(0.05)
        train(comm, ddp, number)

    profiled(trace_handler(out, all_ranks=True), step)
    if comm.rank == 0:
        (said,) = lines.wait_for()
        assert sorted(path.name.split("_")[0] for path in out.iterdir()) == ["rank0", "rank1"], list(out.iterdir())
        assert said == f"INFO: {next(out.glob('rank0*'))}: {line_of(out)}", said
        assert "waited for rank 1" in said, said
    comm.barrier()
    assert len(lines.records) == (comm.rank == 0), lines.records


@scenario()
def lines_of_the_ranks_that_wrote(comm: Communicator) -> None:
    """Rank 1 is not profiled; its file of an earlier job does not count."""
    module._WAIT_FOR_RANKS_S = 0.3
    out, lines, ddp = folder(comm), Lines(), wrapped()
    earlier = out / "rank1_step4.1.pt.trace.json"
    if comm.rank == 0:
        earlier.write_text("{}")
        profiled(trace_handler(out, all_ranks=True), lambda number: train(comm, ddp, number))
        (said,) = lines.wait_for()
        file = next(out.glob("rank0*"))
        assert said == f"INFO: {file}: {line_of(file)} (Of 2 ranks 1 wrote a trace in time.)", said
    else:
        for number in range(4):
            train(comm, ddp, number)


found = scenario.found


@pytest.mark.parametrize(("found", "name"), scenario.on(2), indirect=["found"])
def test_on_ranks(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger = logging.getLogger("overlaplab")
    level, handler = logger.level, Lines()
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def compute(_: int) -> None:
    torch.ones(64, 64) @ torch.ones(64, 64)


def test_each_recording_leaves_a_file_and_the_line_of_its_summary(tmp_path: Path, lines: Lines) -> None:
    handler = trace_handler(tmp_path / "new" / "traces", use_gzip=True)
    profiled(handler, compute)
    assert len(lines.wait_for()) == 1
    profiled(handler, compute)
    first, second = sorted((tmp_path / "new" / "traces").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert re.fullmatch(r"rank0_step4\.\d{19}\.pt\.trace\.json\.gz", first.name)
    assert lines.wait_for(2) == [f"INFO: {path}: {line_of(path)}" for path in (first, second)]
    assert [trace.rank for trace in overlaplab.load_run(first.parent).traces] == [0]


def instead_of_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, commands: str) -> None:
    """The process that computes lines runs these commands."""
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{commands}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def test_a_process_that_is_killed_is_one_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: Lines) -> None:
    monkeypatch.chdir(tmp_path)
    instead_of_python(monkeypatch, tmp_path, "echo $$ > new; mv new pid; exec sleep 600")
    profiled(trace_handler(tmp_path / "traces"), compute)
    while not (tmp_path / "pid").exists():
        time.sleep(0.01)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    (file,) = (tmp_path / "traces").iterdir()
    assert lines.wait_for() == [f"WARNING: {file}: no line: its process was ended by signal 9"]


def test_what_the_process_says_is_one_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: Lines) -> None:
    instead_of_python(monkeypatch, tmp_path, "echo Traceback >&2; echo 'overlaplab: no memory' >&2; exit 2")
    profiled(trace_handler(tmp_path / "traces"), compute)
    (file,) = (tmp_path / "traces").iterdir()
    assert lines.wait_for() == [f"WARNING: {file}: no line: overlaplab: no memory"]


def test_a_recording_while_the_last_one_is_computed_has_no_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: Lines
) -> None:
    instead_of_python(monkeypatch, tmp_path, f'while [ ! -e "{tmp_path}/go" ]; do sleep 0.05; done; echo the line')
    profiled(trace_handler(tmp_path / "traces"), compute, repeat=2)
    (tmp_path / "go").touch()
    first, second = sorted((tmp_path / "traces").iterdir())
    assert lines.wait_for(2) == [
        f"WARNING: {second}: no line, as the one before is still being computed",
        f"INFO: {first}: the line",
    ]


def test_a_step_recorded_again_takes_no_file_of_the_first_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a schedule every recording is of step 0."""
    monkeypatch.setattr(module, "_WAIT_FOR_RANKS_S", 0.0)
    handler = module._TraceHandler(tmp_path, all_ranks=True, ending=".json")

    def pair_files(*new: str) -> list[str]:
        for name in new:
            (tmp_path / name).touch()
        return [file.name for file in handler._files(tmp_path / new[0], 0, 2)]

    assert pair_files("rank0_step0.10.json", "rank1_step0.11.json") == ["rank0_step0.10.json", "rank1_step0.11.json"]
    assert pair_files("rank0_step0.20.json") == ["rank0_step0.20.json"]
    assert pair_files("rank0_step0.30.json", "rank1_step0.21.json", "rank1_step0.31.json") == [
        "rank0_step0.30.json",
        "rank1_step0.31.json",
    ]


@pytest.mark.parametrize("out", ["a file/traces", "a file"])
def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path: Path, lines: Lines, out: str) -> None:
    (tmp_path / "a file").touch()
    steps: list[int] = []
    profiled(trace_handler(tmp_path / out), steps.append)
    assert len(steps) == 4
    (said,) = lines.wait_for()
    assert said.startswith(f"WARNING: no trace in {tmp_path / out}: ")
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]


ENDS = """
import sys, torch
from overlaplab import trace_handler

cpu = [torch.profiler.ProfilerActivity.CPU]
with torch.profiler.profile(activities=cpu, on_trace_ready=trace_handler(sys.argv[1])):
    torch.ones(64, 64) @ torch.ones(64, 64)
"""


def test_a_script_that_ends_at_once_waits_for_its_line(tmp_path: Path) -> None:
    """Without logging being configured the line is seen, too."""
    done = subprocess.run(
        [sys.executable, "-c", ENDS, str(tmp_path)], capture_output=True, text=True, timeout=LONG_S, check=True
    )
    (file,) = tmp_path.iterdir()
    assert [line for line in done.stderr.splitlines() if "overlap" in line or str(file) in line] == [
        f"{file}: {line_of(file)}"
    ]


if __name__ == "__main__":
    scenario.main()
