"""Recordings of a sleeping device: everything but the computation is as in any other."""

import gzip
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from overlaplab_engine.errors import EngineError
from overlaplab_engine.models.times import Sleep, UnitTime
from overlaplab_engine.strategy_names import StrategyName
from ranks.label_texts import parse
from ranks.warm_ranks import run_launcher, run_warm
from strategies import ALONE

import overlaplab
from overlaplab.findings import note

SMALL = [
    *("--device", "cpu", "--layers", "2", "--width", "16", "--heads", "2", "--seq", "8", "--vocab", "32"),
    *("--batch", "1", "--bucket-cap-mb", "0.01", "--attempts", "1", "--warmup", "2"),
]
UNITS = ("embedding", "layers.0", "layers.1", "head")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every strategy's run, one rank of eight, from one process."""
    out = tmp_path_factory.mktemp("asleep")
    script = Path(__file__).parents[2] / "support" / "programs" / "phantom_runs.py"
    options = [*SMALL, "--nproc", "1", "--steps", "2", "--link", "10Gbps,100us,8", "--compute", "sleep:2ms,4ms,20ms"]
    ended = run_launcher(str(script), str(out), *options, "--", *ALONE, RECORDS="1")
    assert ended.code == 0, ended.stderr
    return out


def events(trace: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return [event for event in found if event.get("ph") == "X"]


@pytest.mark.parametrize("name", ALONE)
def test_every_strategy_sleeps_as_long_as_it_is_told(runs: Path, name: StrategyName) -> None:
    told = json.loads((runs / name / "run.json").read_text())
    assert (told["compute"], told["numerics_meant"], told["processor_counts"]) == ("sleep", False, None)
    times = {"forward_ns": 2_000_000, "backward_ns": 4_000_000, "update_ns": 20_000_000}
    assert told["sleep"] == {
        "units": [{"name": unit, **times} for unit in UNITS],
        "slow_rank": None,
        "pause_ms": None,
        "on_schedule": True,
    }
    found = events(runs / name / "rank0.pt.trace.json.gz")
    gradients = [e for e in found if e["name"].startswith("engine::gradient_ready")]
    assert len(gradients) == 2 * len(told["parameters"])
    slept_ms = sum(e["dur"] for e in found if e["name"].startswith("sleep::")) / 1000
    assert slept_ms >= 2 * 4 * 6 * 0.5  # the host's time shortens sleeps by half at most
    assert overlaplab.summary(overlaplab.load_run(runs / name))["span_ns"].sum() >= 2 * 4 * 6e6 * 0.9  # and no step
    updates_ms = sum(e["dur"] / 1000 for e in found if e["name"] == "sleep::update")
    whole_ms = 2 * 4 * 20
    assert updates_ms >= 0.5 * (whole_ms if told["traits"]["sharded"] == [] else 0.04 * whole_ms)  # 1/8, unevenly
    uses = [parse(e["name"]) for e in sorted(found, key=lambda e: e["ts"]) if "_use " in e["name"]]
    assert [(word, x["unit"], x["phase"]) for word, x in uses] == 2 * [
        (edge, unit, phase)
        for phase, order in (("forward", UNITS), ("backward", UNITS[::-1]))
        for unit in order
        for edge in ("first_use", "last_use")
    ]
    computed = overlaplab.summary(overlaplab.load_run(runs / name))["compute_ns"].sum() / 1e6
    assert computed >= slept_ms


def test_a_device_sleeps_as_long_as_units_took_in_a_run(runs: Path, tmp_path: Path) -> None:
    """In a run that slept itself, and in one that measured before its first step."""
    slept = Sleep.parse(f"sleep:{runs / 'bucketed'}")
    time = UnitTime(forward_ns=2_000_000, backward_ns=4_000_000, update_ns=20_000_000)
    assert slept.units == dict.fromkeys(UNITS, time)
    told = json.loads((runs / "zero3" / "run.json").read_text())
    measured = told["calibration"]["units"]
    assert [unit["name"] for unit in measured] == [*UNITS]
    assert all(unit["forward_ns"] + unit["backward_ns"] >= 3_000_000 for unit in measured)
    (tmp_path / "run.json").write_text(json.dumps({**told, "sleep": None}))
    again = Sleep.parse(f"sleep:{tmp_path}").units
    assert again is not None
    assert {name: asdict(time) for name, time in again.items()} == {
        unit.pop("name"): unit for unit in (dict(row) for row in measured)
    }
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(EngineError, match="does not say how long units take; record it anew, on a CPU"):
        Sleep.parse(f"sleep:{tmp_path}")


def test_ranks_sleep_at_once_and_one_takes_longer(tmp_path: Path) -> None:
    """Four ranks on whatever cores there are: rank 2 sleeps twice as long, and all pause."""
    line = ["-m", "overlaplab_engine", "--strategy", "bucketed", "--out", str(tmp_path / "run"), *SMALL]
    line += ["--steps", "1", "--link", "1Gbps,100us", "--compute", "sleep:5ms,10ms", "--slow-rank", "2:2"]
    ranks = run_warm(4, *line, "--pause-ms", "30")
    assert [rank.code for rank in ranks] == [0] * 4, ranks
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (told["sleep"]["slow_rank"], told["sleep"]["pause_ms"]) == ([2, 2.0], 30.0)
    slept: Counter[int] = Counter()
    for rank in range(4):
        for event in events(tmp_path / "run" / f"rank{rank}.pt.trace.json.gz"):
            slept[rank] += event["dur"] / 1000 if event["name"].startswith("sleep::") else 0
    assert slept[2] >= 2 * 4 * 15 * 0.5
    assert min(slept.values()) >= 4 * 15 * 0.5
    run = overlaplab.load_run(tmp_path / "run")
    table = overlaplab.summary(run)
    assert (table["span_ns"] - table["compute_ns"]).min() >= 30e6  # the pause is no computation
    assert table["span_ns"].max() >= (2 * 4 * 15 + 30) * 1e6 * 0.9  # rank 2's, whatever its host took
    named = "bucketed, 4 ranks, sleeping device, bucket_cap_mb 0.01, emulated link 1Gbps,100us"
    assert str(note(run.manifest)).startswith(named)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--slow-rank", "1:2"], "--slow-rank is for --compute sleep"),
        (["--pause-ms", "5"], "--pause-ms is for --compute sleep"),
        (["--compute", "sleep", "--slow-rank", "1"], "--slow-rank '1' is not RANK:FACTOR such as 1:1.5"),
        (["--compute", "sleep", "--slow-rank", "2:2"], "there is no rank 2, ranks count from 0 to 1"),
        (["--compute", "sleep", "--slow-rank", "1:0"], "--slow-rank's FACTOR must be above 0"),
        (["--compute", "sleep", "--pause-ms", "0"], "--pause-ms must be above 0"),
        (["--compute", "sleep", "--save", "x"], "leave --save and --resume out"),
    ],
)
def test_bad_options_end_in_one_line(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from overlaplab_engine.cli import main

    assert main(["--strategy", "bucketed", "--out", str(tmp_path / "run"), "--device", "cpu", *options]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
