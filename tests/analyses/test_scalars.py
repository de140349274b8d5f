"""A run as a flat dictionary of numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made.traces import gloo, op, run_of, step, write
from samples import sample_run

import overlaplab
from overlaplab import Selection, load_run
from overlaplab.analyses.exposed import CAUSES
from overlaplab.analyses.scalars import HIDDEN, OF_CAUSE, SHARES
from overlaplab.analyses.summary import FIGURES


def test_means_over_all_steps_of_all_ranks(tmp_path: Path) -> None:
    one = [step(3, 0, 100), op("mm", 0, 50), gloo(40, 60)]
    other = [step(3, 0, 200), op("mm", 0, 100), gloo(40, 120)]
    found = overlaplab.scalars(run_of(tmp_path, one, other))
    assert found["span_ns"] == 150_000
    assert found["comm_ns"] == 50_000
    assert found["exposed_comm_ns"] == 15_000
    assert found["overlap_ratio"] == 70 / 100  # of the sums: 10 + 60 of 20 + 80 µs
    assert sum(found[name] or 0 for name in OF_CAUSE) == 15_000
    assert found["exposed_share"] == 15 / 150
    assert sum(found[f"{name}_share"] or 0 for name in OF_CAUSE) == pytest.approx(15 / 150)


def test_what_is_unknown_is_none(tmp_path: Path) -> None:
    found = overlaplab.scalars(run_of(tmp_path, [step(3, 0, 100), op("mm", 0, 50)]))
    assert found["overlap_ratio"] is None  # nothing was sent
    assert found["preempted_ns"] is None  # no counts of the kernel
    assert found["exposed.tail"] == 0


def test_the_names_are_those_of_conditions() -> None:
    run = sample_run("bucketed")
    found = overlaplab.scalars(run, Selection(skip_steps=1))
    assert list(found) == [*FIGURES, *HIDDEN, *OF_CAUSE, *SHARES]
    assert len(OF_CAUSE) == len(CAUSES)
    assert found["exposed_comm_ns"] == pytest.approx(sum(found[name] or 0 for name in OF_CAUSE))
    assert set(overlaplab.scalars(run, causes=False)) == {*FIGURES, *HIDDEN, "exposed_share"}


def gathers(*exposed: bool) -> list[dict[str, Any]]:
    """A step of 100 µs for each: a gather of 20 µs, under computation but for 11 µs where it is exposed."""
    events = []
    for number, is_exposed in enumerate(exposed):
        at = 100 * number
        events += [
            step(number, at, at + 100),
            op("mm", at, at + (49 if is_exposed else 60)),
            op("mm", at + 65, at + 90),
        ]
        events += [gloo(at + 40, at + 60, kind="all_gather"), gloo(at + 70, at + 80, kind="reduce_scatter")]
    return events


@pytest.mark.parametrize(
    ("ranks", "hidden"),
    [
        ([[False, False, True], [False, False, False]], 1),
        ([[False, False, True], [True, False, True]], 0),
        ([[False, True]], 0),
    ],
)
def test_hidden_collectives_are_counted_in_the_median_step_of_the_worst_rank(
    tmp_path: Path, ranks: list[list[bool]], hidden: int
) -> None:
    found = overlaplab.scalars(run_of(tmp_path, *(gathers(*steps) for steps in ranks)))
    assert found["hidden_gathers"] == hidden
    assert (found["hidden_scatters"], found["hidden_all_reduces"]) == (1, 0)


def test_a_trace_without_steps_or_rank_has_counts(tmp_path: Path) -> None:
    """All of it is one window; its rank and step are null."""
    events = [each for each in gathers(False, False, True) if "ProfilerStep" not in each["name"]]
    assert overlaplab.scalars(load_run(write(tmp_path / "trace.json", events)))["hidden_gathers"] == 2


def test_where_no_communication_is_recognised_nothing_is_counted(tmp_path: Path) -> None:
    run = run_of(tmp_path, *[[step(3, 0, 100), op("mm", 0, 50)]] * 2)
    assert overlaplab.scalars(run)["hidden_gathers"] is None
