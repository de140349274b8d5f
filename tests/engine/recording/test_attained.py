"""When a step, and a run, attained its emulated link; recordings that repeat, and links that machines can keep."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from overlaplab_engine.cli import main
from overlaplab_engine.network.calibration import LATENCIES_US, floor_ns, keeps_model, next_slower
from overlaplab_engine.network.carrier import Carried
from overlaplab_engine.network.link import Kind, Link
from overlaplab_engine.recording.attained import LinkStep, attained_steps, is_attained, link_step
from overlaplab_engine.train import _Mark
from ranks.warm_ranks import run_launcher, run_warm

import overlaplab
from overlaplab.findings import run_warnings

MS = 1_000_000


def carried(*occupied_ns: int, modelled_ns: int = MS) -> list[Carried]:
    return [
        Carried(seq=seq, kind=Kind.ALL_REDUCE, nbytes=8, modelled_ns=modelled_ns, occupied_ns=ns)
        for seq, ns in enumerate(occupied_ns)
    ]


@pytest.mark.parametrize(
    ("occupied", "took_ms", "attained"),
    [
        ([1_050_000] * 10, 20, True),  # each 5 % late, and together
        ([1_060_000] * 10, 20, False),
        ([1_400_000, *[MS] * 9], 20, True),  # 40 % late is 50 µs in each on the average
        ([3_000_000, *[MS] * 99], 20, True),  # 10 % of the step
        ([3_000_001, *[MS] * 99], 20, False),
        ([], 20, True),
    ],
)
def test_a_step_attains_its_link_by_the_sum_and_by_the_latest(
    occupied: list[int], took_ms: int, attained: bool
) -> None:
    step = link_step(1, 2, carried(*occupied), took_ms * MS)
    assert (step.rank, step.step, step.modelled_ns, step.took_ns) == (1, 2, len(occupied) * MS, took_ms * MS)
    assert step.occupied_ns == sum(occupied)
    assert step.latest_ns == max((ns - MS for ns in occupied), default=0)
    assert step.attained is attained


def test_on_a_gpu_a_step_takes_what_the_device_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host may have queued it long before."""
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    gpu, cpu = (SimpleNamespace(device=torch.device(kind), mark_log=tuple) for kind in ("cuda:0", "cpu"))
    since, until = (_Mark.take(gpu) for _ in range(2))
    assert since.ns_until(until) == 12_500_000
    assert _Mark.take(cpu).ns_until(_Mark.take(cpu)) < 12_500_000


class FakeEvent:
    """The device gets to it 12.5 ms after the one before, and its time is there once the host has waited."""

    def __init__(self, enable_timing: bool) -> None:
        self.done = False

    def record(self) -> None: ...

    def synchronize(self) -> None:
        self.done = True

    def elapsed_time(self, later: "FakeEvent") -> float:
        assert later.done
        return 12.5


def test_with_one_rank_nothing_is_modelled_and_all_is_attained() -> None:
    assert link_step(0, 2, carried(50_000, modelled_ns=0), MS).attained


def test_three_steps_make_a_run_attained() -> None:
    good = LinkStep(rank=0, step=2, modelled_ns=100, occupied_ns=100, latest_ns=0, took_ns=1000)
    bad = replace(good, rank=1, occupied_ns=200, latest_ns=100)

    def rows(*bad_steps: int, steps: int) -> list[LinkStep]:
        return [
            replace(bad if rank and step in bad_steps else good, rank=rank, step=step)
            for rank in (0, 1)
            for step in range(steps)
        ]

    assert attained_steps(rows(1, 3, steps=5)) == {0, 2, 4}
    assert is_attained(rows(1, 3, steps=5))
    assert not is_attained(rows(1, 3, 4, steps=5))
    assert is_attained(rows(steps=2))
    assert not is_attained(rows(1, steps=2))
    assert is_attained([])


# `--link auto`


def test_the_floor_and_the_verdict_leave_stalls_out() -> None:
    measured = carried(*[1_010_000] * 18, 9_000_000, 1_020_000)
    assert floor_ns(measured) == 10_000
    assert keeps_model(measured)
    assert not keeps_model(carried(*[1_030_000] * 20))
    assert not keeps_model(carried(*[1_010_000] * 17, *[9_000_000] * 3))


def test_the_next_latency_is_above_the_floor() -> None:
    link = Link(bandwidth_gbps=1, latency_us=500, auto=True)
    assert next_slower(link, at_least_us=0) == link
    assert next_slower(link, at_least_us=600).latency_us == 1000
    assert next_slower(link).latency_us == 1000
    assert next_slower(link).auto
    slowest = next_slower(link, at_least_us=1e9)
    assert slowest.latency_us == LATENCIES_US[-1]
    assert next_slower(slowest) == slowest


# Recordings, of one rank among phantoms. Its link is late as it is told: the first argument is an expression of the
# number of the recording that says by how many ms.

LATE = """
import sys, overlaplab_engine.train as train
from overlaplab_engine.alarm import Alarm
late = eval("lambda attempt: " + sys.argv.pop(1))
run, sleep = train._run, Alarm.sleep_until
now = {"attempt": 0}
def running(config, comm, strategy, optimizer, attempt, done):
    now["attempt"] = attempt
    return run(config, comm, strategy, optimizer, attempt, done)
def sleeping(self, end_ns):
    sleep(self, end_ns + int(1e6 * late(now["attempt"])))
train._run, Alarm.sleep_until = running, sleeping
from overlaplab_engine.cli import main
sys.exit(main(sys.argv[1:]))
"""
SMALL = [
    *("--strategy", "bucketed", "--device", "cpu", "--layers", "1", "--width", "16", "--heads", "2", "--seq", "8"),
    *("--vocab", "32", "--batch", "1", "--steps", "2", "--warmup", "1"),
]
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def record(out: Path, late: str, *options: str) -> tuple[dict[str, Any], list[str]]:
    """run.json, and what is said on stderr, but for the profiler's lines."""
    script = out.with_name("late.py")
    script.write_text(LATE)
    done = run_launcher(str(script), late, "--out", str(out), *SMALL, *options, **ALONE)
    assert done.code == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("overlaplab record: ")]
    return json.loads((out / "run.json").read_text()), said


def test_steps_that_missed_the_link_are_recorded_again(tmp_path: Path) -> None:
    told, said = record(tmp_path / "run", "30 * (attempt == 1)", "--link", "1Gbps,4000us,8")
    assert said[0].endswith("the link 1Gbps,4000us was attained in 0 of 2 steps; recording them again (2 of 5)")
    assert 2 <= told["attempt"] <= told["attempts"] <= 5  # a busy machine may need more
    assert told["link_attained"] is True
    assert [(row["rank"], row["step"], row["attained"]) for row in told["link_steps"]] == [(0, 1, True), (0, 2, True)]
    table = told["collectives"]
    for row in told["link_steps"]:
        for name in ("modelled_ns", "occupied_ns"):
            assert row[name] == sum(
                ns for ns, step in zip(table[name], table["step"], strict=True) if step == row["step"]
            )
    run = overlaplab.load_run(tmp_path / "run")
    assert overlaplab.summary(run)["step"].tolist() == [1, 2]
    assert [warning for warning in run_warnings(run) if "link" in warning] == []


def test_a_link_of_this_machines_own_gets_slower_where_it_was_missed(tmp_path: Path) -> None:
    out, script = tmp_path / "run", tmp_path / "late.py"
    script.write_text(LATE)
    ranks = run_warm(2, str(script), "60 * (attempt == 1)", "--out", str(out), *SMALL, "--link", "auto")
    assert [rank.code for rank in ranks] == [0, 0], ranks[0].stderr
    first = (
        r"the link 1Gbps,(\d+)us was attained in 0 of 2 steps; recording them again \(2 of 5\) behind 1Gbps,(\d+)us\n"
    )
    found = re.search(first, ranks[0].stderr)
    assert found is not None, ranks[0].stderr
    missed, slower = (LATENCIES_US.index(float(text)) for text in found.groups())
    assert slower == min(missed + 1, len(LATENCIES_US) - 1)
    told = json.loads((out / "run.json").read_text())
    assert told["link"]["latency_us"] >= LATENCIES_US[slower]
    assert told["attempt"] >= 2


@pytest.mark.slow
def test_after_the_last_attempt_the_best_recording_is_kept(tmp_path: Path) -> None:
    told, said = record(tmp_path / "run", "40 - 10 * attempt", "--link", "1Gbps,4000us,8", "--attempts", "3")
    assert [line.rpartition("; ")[2] for line in said] == [
        "recording them again (2 of 3)",
        "recording them again (3 of 3)",
        "the best recording, number 3, is kept",
    ]
    assert (told["attempt"], told["attempts"], told["link_attained"]) == (3, 3, False)
    (warning,) = [line for line in run_warnings(overlaplab.load_run(tmp_path / "run")) if "link" in line]
    assert warning.startswith("link not attained in step 1 (")
    assert "2 of 2 steps must attain it and 0 did in the best of 3 recordings" in warning


def test_the_link_of_another_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").mkdir()
    told = {
        "link": {"emulated": True, "bandwidth_gbps": 0.5, "latency_us": 700.0, "world_size": 8},
        "phantom_ranks": [1],
    }
    (tmp_path / "other" / "run.json").write_text(json.dumps(told))
    mine, _ = record(tmp_path / "run", "0", "--link", str(tmp_path / "other"), "--attempts", "1")
    assert mine["link"] == told["link"]
    options = ["--strategy", "naive", "--out", str(tmp_path / "none"), "--device", "cpu", "--link", str(tmp_path)]
    infinite = json.dumps(told | {"link": told["link"] | {"world_size": float("inf")}})  # type: ignore[operator]
    for manifest in ("{}", infinite):
        (tmp_path / "run.json").write_text(manifest)
        assert main(options) == 2
        assert capfd.readouterr().err == (
            f"overlaplab record: --link {tmp_path}: its run.json does not say which link it was recorded with\n"
        )
