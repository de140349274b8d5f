"""Recordings of one rank of an emulated group, on the CPU, and what the analyser makes of them."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from overlaplab_engine.strategy_names import StrategyName
from ranks.warm_ranks import run_launcher
from strategies import ALONE

import overlaplab

SMALL = [
    *("--device", "cpu", "--nproc", "1", "--width", "16", "--heads", "2", "--seq", "8", "--vocab", "32"),
    *("--batch", "1", "--bucket-cap-mb", "0.01", "--link", "10Gbps,100us,8", "--attempts", "1"),
]
LEFT = [f"{part}.{kind}" for part in ("attention_norm", "attention.output", "mlp_norm") for kind in ("weight", "bias")]
"""Parameters of a layer that lie in modules too small for a unit."""
LAYERS, STEPS = 2, 2
COUNTS = {  # of a step: 29 parameters, which lie in 3 buckets, 4 units, 3 of FSDP2's; beside them what tells usage
    "naive": {"all_reduce": 30},
    "per-param": {"all_reduce": 30},
    "bucketed": {"all_reduce": 3},
    "zero1": {"reduce_scatter": 3, "all_reduce": 1, "all_gather": 3},
    "zero2": {"reduce_scatter": 3, "all_reduce": 1, "all_gather": 3},
    "zero3": {"all_gather": 5, "reduce_scatter": 4, "all_reduce": 1},
    "torch-ddp": {"all_reduce": 3},
    "torch-fsdp2": {"all_gather": 5, "reduce_scatter": 3},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every strategy's run, from one process."""
    out = tmp_path_factory.mktemp("phantoms")
    script = Path(__file__).parents[2] / "support" / "programs" / "phantom_runs.py"
    options = [*SMALL, "--layers", str(LAYERS), "--steps", str(STEPS)]
    ended = run_launcher(str(script), str(out), *options, "--", *ALONE, RECORDS="1")
    assert ended.code == 0, ended.stderr
    return out


def manifest(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "run.json").read_text())
    return found


@pytest.mark.parametrize("name", ALONE)
def test_every_strategy_records_one_rank_of_eight(runs: Path, name: StrategyName) -> None:
    m = manifest(runs / name)
    assert sorted(p.name for p in (runs / name).iterdir()) == ["rank0.pt.trace.json.gz", "run.json"]
    assert (m["world_size"], m["phantom_ranks"], m["numerics_meant"]) == (8, [1, 2, 3, 4, 5, 6, 7], False)
    assert m["link"] == {"emulated": True, "bandwidth_gbps": 10.0, "latency_us": 100.0, "world_size": 8}
    assert (m["backend"], m["device"], m["unit_policy"]) == ("phantoms", "cpu", "by_block")
    (memory,) = m["memory"]
    assert memory["rank"] == 0
    assert 0 < memory["scratch"] <= 2 * (1 << 15) * (4 + 4 + 8 + 8)  # blocks of floats and integers
    table = m["collectives"]
    assert Counter(table["kind"]) == {kind: STEPS * count for kind, count in COUNTS[name].items()}
    for kind, nbytes, modelled_ns, occupied_ns in zip(
        table["kind"], table["bytes"], table["modelled_ns"], table["occupied_ns"], strict=True
    ):
        passes = 2 if kind == "all_reduce" else 1  # 7 × 100 µs, and 7/8 of the bytes at 0.8 ns each
        assert modelled_ns == passes * 700_000 + round(passes * 0.7 * nbytes)
        assert occupied_ns >= modelled_ns


@pytest.mark.parametrize("name", ALONE)
def test_the_analyser_misses_no_rank_of_it(runs: Path, name: StrategyName) -> None:
    run = overlaplab.load_run(runs / name)
    assert run.warnings == ()
    assert set(overlaplab.summary(run)["rank"]) == {0}
    table = overlaplab.collectives(run)
    assert Counter(table["kind"]) == {kind: STEPS * count for kind, count in COUNTS[name].items()}
    assert set(table["wait_ns"]) == {0}
    assert (table["transfer_ns"] == table["end_ns"] - table["arrived_ns"]).all()
    modelled = [10_000 * (70 if kind != "all_reduce" else 140) for kind in table["kind"]]  # their latencies alone
    assert (table["transfer_ns"] >= 0.9 * np.array(modelled)).all()


def test_units_by_size_are_recorded(tmp_path: Path) -> None:
    """Of a layer's 3,280 parameters the four maps have 816, 272, 1,088 and 1,040, and its norms 64."""
    out = tmp_path / "run"
    options = ["--strategy", "zero3", "--layers", "2", "--steps", "1", "--units", "by_size:500", *SMALL]
    ended = run_launcher("-m", "overlaplab_engine", "--out", str(out), *options)
    assert ended.code == 0, ended.stderr
    m = manifest(out)
    assert m["unit_policy"] == "by_size:500"
    layers = [f"layers.{i}.{part}" for i in (0, 1) for part in ("attention.qkv", "up", "down")]
    assert [unit["name"] for unit in m["units"]] == ["root", "embedding.tokens", *layers, "head.output"]
    rest = [name for name in m["units"][0]["parameters"] if name.startswith("layers.0.")]
    assert rest == [f"layers.0.{n}" for n in LEFT]
    events = overlaplab.schedule(overlaplab.load_run(out))
    assert set(events["unit"]) == {unit["name"] for unit in m["units"]}


@pytest.mark.slow
def test_zero3_of_32_layers_by_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ["--strategy", "zero3", "--layers", "32", "--steps", "1", *SMALL]
    command = [sys.executable, "-m", "overlaplab_engine", "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    *before, last = done.stderr.splitlines()
    assert all("the link 10Gbps,100us was attained in" in line for line in before)  # on a busy machine
    assert last == f"overlaplab record: zero3, 1 steps on one rank of an emulated group of 8 → {out}"
    events = overlaplab.schedule(overlaplab.load_run(out))
    assert events["layer"].notna().sum() == 63
    held, whole = manifest(out)["memory"][0]["parameters"], sum(p["bytes"] for p in manifest(out)["parameters"])
    assert whole / 8 <= held < 1.05 * whole / 8  # with some padding
