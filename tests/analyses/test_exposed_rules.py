"""Why communication was exposed, by the words of docs/exposed.md (`exposed_rules`): in the samples, in made GPU runs,
and in anybody's traces, with `STRANGERS=DIR pytest tests/analyses/test_exposed_rules.py` (a folder of runs).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from exposed_rules import Key, expected
from made import traces
from made.gpu import bucketed, fsdp2, zero3
from made.phantoms import phantom_run
from made.strangers import one_f_one_b, run_of
from made.traces import event, gloo, op, step
from samples import cpu_samples, gpu_samples, sample_run

import overlaplab
from overlaplab import Run, load_run

STRANGERS = (
    sorted(path for path in Path(os.environ["STRANGERS"]).resolve().iterdir() if path.is_dir())
    if "STRANGERS" in os.environ
    else []
)
MADE: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "bucketed": bucketed,
    "torch-ddp": lambda: bucketed(ddp=True),
    "anybody's": lambda: bucketed(ddp=True, labelled=False),
    "zero3": lambda: zero3(1),
    "zero3-serial": lambda: zero3(0),
    "fsdp2": fsdp2,
}


def found(run: Run) -> Counter[Key]:
    table = overlaplab.exposed(run)
    rows = zip(*(table[name].astype(object) for name in ("rank", "step", "cause", "collective")), strict=True)
    keys = [tuple(None if pd.isna(value) else value for value in row) for row in rows]
    assert len({*keys}) == len(keys)
    return Counter(dict(zip(keys, table["exposed_ns"].tolist(), strict=True)))  # type: ignore[arg-type]


@pytest.mark.parametrize("folder", [*cpu_samples(), *gpu_samples(), *STRANGERS], ids=lambda folder: folder.name)
def test_recorded_runs(folder: Path) -> None:
    run = sample_run(folder)
    assert found(run) == expected(run)


@pytest.mark.parametrize("name", MADE)
def test_made_gpu_runs(tmp_path: Path, name: str) -> None:
    run = phantom_run(tmp_path, MADE[name](), device="cuda")
    assert found(run) == expected(run)


def test_a_strangers_pipeline(tmp_path: Path) -> None:
    """Of which nothing but NCCL's own arguments tells what a message is."""
    run = run_of(tmp_path, *one_f_one_b(steps=3))
    assert found(run) == expected(run)
    assert {cause for _, _, cause, _ in found(run)} == {"waiting for send"}


def test_a_strangers_ranks_over_gloo(tmp_path: Path) -> None:
    """The second rank comes 10 and 30 µs late, on a clock that is 5 ms ahead."""
    ranks = []
    for late, ahead in ((0, 0), (10, 5000)):
        events = []
        for number in range(3):
            at = 500 * number + ahead
            events += [step(number, at, at + 490), op("mm", at + 5, at + 200 + late)]
            events += [event("c10d::allreduce_", at + 150 + late, at + 151 + late)]
            events += [gloo(at + 160 + late, at + 300), gloo(at + 310 + 3 * late, at + 400)]
            events += [op("add", at + 420, at + 480)]
        ranks.append(events)
    run = traces.run_of(tmp_path, *ranks, backend="gloo")
    assert found(run) == expected(run)
    assert sum(found(run).values()) > 0


@pytest.mark.parametrize("folder", cpu_samples(), ids=lambda folder: folder.name)
def test_a_rank_without_the_others(folder: Path) -> None:
    run = load_run(next(folder.glob("rank0.*")))
    assert found(run) == expected(run)
