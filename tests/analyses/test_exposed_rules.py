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
from made.gpu import bucketed, fsdp2, zero3
from made.phantoms import phantom_run
from samples import cpu_samples, gpu_samples, sample_run

import overlaplab
from overlaplab import Run, load_run

STRANGERS = (
    sorted(path for path in Path(os.environ["STRANGERS"]).iterdir() if path.is_dir())
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


@pytest.mark.parametrize("folder", cpu_samples(), ids=lambda folder: folder.name)
def test_a_rank_without_the_others(folder: Path) -> None:
    run = load_run(next(folder.glob("rank0.*")))
    assert found(run) == expected(run)
