"""What must hold of a run: it holds, fails, or is inconclusive, in Python, in pytest and on the command line."""

from __future__ import annotations

import re
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from made.traces import event, gloo, launched, op, run_of, step
from samples import sample_run

import overlaplab
from overlaplab import InconclusiveError, OverlaplabError, RequirementError, Run, Selection

OPEN = "InconclusiveError: inconclusive: hidden_gathers is 0, and must be >= 1"
FAILED = "RequirementError: hidden_gathers is 0, and must be >= 1"


def two_steps(folder: Path, *, hidden: tuple[bool, bool], busy: tuple[int, ...] = (), **manifest: Any) -> Run:
    """Steps 3 and 4 of 100 µs, each with a gather of 20 µs that computation hides, or does not."""
    events = []
    for place, is_hidden in enumerate(hidden):
        at = 100 * place
        events += [step(3 + place, at, at + 100), op("mm", at, at + (60 if is_hidden else 40))]
        events += [gloo(at + 40, at + 60, kind="all_gather"), op("mm", at + 70, at + 90)]
    machine = [
        {"rank": 0, "step": number, "took_ns": 100_000, "cores": 2, "busy": number in busy, "delayed_ns": 30_000}
        for number in (3, 4)
    ]
    return run_of(folder, events, manifest={"machine": machine, **manifest})


def said_of(run: Run, *requirements: str) -> str:
    """What `require` raises, or `holds`."""
    try:
        overlaplab.require(run, *requirements)
    except (RequirementError, InconclusiveError) as error:
        return f"{type(error).__name__}: {error}"
    return "holds"


def test_what_holds_holds_whatever_the_machine_did(tmp_path: Path) -> None:
    run = two_steps(tmp_path, hidden=(True, True), busy=(3, 4))
    assert said_of(run, "hidden_gathers >= 1", "exposed_share < 0.01", "exposed_comm_ns <= 0us") == "holds"


@pytest.mark.parametrize(
    ("hidden", "busy", "said"),
    [
        ((False, False), (), FAILED),
        ((False, False), (3,), FAILED),
        ((False, True), (3,), f"{OPEN}; the machine was busy in step 3: 1 without that"),
        ((False, False), (3, 4), f"{OPEN}; the machine was busy in steps 3 and 4"),
    ],
)
def test_a_busy_machine_leaves_open_what_fails_in_no_other_step(
    tmp_path: Path, hidden: tuple[bool, bool], busy: tuple[int, ...], said: str
) -> None:
    assert said_of(two_steps(tmp_path, hidden=hidden, busy=busy), "hidden_gathers >= 1") == said


def test_only_the_selected_steps_count(tmp_path: Path) -> None:
    run = two_steps(tmp_path, hidden=(False, True), busy=(3,))
    overlaplab.require(run, "hidden_gathers >= 1", selection=Selection(skip_steps=1))
    with pytest.raises(RequirementError):
        overlaplab.require(run, "hidden_gathers >= 2", selection=Selection(skip_steps=1))


def test_a_link_that_was_not_attained_leaves_open_what_fails(tmp_path: Path) -> None:
    link = {"emulated": True, "bandwidth_gbps": 1, "latency_us": 100, "world_size": 2}
    run = two_steps(tmp_path, hidden=(False, False), link=link, link_attained=False)
    assert said_of(run, "hidden_gathers >= 1") == f"{OPEN}; the emulated link was not attained"


def on_gpu(folder: Path, *, launch_us: float, waits: bool = False) -> Run:
    """Two kernels with a gather between them; the second is launched at `launch_us`, perhaps as the host had waited."""
    events = [step(3, 0, 40), *launched("gemm", 0, 10, 100, correlation=1)]
    events += launched("ncclDevKernel_AllGather_RING_LL", 5, 100, 150, stream=9, correlation=2)
    events += launched("gemm", launch_us, 155, 300, correlation=3)
    if waits:
        events.append(launched("unused", 20, 0, 1, correlation=9)[0] | {"name": "cudaStreamSynchronize", "dur": 131})
    return run_of(folder, events, backend="nccl")


def test_a_late_host_leaves_open_what_fails(tmp_path: Path) -> None:
    """Only where the kernel that would have hidden the gather had not been launched, and not by a host that waited."""
    late = on_gpu(tmp_path / "late", launch_us=152)
    why = "the device waited for its host to launch (launch-bound)"
    assert said_of(late, "hidden_gathers >= 1") == f"{OPEN}; {why}: 1 without that"
    assert said_of(on_gpu(tmp_path / "in time", launch_us=8), "hidden_gathers >= 1") == FAILED
    assert said_of(on_gpu(tmp_path / "waited", launch_us=152, waits=True), "hidden_gathers >= 1") == FAILED


def test_requirements_of_recordings_on_a_gpu() -> None:
    """FSDP2's host falls behind in some steps, so that some of its 65 gathers meet no kernel; nothing hides naive's."""
    fsdp2 = sample_run("h100/torch-fsdp2")
    assert said_of(fsdp2, "hidden_gathers >= 60") == "holds"
    assert said_of(fsdp2, "hidden_gathers >= 64").startswith("InconclusiveError: inconclusive: hidden_gathers is 60")
    assert said_of(fsdp2, "hidden_gathers >= 66").startswith("RequirementError: hidden_gathers is 60")
    assert said_of(sample_run("h100/naive"), "hidden_all_reduces >= 1").startswith("RequirementError")


def test_what_is_unknown_is_inconclusive(tmp_path: Path) -> None:
    """Without the other rank's trace nobody knows what was waiting."""
    run = two_steps(tmp_path, hidden=(False, False), world_size=2)
    assert said_of(run, "exposed_wait_ns < 1s") == (
        "InconclusiveError: inconclusive: exposed_wait_ns is unknown, and must be < 1s"
    )


def test_time_of_unknown_cause_may_be_of_any(tmp_path: Path) -> None:
    events = [step(3, 0, 1000), op("mm", 0, 100), event("engine::comm", 100, 400, tid=7), op("mm", 400, 900)]
    run = run_of(tmp_path, events)
    assert overlaplab.scalars(run)["exposed.unknown"] == 300_000
    assert said_of(run, "exposed.queued_share < 0.5", "exposed.unknown < 500us") == "holds"
    assert said_of(run, "exposed.queued_share < 0.1") == (
        "InconclusiveError: inconclusive: exposed.queued_share is 0, and must be < 0.1; 0.30 ms of exposed time per"
        " step have no known cause"
    )


def test_what_fails_goes_before_what_is_open(tmp_path: Path) -> None:
    run = two_steps(tmp_path, hidden=(False, True), busy=(3,))
    said = said_of(run, "hidden_gathers >= 1", "hidden_gathers >= 2", "exposed_share < 0.5")
    assert said == "RequirementError: hidden_gathers is 0, and must be >= 2"


@pytest.mark.parametrize(
    ("requirement", "why"),
    [
        ("hidden_gathers > 5%", "is a change"),
        ("hidden > 5", "no figure 'hidden'. Did you mean hidden_gathers or hidden_scatters or hidden_all_reduces?"),
        ("exposed > 5%", "no figure 'exposed'. Did you mean exposed_comm_ns or exposed_wait_ns or exposed_transfer_ns"),
        ("exposed_com_ns > 5%", "Did you mean exposed_comm_ns"),
        ("nothing > 5", "no figure 'nothing'. Known: span_ns, "),
        ("hidden_gathers >= 7ms", "Write a count, or a change in %"),
        ("exposed.tail_share < 5ms", "Write a ratio from 0 to 1"),
        ("exposed.tail < 5", "Write %, ns, us, ms or s after it"),
        ("hidden_gathers => 7", "is not a condition"),
    ],
)
def test_what_cannot_be_required_is_one_line(requirement: str, why: str) -> None:
    with pytest.raises(OverlaplabError, match=f"^require.*{re.escape(why)}"):
        overlaplab.require(sample_run("bucketed"), requirement)


def test_nothing_is_required_of_a_prediction(tmp_path: Path) -> None:
    run = two_steps(tmp_path, hidden=(True, True), predicted={"from": "x", "changes": {}, "interval_ns": 1})
    with pytest.raises(OverlaplabError, match="was predicted"):
        overlaplab.require(run, "hidden_gathers >= 1")


def test_the_command_exits_with_three_where_nothing_failed_and_something_is_open(command: Any, tmp_path: Path) -> None:
    two_steps(tmp_path / "run", hidden=(False, True), busy=(3,))
    held, open_, failed = "exposed_share < 0.5", "hidden_gathers >= 1", "hidden_gathers >= 2"

    def exits(*requirements: str) -> int:
        options = [word for each in requirements for word in ("--require", each)]
        files = ("--junit", tmp_path / "check.xml", "--markdown", tmp_path / "check.md")
        return int(command("compare", tmp_path / "run", *options, *files)[0])

    assert [exits(held), exits(held, open_, failed), exits("x"), exits(held, open_)] == [0, 1, 2, 3]
    suite = ElementTree.parse(tmp_path / "check.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "0", "1")
    (skipped,) = suite.iter("skipped")
    assert skipped.get("message", "").startswith("inconclusive: hidden_gathers is 0, and must be >= 1; the machine was")
    text = (tmp_path / "check.md").read_text()
    assert text.startswith("### overlaplab: 1 of 2 conditions inconclusive\n")
    assert (text.count("✅"), text.count("❔ inconclusive: hidden"), text.count("❌")) == (1, 1, 0)


def test_what_may_not_be_is_judged_beside_what_must(command: Any, tmp_path: Path) -> None:
    run = two_steps(tmp_path / "run", hidden=(False, True), busy=(3,)).path
    options = ("--fail-if", "exposed_comm_ns > 1us", "--require", "hidden_gathers >= 1")
    code, _, said = command("compare", run, run, *options)
    assert code == 1
    assert [line.split(":")[1] for line in said.splitlines()] == [" failed", " inconclusive", " note"]
    assert command("compare", run, *options)[0] == 2


USE = """
import overlaplab
run = overlaplab.load_run({path!r})

def test_holds(overlaplab_gate):
    overlaplab_gate.require(run, "exposed_share < 0.5")

def test_fails(overlaplab_gate):
    overlaplab_gate.require(run, "hidden_gathers >= 2")

def test_is_open(overlaplab_gate):
    overlaplab_gate.require(run, "hidden_gathers >= 1")

def test_is_open_without_the_fixture():
    overlaplab.require(run, "hidden_gathers >= 1")
"""


def test_pytest_skips_what_is_inconclusive(tmp_path: Path) -> None:
    run = two_steps(tmp_path / "run", hidden=(False, True), busy=(3,))
    (tmp_path / "test_use.py").write_text(USE.format(path=run.path))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rs", "test_use.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed, 2 skipped" in done.stdout, done.stdout
    assert len(re.findall(r"SKIPPED .*: inconclusive: hidden_gathers is 0", done.stdout)) == 2
    assert "Traceback" not in done.stdout


def test_unittest_skips_what_is_inconclusive(tmp_path: Path) -> None:
    run = two_steps(tmp_path, hidden=(False, True), busy=(3,))

    class Case(unittest.TestCase):
        def runTest(self) -> None:  # noqa: N802
            overlaplab.require(run, "hidden_gathers >= 1")

    result = unittest.TestResult()
    Case().run(result)
    assert [reason.split(":")[0] for _, reason in result.skipped] == ["inconclusive"]
    assert result.wasSuccessful()
