"""The best buckets found as a table: what the chart of buckets shows beside the recorded ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from samples import sample_run, with_recorders_labels

import overlaplab
from overlaplab.selection import Selection
from overlaplab.simulate import best_buckets, bound
from overlaplab.simulate.buckets.search import bucket_search


@pytest.fixture(scope="module")
def run() -> overlaplab.Run:
    return sample_run("bucketed")


def test_they_hold_every_gradient_and_leave_one_after_the_other(run: overlaplab.Run) -> None:
    recorded = overlaplab.buckets(run).groupby(["rank", "step"])
    table = best_buckets(run)
    assert table.groupby(["rank", "step"]).ngroups == recorded.ngroups
    for place, own in table.groupby(["rank", "step"]):
        buckets = recorded.get_group(place)
        assert own["gradients"].sum() == buckets["parameters"].map(len).sum()
        assert own["bytes"].sum() >= buckets["bytes"].sum()  # with the flags that are sent beside them
        assert (own["start_ns"] >= own["ready_ns"]).all()
        assert (own["start_ns"].iloc[1:].to_numpy() >= own["end_ns"].iloc[:-1].to_numpy()).all()
        assert (own["ready_ns"] <= own["last_ns"]).all()


def test_the_step_ends_as_much_after_the_last_bucket_as_it_did(run: overlaplab.Run) -> None:
    """The wait for it, the optimizer and what follows are as recorded: 20 to 40 ms."""
    ends = best_buckets(run).groupby(["rank", "step"])["end_ns"].max()
    found = bound(run).set_index(["rank", "step"])["found_ns"]
    assert ((found - ends) > 0).all()
    assert ((found - ends) < 0.1 * found).all()


def test_of_a_selection(run: overlaplab.Run) -> None:
    steps = sorted(best_buckets(run)["step"].unique())
    table = best_buckets(run, Selection(ranks=[1], steps=[steps[-1]]))
    assert table[["rank", "step"]].drop_duplicates().to_numpy().tolist() == [[1, steps[-1]]]


def test_where_no_buckets_can_be_played_they_are_the_ranks_own(tmp_path: Path) -> None:
    """One rank's trace alone: what the best cutting leaves exposed is that of the bound."""
    folder = with_recorders_labels("torch-ddp", tmp_path)
    next(folder.glob("rank1*")).unlink()
    alone = overlaplab.load_run(folder)
    assert bucket_search(alone) is None
    bounds, table = bound(alone).set_index(["rank", "step"]), best_buckets(alone)
    assert len(table)
    for place, own in table.groupby(["rank", "step"]):
        late = int(own["end_ns"].max() - own["last_ns"].iloc[0])
        assert max(late, 0) == bounds.loc[place, "any_cap_ns"] - bounds.loc[place, "compute_ns"]


def test_runs_without_such_a_bound_have_none() -> None:
    assert best_buckets(sample_run("zero3")).empty
