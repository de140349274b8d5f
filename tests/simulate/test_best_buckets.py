"""The best buckets of all, at their recorded times: what the bound's any cap is made of."""

from __future__ import annotations

import pytest
from samples import sample_run

import overlaplab
from overlaplab.simulate import best_buckets, bound


@pytest.fixture(scope="module")
def run() -> overlaplab.Run:
    return sample_run("bucketed")


def test_what_they_leave_exposed_is_the_bounds_any_cap(run: overlaplab.Run) -> None:
    bounds = bound(run).set_index(["rank", "step"])
    found = best_buckets(run)
    assert len(bounds) == found.groupby(["rank", "step"]).ngroups
    for place, own in found.groupby(["rank", "step"]):
        late = int(own["end_ns"].max() - own["last_ns"].iloc[0])
        assert max(late, 0) == bounds.loc[place, "any_cap_ns"] - bounds.loc[place, "compute_ns"]


def test_they_hold_every_gradient_and_leave_one_after_the_other(run: overlaplab.Run) -> None:
    recorded = overlaplab.buckets(run).groupby(["rank", "step"])
    for place, own in best_buckets(run).groupby(["rank", "step"]):
        buckets = recorded.get_group(place)
        assert own["gradients"].sum() == buckets["parameters"].map(len).sum()
        assert own["bytes"].sum() == buckets["bytes"].sum()
        assert (own["start_ns"] >= own["ready_ns"]).all()
        assert (own["start_ns"].iloc[1:].to_numpy() >= own["end_ns"].iloc[:-1].to_numpy()).all()
        arrived = [time for times in buckets["gradient_ready_ns"] for time in times]
        assert set(own["ready_ns"]) <= set(arrived)


def test_runs_without_such_a_bound_have_none() -> None:
    assert best_buckets(sample_run("zero3")).empty
