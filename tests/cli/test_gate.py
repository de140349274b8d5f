"""Checks that fail a build: baselines, JUnit, Markdown, the Action's script, the pytest fixture."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from made.traces import gloo, launched, op, run_of, step
from samples import TRACES, sample_run

from overlaplab import OverlaplabError
from overlaplab.analyses import parse_condition
from overlaplab.pytest_plugin import Gate

ROOT = Path(__file__).parents[2]
SWEEP = TRACES / "sweep"
EARLIER = [str(SWEEP / name) for name in ("cap-1", "cap-1-2", "cap-1-3")]


@pytest.fixture
def stored(command: Any, tmp_path: Path) -> Path:
    assert command("baseline", *EARLIER, "--out", tmp_path / "baseline.json")[0] == 0
    return tmp_path / "baseline.json"


def test_a_baseline_says_what_is_wrong_with_its_recordings(command: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(EARLIER[0], run)
    manifest = json.loads((run / "run.json").read_text())
    for row in manifest["link_steps"]:
        row["occupied_ns"] *= 2
    (run / "run.json").write_text(json.dumps(manifest))
    code, said, error = command("baseline", run, "--out", tmp_path / "baseline.json")
    assert (code, error) == (0, "")
    assert f"warning: {run}: link not attained" in " ".join(said.split())


def test_one_run_is_held_against_a_baseline(command: Any, stored: Path) -> None:
    """Of the four recordings of a cap one is held against the others; the largest cap is slower than all of them."""
    options = ("--baseline", stored, "--fail-if", "exposed_comm_ns > 5%")
    assert command("compare", SWEEP / "cap-1-4", *options)[0] == 0
    code, printed, error = command("compare", SWEEP / "cap-25", *options)
    assert code == 1
    assert "nothing is compared" not in printed
    assert "exposed_comm_ns changed by +" in error
    code, _, error = command("compare", TRACES / "naive", *options)
    assert (code, error.count("\n")) == (2, 1)
    for unused in (options[:2], (*options[:2], "--require", "overlap_ratio >= 0")):
        code, _, error = command("compare", SWEEP / "cap-25", *unused)
        assert code == 0
        assert error.endswith("overlaplab: note: nothing is compared with the baseline: no --fail-if names a figure\n")


def test_a_baseline_with_causes_by_earlier_rules_serves_for_all_else(command: Any, stored: Path) -> None:
    stored.write_text(json.dumps(json.loads(stored.read_text()) | {"format_version": 1}))
    options = ("compare", SWEEP / "cap-1-4", "--baseline", stored, "--fail-if")
    for condition in ("exposed_comm_ns > 50%", "exposed.tail > 1s"):
        assert command(*options, condition)[0] == 0
    code, _, error = command(*options, "exposed.tail > 50%")
    assert (code, error.count("\n")) == (2, 1)
    assert f"{stored}: has exposed.tail by the rules of an earlier overlaplab. Write it again: overlaplab" in error
    with pytest.raises(OverlaplabError, match="earlier overlaplab"):
        Gate(stored.parent).check(sample_run("sweep/cap-1-4"), "exposed.tail > 50%", baseline=stored)


@pytest.mark.parametrize(
    ("run", "options", "says"),
    [
        ("cap-1", ("--require", "hidden_all_reduces >= 1", "--rank", "7"), "not in this run"),
        ("none", ("--require", "hidden_all_reduces >= 1"), "none"),
        ("cap-1", ("--fail-if", "span_ns > 5%"), "only one run"),
        ("cap-1", ("--fail-if", "span_ns > 5%", "--baseline", "none.json"), "none.json"),
        ("cap-1", ("--fail-if", "span > 5%"), "no figure 'span'"),
        ("cap-1", ("--require", "span\x00"), "--require"),
        ("nowhere", ("--fail-if", "span_ns > 5%"), "nowhere"),
    ],
)
def test_nothing_that_could_be_read_leaves_no_earlier_verdict(
    command: Any, tmp_path: Path, run: str, options: tuple[str, ...], says: str
) -> None:
    (tmp_path / "check.xml").write_text("Every condition holds")
    code, _, error = command("compare", SWEEP / run, *options, "--junit", tmp_path / "check.xml")
    assert (code, error.count("\n"), says in error) == (2, 1, True)
    assert ElementTree.parse(tmp_path / "check.xml").getroot().get("errors") == "1"


def test_a_change_within_the_recordings_is_noted_and_passes(command: Any, stored: Path) -> None:
    """The first recording is one of the baseline's own, so that no change of it can lie beyond them."""
    code, _, error = command("compare", EARLIER[0], "--baseline", stored, "--fail-if", "span_ns > -50%")
    assert code == 0
    assert "lies within the 3 recordings" in " ".join(error.split())


def test_a_failed_check_of_steps_on_a_busy_machine_names_them(command: Any, tmp_path: Path) -> None:
    run = tmp_path / "busy"
    shutil.copytree(SWEEP / "cap-25", run)
    manifest = json.loads((run / "run.json").read_text())
    steps = sorted({row["step"] for row in manifest["link_steps"]})
    manifest["machine"] = [
        {"rank": rank, "step": number, "took_ns": 10**8, "cores": 2, "busy": number in steps[:2]}
        for rank in (0, 1)
        for number in steps
    ]
    (run / "run.json").write_text(json.dumps(manifest))
    note = f"overlaplab: note: the machine was busy in steps {steps[0]} and {steps[1]} of {run}: record again before"
    options = ("compare", SWEEP / "cap-1", run, "--fail-if")
    code, _, error = command(*options, "exposed_comm_ns > 5%")
    assert (code, note in " ".join(error.split())) == (1, True)
    code, _, error = command(*options, "exposed_comm_ns > 5000%")
    assert (code, "busy" in error) == (0, False)
    code, _, error = command(*options, "exposed_comm_ns > 5%", "--step", steps[2])
    assert (code, "busy" in error) == (1, False)


def test_junit_and_markdown_say_what_failed(command: Any, tmp_path: Path, stored: Path) -> None:
    files = ("--junit", tmp_path / "check.xml", "--markdown", tmp_path / "check.md")
    conditions = ("--fail-if", "exposed_comm_ns > 5%", "--fail-if", "exposed.blocking > 10s")
    assert command("compare", SWEEP / "cap-25", "--baseline", stored, *conditions, *files)[0] == 1
    suite = ElementTree.parse(tmp_path / "check.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    cases = {case.get("name"): case.find("failure") is not None for case in suite.iter("testcase")}
    assert cases == {"exposed_comm_ns > 5%": True, "exposed.blocking > 10s": False}
    text = (tmp_path / "check.md").read_text()
    assert text.startswith("### overlaplab: 1 of 2 conditions failed\n")
    assert text.count("❌") == text.count("✅") == 1
    assert "| exposed (ms) |" in text


def test_runs_that_cannot_be_compared_are_not_judged(command: Any, tmp_path: Path) -> None:
    """What an earlier check wrote is replaced, so that no verdict of another run is read."""
    files = [tmp_path / "check.xml", tmp_path / "check.md"]
    for file in files:
        file.write_text("Every condition holds")
    options = ("--fail-if", "exposed_comm_ns > 5%", "--fail-if", "exposed_comm_ns > 10s")
    written = ("--junit", files[0], "--markdown", files[1])
    code, out, error = command("compare", TRACES / "naive", TRACES / "tensor", *options, *written)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert re.search(r"tensor: differs from \S+naive in layers, .*link\.", error)
    suite = ElementTree.parse(files[0]).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "0", "2")
    assert len(list(suite.iter("error"))) == 2
    assert "nothing was judged" in files[1].read_text()
    with pytest.raises(OverlaplabError, match="differs from"):
        Gate(tmp_path).check(sample_run("tensor"), "exposed_comm_ns > 5%", before=sample_run("naive"))


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        ({"predicted": {"from": "x", "changes": {}, "interval_ns": 1}}, "was predicted, not recorded"),
        ({"link": {"emulated": True}, "link_attained": False}, "link was not attained"),
    ],
)
def test_figures_that_say_nothing_are_not_judged(
    command: Any, tmp_path: Path, manifest: dict[str, Any], why: str
) -> None:
    events = [step(3, 0, 100), op("mm", 0, 60), gloo(40, 90)]
    link = {"bandwidth_gbps": 1, "latency_us": 100, "world_size": 2}
    if "link" in manifest:
        manifest = manifest | {"link": manifest["link"] | link}
    run_of(tmp_path / "run", events, events, manifest=manifest)
    code, _, error = command("compare", tmp_path / "run", tmp_path / "run", "--fail-if", "exposed_comm_ns > 1s")
    assert (code, error.count("\n")) == (2, 1)
    assert why in error
    assert command("compare", tmp_path / "run", tmp_path / "run")[0] == 0


def test_a_lost_rank_is_not_judged(command: Any, tmp_path: Path) -> None:
    events = [step(3, 0, 100), op("mm", 0, 60), gloo(40, 90)]
    for name in ("before", "after"):
        run_of(tmp_path / name, events, events)
    condition = ("--fail-if", "exposed_comm_ns > 5%")
    stored = ("--baseline", tmp_path / "baseline.json")
    assert command("baseline", tmp_path / "before", "--out", stored[1])[0] == 0
    assert command("compare", tmp_path / "after", *stored, *condition)[0] == 0
    (tmp_path / "after" / "rank1.pt.trace.json.gz").unlink()
    for runs in ([tmp_path / "before", tmp_path / "after"], [tmp_path / "after", *stored]):
        code, _, error = command("compare", *runs, *condition)
        assert code == 2
        assert "after: rank 1: is missing" in error
    assert command("compare", tmp_path / "after", tmp_path / "before", *condition)[0] == 2


def test_a_gpu_is_not_judged_by_a_cpu(command: Any, tmp_path: Path) -> None:
    run_of(tmp_path / "before", [step(3, 0, 100), op("mm", 0, 60), gloo(40, 90)])
    run_of(tmp_path / "after", [step(3, 0, 100), *launched("gemm", 0, 5, 60, correlation=1)])
    code, _, error = command("compare", tmp_path / "before", tmp_path / "after", "--fail-if", "exposed_comm_ns > 5%")
    assert code == 2
    assert "after: was recorded on GPUs, and" in error
    assert "before on CPUs" in error
    stored = ("--out", tmp_path / "baseline.json")
    assert command("baseline", tmp_path / "before", *stored)[0] == 0
    limit = ("--baseline", stored[1], "--fail-if", "span_ns > 900%")
    assert command("compare", tmp_path / "before", *limit)[0] == 0
    code, _, error = command("compare", tmp_path / "after", *limit)
    assert (code, error.count("\n")) == (2, 1)
    assert "after: was recorded on GPUs, and the baseline on CPUs" in error
    code, _, error = command("baseline", tmp_path / "before", tmp_path / "after", *stored)
    assert (code, "after: was recorded on GPUs, and" in error) == (2, True)


def test_waits_without_all_ranks_are_not_judged(command: Any, tmp_path: Path) -> None:
    events = [step(3, 0, 100), op("mm", 0, 60), gloo(40, 90)]
    run = run_of(tmp_path / "run", events, events)
    (tmp_path / "run" / "rank1.pt.trace.json.gz").unlink()
    for limit in ("exposed.straggler_wait > 5ms", "exposed_wait_ns > 5ms"):
        assert command("compare", run.path, run.path, "--fail-if", limit)[0] == 2
    assert command("compare", run.path, run.path, "--fail-if", "exposed_comm_ns > 5ms")[0] == 0


def test_communication_that_is_not_recognised_is_not_judged(command: Any, tmp_path: Path) -> None:
    events = [step(3, 0, 100), op("mm", 0, 60)]
    run = run_of(tmp_path / "run", events, events)
    for limit in ("exposed_comm_ns > 5ms", "exposed.tail > 5ms"):
        assert command("compare", run.path, run.path, "--fail-if", limit)[0] == 2
    assert command("compare", run.path, run.path, "--fail-if", "span_ns > 5ms")[0] == 0


def script(folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the Action's script; a recording is a copy of a sample, which `samples` lists by line."""
    record = f'cp -r "{SWEEP}/$(head -1 samples)" "$OUT"; sed -i 1d samples'
    given = {
        "RECORD": record,
        "RESULTS": str(folder / "results"),
        "PATH": f"{Path(sys.executable).parent}:/bin:/usr/bin",
    }
    return subprocess.run(
        [ROOT / "scripts" / "gate.sh"], cwd=folder, env=os.environ | given | settings, capture_output=True, text=True
    )


@pytest.mark.slow
def test_the_steps_of_the_action_run_by_hand(tmp_path: Path) -> None:
    """First there is no baseline, which three recordings make; then a run like them, then a worse one."""
    (tmp_path / "samples").write_text("cap-1\ncap-1-2\ncap-1-3\ncap-1-4\ncap-25\n")
    made = script(tmp_path)
    assert made.returncode == 0, made.stderr
    assert "keep overlaplab-baseline.json" in made.stdout
    shutil.rmtree(tmp_path / "results")
    must = "overlap_ratio >= 0.1\n\nhidden_all_reduces >= 1\n"
    held = script(tmp_path, FAIL_IF="exposed_comm_ns > 5%\n\nexposed.blocking > 10s\n", REQUIRE=must)
    assert held.returncode == 0, held.stderr
    shutil.rmtree(tmp_path / "results")
    worse = script(tmp_path, GITHUB_STEP_SUMMARY=str(tmp_path / "summary.md"))
    assert worse.returncode == 1, worse.stderr
    assert (tmp_path / "summary.md").read_text() == (tmp_path / "results" / "check.md").read_text()
    assert (tmp_path / "results" / "check.xml").exists()


def test_the_action_gives_the_script_what_it_reads() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    *_, step = action["runs"]["steps"]
    text = (ROOT / "scripts" / "gate.sh").read_text()
    assert "/scripts/gate.sh" in step["run"]
    assert all(f"${name}" in text or f"${{{name}" in text for name in step["env"] if name != "GH_TOKEN")
    assert {name for name in action["inputs"] if f"inputs.{name}" in str(action["runs"])} == set(action["inputs"])


@pytest.mark.parametrize(
    ("code", "outcome", "ends"),
    [(0, "holds", 0), (1, "failed", 1), (2, "not judged", 2), (3, "inconclusive", 0)],
)
def test_what_is_inconclusive_is_a_warning_of_the_action(tmp_path: Path, code: int, outcome: str, ends: int) -> None:
    *_, step = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "gate.sh").write_text(f"#!/bin/sh\nexit {code}\n")
    (tmp_path / "scripts" / "gate.sh").chmod(0o755)
    commands = step["run"].replace("${{ github.action_path }}", str(tmp_path))
    environment = os.environ | {"GITHUB_OUTPUT": str(tmp_path / "output")}
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", commands]
    done = subprocess.run(shell, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, (tmp_path / "output").read_text()) == (ends, f"outcome={outcome}\n")
    assert done.stdout.startswith("::warning") is (code == 3)


USE = """
import sys

def test_it(overlaplab_gate):
    copy = "import shutil, sys; shutil.copytree(*sys.argv[1:])"
    run = overlaplab_gate.record(sys.executable, "-c", copy, {sample!r}, "{{out}}")
    overlaplab_gate.check(run, {condition!r}, baseline={baseline!r})

def test_a_script_that_fails(overlaplab_gate):
    overlaplab_gate.record(sys.executable, "-c", "raise SystemExit('no such model')")
"""
HANGING = """
import sys

def test_it(overlaplab_gate):
    ranks = "import os, sys, time; os.fork(); open(sys.argv[1] + str(os.getpid()), 'w').close(); time.sleep(600)"
    overlaplab_gate.record(sys.executable, "-c", ranks, "pid-", timeout=3)

def test_no_program(overlaplab_gate):
    overlaplab_gate.record("no-such-program")
"""


@pytest.mark.parametrize(("sample", "passes"), [("cap-1-4", True), ("cap-25", False)])
def test_the_fixture_fails_a_test_in_one_line(tmp_path: Path, stored: Path, sample: str, passes: bool) -> None:
    given = {"sample": str(SWEEP / sample), "condition": "exposed_comm_ns > 5%", "baseline": str(stored)}
    (tmp_path / "test_use.py").write_text(USE.format(**given))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "test_use.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"{1 if passes else 2} failed" in done.stdout
    assert ("exposed_comm_ns changed by +" in done.stdout) is not passes
    assert "ended with 1: no such model" in done.stdout
    assert "Traceback" not in done.stdout


def test_what_takes_too_long_is_ended_with_its_ranks(tmp_path: Path) -> None:
    (tmp_path / "test_use.py").write_text(HANGING)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "test_use.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "took more than 3 s" in done.stdout
    assert "no-such-program cannot be run: No such file or directory" in done.stdout
    assert "Traceback" not in done.stdout
    ranks = [int(path.name.removeprefix("pid-")) for path in tmp_path.glob("pid-*")]
    assert len(ranks) == 2
    for rank in ranks:
        with pytest.raises(ProcessLookupError):
            os.kill(rank, 0)


def test_the_conditions_of_the_page_can_be_read() -> None:
    rows = re.findall(r"^\| (`.+?) \|", (ROOT / "docs" / "ci.md").read_text(), re.M)
    conditions = [text for row in rows for text in re.findall(r"`(.+?)`", row)]
    assert len(conditions) == 9
    assert [str(parse_condition(text)) for text in conditions] == conditions
