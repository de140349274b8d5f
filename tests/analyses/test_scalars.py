"""A run as a flat dictionary of numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from made.traces import gloo, op, run_of, step
from samples import sample_run

import overlaplab
from overlaplab import Selection
from overlaplab.analyses import CAUSES
from overlaplab.analyses.summary import FIGURES


def test_means_over_all_steps_of_all_ranks(tmp_path: Path) -> None:
    one = [step(3, 0, 100), op("mm", 0, 50), gloo(40, 60)]
    other = [step(3, 0, 200), op("mm", 0, 100), gloo(40, 120)]
    found = overlaplab.scalars(run_of(tmp_path, one, other))
    assert found["span_ns"] == 150_000
    assert found["comm_ns"] == 50_000
    assert found["exposed_comm_ns"] == 15_000
    assert found["overlap_ratio"] == 70 / 100  # of the sums: 10 + 60 of 20 + 80 µs
    assert sum(found[name] or 0 for name in found if name.startswith("exposed.")) == 15_000


def test_what_is_unknown_is_none(tmp_path: Path) -> None:
    found = overlaplab.scalars(run_of(tmp_path, [step(3, 0, 100), op("mm", 0, 50)]))
    assert found["overlap_ratio"] is None  # nothing was sent
    assert found["preempted_ns"] is None  # no counts of the kernel
    assert found["exposed.tail"] == 0


def test_the_names_are_those_of_conditions() -> None:
    run = sample_run("bucketed")
    found = overlaplab.scalars(run, Selection(skip_steps=1))
    assert [name for name in found if not name.startswith("exposed.")] == list(FIGURES)
    assert len(found) == len(FIGURES) + len(CAUSES)
    assert found["exposed_comm_ns"] == pytest.approx(sum(found[name] or 0 for name in found if "exposed." in name))
    assert set(overlaplab.scalars(run, causes=False)) == set(FIGURES)
