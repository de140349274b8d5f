"""A pipeline's actions, what lies between them, and the causes of what a stage waits for."""

from __future__ import annotations

import pytest
from made.pipeline import made_pipeline
from pandas.testing import assert_frame_equal

import overlaplab
from overlaplab.analyses import pipeline_held
from overlaplab.selection import Selection


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> overlaplab.Run:
    return made_pipeline(tmp_path_factory.mktemp("made"))


def test_what_lies_before_each_action(made: overlaplab.Run) -> None:
    table = overlaplab.pipeline(made)
    columns = ["rank", "action", "microbatch", "start_ns", "gap_ns", "wait_ns", "transfer_ns", "overhead_ns", "held"]
    found = [
        [value // 1000 if isinstance(value, int) and value > 99 else value for value in row]
        for row in table[columns].to_numpy().tolist()
    ]
    assert found == [
        [0, "forward", 0, 0, 0, 0, 0, 0, 1],
        [0, "forward", 1, 10, 0, 0, 0, 0, 2],
        [0, "backward", 0, 60, 40, 34, 4, 2, 2],
        [0, "backward", 1, 90, 10, 0, 2, 8, 1],
        [1, "forward", 0, 13, 13, 10, 2, 1, 1],
        [1, "forward", 1, 25, 2, 0, 2, 0, 2],
        [1, "backward", 0, 36, 1, 0, 0, 1, 2],
        [1, "backward", 1, 57, 1, 0, 1, 0, 1],
    ]


def test_the_bubble_and_its_parts(made: overlaplab.Run) -> None:
    row = overlaplab.pipeline_steps(made).iloc[0]
    assert (row["ranks"], row["stages"], row["microbatches"], row["span_ns"]) == (2, 2, 2, 110_000)
    assert row["bubble"] == pytest.approx(100 / 220)
    assert row["theory"] == pytest.approx(1 / 3)
    assert (row["imbalance"], row["overhead"]) == (0, pytest.approx(12 / 220))
    assert row["sending"] == pytest.approx((100 - 60 - 12) / 220)
    assert (row["hop_ns"], row["held"]) == (2000, 2)
    ranks = overlaplab.pipeline_ranks(made)
    assert ranks["busy_ns"].tolist() == [60_000, 60_000]
    assert ranks["schedule_ns"].tolist() == [30_000, 30_000]


def test_a_steps_figures_are_those_of_all_its_ranks(made: overlaplab.Run) -> None:
    """Whichever of them are chosen."""
    whole = overlaplab.pipeline_steps(made)
    assert_frame_equal(overlaplab.pipeline_steps(made, Selection(ranks=(1,))), whole)
    assert whole[["ranks", "stages"]].to_numpy().tolist() == [[2, 2]]


def test_what_a_stage_waits_for_has_causes_of_its_own(made: overlaplab.Run) -> None:
    """Waits in order of time: what the schedule leaves idle, 30 µs on either rank, and then sends."""
    sums = overlaplab.exposed(made).groupby(["rank", "cause"])["exposed_ns"].sum()
    assert dict(sums) == {
        (0, "pipeline bubble"): 30_000,
        (0, "waiting for send"): 10_000,
        (1, "pipeline bubble"): 13_000,
        (1, "waiting for send"): 7_000,
    }
    exposed = overlaplab.summary(made)["exposed_comm_ns"]
    assert exposed.tolist() == [40_000, 20_000]


def test_the_activations_that_each_stage_holds(made: overlaplab.Run) -> None:
    curves = pipeline_held(overlaplab.pipeline(made))
    of_first = curves[curves["stage"] == 0]
    assert of_first[["time_ns", "held"]].to_numpy().tolist() == [
        [0, 0],
        [0, 1],
        [10_000, 2],
        [80_000, 1],
        [110_000, 0],
    ]
