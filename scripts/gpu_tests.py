"""Run the tests that need a GPU, and keep what they leave, on a machine that is lent for minutes.

python scripts/gpu_tests.py RESULTS                         # all of them, in seven minutes at most
python scripts/gpu_tests.py RESULTS FILE… --seconds 100     # those of some files

Each file has a pytest process of its own. A test that hangs ends its process, since no signal interrupts a wait for the
GPU, and so does one that leaves the GPU unusable; a fresh process goes on with the next test. However it ends, RESULTS
then holds results.txt (what became of each test), gpu_tests.log (what pytest printed) and gpu_tests.tar.0 and so on
(the traces; scripts/pack.sh says how to unpack them). Exit code 0 says that every test passed. Needs torch, typer,
rich, pytest and pytest-timeout; nothing need be installed of this repository.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
HERE = (str(ROOT), str(ROOT / "engine"))
FILES = (
    "tests/gpu/test_gpu_link.py",
    "tests/engine/network/test_streams_gpu.py",
    "tests/gpu/test_gpu_recorder.py",
    "tests/gpu/test_gpu_watch.py",
    "tests/engine/network/test_gate_gpu.py",
)
OPTIONS = (
    *("-v", "-s", "--noconftest", "-m", "gpu", "-W", "default", "-p", "no:cacheprovider", "-p", "pytest_timeout"),
    *("-o", "timeout_method=thread", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)),
)
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ENDING_S = 5.0
"""How long a process that is asked to end may take."""
LOG_BYTES = 12 << 20
"""The log is cut to this length."""


class Notes:
    """A plugin for pytest that notes what becomes of each test, and leaves out those that were begun before.

    A note is a line of JSON: a test, its outcome (`began` first), the seconds it took, and why it failed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[dict[str, Any]]:
        """All notes, of earlier processes too; not one that is being written."""
        lines = self._path.read_text().splitlines(keepends=True) if self._path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what was begun."""
        begun = {note["test"] for note in self.read()}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in begun])
        items[:] = [item for item in items if item.nodeid not in begun]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note that a test begins."""
        self._note(nodeid, "began")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note its outcome, and end the process if the GPU is lost to it."""
        if report.when == "call" or not report.passed:
            self._note(report.nodeid, report.outcome, report.duration, _reason(report))
        if report.failed and _gpu_is_lost():
            print("The GPU is lost to this process, which ends here.", flush=True)
            os._exit(1)

    def pytest_sessionfinish(self) -> None:
        """Note that nothing ended the process early."""
        self._note("", "finished")

    def _note(self, test: str, outcome: str, seconds: float = 0.0, why: str = "") -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"test": test, "outcome": outcome, "seconds": seconds, "why": why}) + "\n")


def _reason(report: pytest.TestReport) -> str:
    """The first line of what failed, or why it was skipped; empty for what passed."""
    failure = report.longrepr
    crash = getattr(failure, "reprcrash", None)
    text = failure[2] if isinstance(failure, tuple) else getattr(crash, "message", failure or "")
    return str(text).strip().partition("\n")[0][:500]


def _gpu_is_lost() -> bool:
    """Whether an error, such as an illegal access, has made CUDA unusable: then every later test would fail."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


class Runner:
    """Runs the files' tests, and tells what becomes of each as soon as it is known."""

    def __init__(self, results: Path, work: Path) -> None:
        self._results, self._work = results, work
        self._notes = Notes(work / "notes.jsonl")
        self._reported = 0
        self.passed = True

    def run(self, file: str, until: float) -> None:
        """All tests of a file, or as many as can be run until that moment of the monotonic clock."""
        process = 0
        while time.monotonic() < until:
            process += 1
            before = len(self._notes.read())
            code = self._pytest(file, f"{Path(file).stem}-{process}", until)
            self._tell_notes()
            self.keep()
            new = self._notes.read()[before:]
            if new and new[-1]["outcome"] != "finished":
                self._tell(f"the process ended here (exit code {code})  {new[-1]['test']}", good=False)
                continue
            if code not in (0, 1) and not (code == pytest.ExitCode.NO_TESTS_COLLECTED and process > 1):
                self._tell(f"{file}: pytest ended with exit code {code}", good=False)
            return
        self._tell(f"{file}: no time is left", good=False)

    def keep(self) -> None:
        """Pack what is there into the results."""
        subprocess.run(["sh", str(ROOT / "scripts" / "pack.sh"), str(self._work), str(self._results)])
        log = self._results / "gpu_tests.log"
        if log.exists() and log.stat().st_size > LOG_BYTES:
            log.write_bytes(log.read_bytes()[-LOG_BYTES:])

    def _pytest(self, file: str, name: str, until: float) -> int | None:
        """Run a file's tests in one process; its exit code, None if nothing ends it."""
        line = [sys.executable, __file__, "--child", str(self._work / "notes.jsonl"), *OPTIONS]
        environment = os.environ | {
            "CUDA_DEVICE_MAX_CONNECTIONS": "32",  # as overlaplab_engine/__main__.py, which says why
            # Plugins that happen to be installed there would only bring warnings and surprises.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [*HERE, os.environ.get("PYTHONPATH")])),
        }
        with (self._results / "gpu_tests.log").open("ab") as log:
            line += ["--basetemp", str(self._work / name), file]
            process = subprocess.Popen(line, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
            try:
                while process.poll() is None and time.monotonic() < until:
                    time.sleep(0.1)
                    self._tell_notes()
            finally:
                _end(process)
        return process.returncode

    def _tell_notes(self) -> None:
        notes = self._notes.read()
        for note in notes[self._reported :]:
            if note["outcome"] not in ("began", "finished"):
                why = f": {note['why']}" if note["why"] else ""
                line = f"{note['outcome']} in {note['seconds']:.1f} s  {note['test']}{why}"
                self._tell(line, good=note["outcome"] == "passed")
        self._reported = len(notes)

    def _tell(self, line: str, *, good: bool) -> None:
        self.passed = self.passed and good
        print(line, flush=True)
        with (self._results / "results.txt").open("a") as file:
            file.write(f"{line}\n")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the process and of those that it started: its group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
            until = time.monotonic() + ENDING_S
            while time.monotonic() < until:
                process.poll()
                os.killpg(process.pid, 0)  # raises once all are gone
                time.sleep(0.05)


def main() -> int:
    """Run all; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="a folder; what an earlier call left in it is replaced")
    parser.add_argument("files", nargs="*", default=FILES, help="files of tests (default: all that need a GPU)")
    parser.add_argument("--seconds", type=float, default=420.0, help="what has not ended by then is ended")
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.seconds
    results: Path = arguments.results.resolve()
    results.mkdir(parents=True, exist_ok=True)
    for name in ("results.txt", "gpu_tests.log"):
        (results / name).unlink(missing_ok=True)
    for number in SIGNALS:
        signal.signal(number, _interrupt)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "gpu_tests"
        work.mkdir()
        runner = Runner(results, work)
        try:
            for place, file in enumerate(arguments.files):
                later = len(arguments.files) - place - 1
                # Each file that comes later keeps half of an equal share.
                runner.run(file, deadline - later * arguments.seconds / len(arguments.files) / 2)
        finally:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            runner.keep()
    return 0 if runner.passed else 1


def _interrupt(number: int, frame: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(pytest.main(sys.argv[3:], plugins=[Notes(Path(sys.argv[2]))]))
    sys.exit(main())
