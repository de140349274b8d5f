"""Charts of collectives, from tables written by hand."""

from __future__ import annotations

import json
from typing import Any

import altair as alt
import pandas as pd
import pytest
from made.step_rows import exposed_rows, summary_rows

from overlaplab import charts
from overlaplab.analyses import each_collective, stragglers_of, worst_step
from overlaplab.charts.collectives import log_domain, log_ticks
from overlaplab.findings import collectives_lead, diagnose
from overlaplab.manifest import Link

MS = 1_000_000
LINK = Link(emulated=True, bandwidth_gbps=1.0, latency_us=200.0, world_size=2)


def spec(chart: alt.LayerChart) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(chart.to_dict(), allow_nan=False))
    return found


def rows(chart: alt.LayerChart, layer: int) -> list[dict[str, Any]]:
    found = spec(chart)
    name = found["layer"][layer].get("data", found.get("data"))["name"]
    return list(found["datasets"][name])


def row(index: int, rank: int, **changes: Any) -> dict[str, Any]:
    """One rank's part of an all-reduce of 1 MB over 8 ms, which waited for nobody."""
    return {
        "index": index,
        "rank": rank,
        "step": 1,
        "group": "0",
        "group_description": None,
        "axis": None,
        "group_size": 2,
        "kind": "all_reduce",
        "dtype": "float32",
        "bytes": 1_000_000,
        "launch_ns": 9 * MS,
        "arrived_ns": 10 * MS,
        "start_ns": 10 * MS,
        "end_ns": 18 * MS,
        "wait_ns": 0,
        "exposed_ns": 2 * MS,
        "transfer_ns": 8 * MS,
        "bus_gb_per_s": 0.125,
        "bus_is_lower_bound": False,
        "skew_ns": 0,
        "within_clock_error": True,
        "last_rank": 1,
        "doubtful": False,
        "unmatched": None,
    } | changes


def table(*found: dict[str, Any]) -> pd.DataFrame:
    types = dict.fromkeys(
        ("rank", "step", "bytes", "start_ns", "end_ns", "wait_ns", "transfer_ns", "skew_ns", "last_rank"), "Int64"
    )
    types |= {"arrived_ns": "Int64", "exposed_ns": "Int64"}
    types |= {"bus_gb_per_s": "Float64", "within_clock_error": "boolean"}
    return pd.DataFrame(found).astype(types)


def late() -> pd.DataFrame:
    """Two collectives: one in which rank 1 came 6 ms after rank 0, and one whose ranks came together."""
    own = {"skew_ns": 6 * MS, "within_clock_error": False, "transfer_ns": 2 * MS, "bus_gb_per_s": 0.5}
    return table(
        row(0, 0, wait_ns=6 * MS, **own),
        row(0, 1, start_ns=16 * MS, arrived_ns=16 * MS, **own),
        row(1, 0, kind="all_gather", bytes=2_000_000),
        row(1, 1, kind="all_gather", bytes=2_000_000),
    )


def test_each_collective_has_one_row() -> None:
    found = each_collective(late())
    assert found[["index", "ranks", "start_ns", "end_ns", "longest_ns", "wait_ns", "waits_ns"]].to_numpy().tolist() == [
        [0, 2, 10 * MS, 18 * MS, 8 * MS, 6 * MS, 6 * MS],
        [1, 2, 10 * MS, 18 * MS, 8 * MS, 0, 0],
    ]
    assert found["kind"].tolist() == ["all_reduce", "all_gather"]
    assert each_collective(table(row(0, 0, wait_ns=None)))["waits_ns"].isna().all()


def test_bandwidth_against_bytes_by_kind() -> None:
    chart = charts.bus_bandwidth(each_collective(late()), link=LINK, note="emulated link 1Gbps,200us")
    assert [(point["part"], point["x"], point["y"], point["bound"]) for point in rows(chart, 0)] == [
        ("all-reduce", 1e6, 0.5, False),
        ("all-gather", 2e6, 0.125, False),
    ]
    assert rows(chart, 1) == [{"y": 0.125}]
    found = spec(chart)
    assert found["layer"][2]["encoding"]["text"] == {"value": "emulated link 1 Gbit/s = 125 MB/s"}
    assert {axis: found["layer"][0]["encoding"][axis]["scale"]["type"] for axis in ("x", "y")} == {
        "x": "log",
        "y": "log",
    }
    assert "shape" not in found["layer"][0]["encoding"]
    assert found["title"]["text"] == (
        "Collectives of 1.00 MB and more move 312 MB/s, in the median: 250\u00a0% of the link's bandwidth"
    )
    assert found["title"]["subtitle"][-1] == "emulated link 1Gbps,200us"
    assert "2 collectives as points" in found["description"]


def test_lower_bounds_are_hollow_triangles_with_a_name() -> None:
    bound = {"bus_is_lower_bound": True, "wait_ns": None, "transfer_ns": None}
    alone = row(3, 0, bus_gb_per_s=None, unmatched="its rank's collectives differ")
    chart = charts.bus_bandwidth(each_collective(table(row(0, 0, **bound), row(1, 0), row(2, 0, bytes=None), alone)))
    found = spec(chart)["layer"][0]
    assert found["encoding"]["shape"]["scale"] == {
        "domain": ["from the transfer", "lower bound, from the duration"],
        "range": ["circle", "triangle-up"],
    }
    assert found["mark"]["filled"] is False
    assert spec(chart)["title"]["subtitle"][1:] == [
        "1 of 2 are lower bounds: how long the data took is not known without all ranks.",
        "1 collective left out: not matched on other ranks.",
        "1 collective left out: size or group unknown.",
    ]
    nothing = charts.bus_bandwidth(each_collective(table(row(0, 0, bytes=None))))
    assert spec(nothing)["title"]["text"] == "No bus bandwidth: sizes or groups of the collectives are unknown"


def test_wait_against_transfer() -> None:
    chart = charts.waits(each_collective(late()))
    found = spec(chart)
    points = rows(chart, len(found["layer"]) - 1)
    assert [(point["part"], point["x"], point["y"]) for point in points] == [
        ("all-reduce", 2.0, 6.0),
        ("all-gather", 8.0, 0.001),  # no wait at all stands at a microsecond
    ]
    assert found["title"]["text"] == "In 1 of 2 collectives a rank waited longer than the data took"
    assert found["layer"][1]["encoding"]["text"] == {"value": "wait = transfer"}


def test_late_ranks_name_who_how_often_and_what_it_cost() -> None:
    chart = charts.late_ranks(stragglers_of(late()))
    assert [(bar["rank"], bar["part"], bar["begin"], bar["end"]) for bar in rows(chart, 0)] == [
        ("1", "waited less if this rank were as late as the second-latest", 0.0, 6.0),
    ]
    assert [word["text"] for word in rows(chart, 1)] == [
        "6.0 ms; last in 1 of 2",
        "never last in 2",
    ]
    assert spec(chart)["title"]["text"] == "Ranks waited 6.0 ms for those late by more than the clocks' error"


def test_many_collectives_share_points_and_none_vanishes() -> None:
    many = table(*(row(index, 0, bytes=1000 + index) for index in range(2000)), row(2000, 0, bytes=10**9))
    points = rows(charts.bus_bandwidth(each_collective(many)), 0)
    assert len(points) < 100
    assert sum(point["number"] for point in points) == 2001
    assert points[-1]["who"] == "number 2000"


def test_times_that_were_not_recorded_are_unknown() -> None:
    untimed = late().assign(start_ns=pd.NA, end_ns=pd.NA, wait_ns=pd.NA)
    lead = collectives_lead(untimed, None)
    assert lead.startswith("2 collectives. How long ranks spent in them, and how much of that is waiting, is unknown: ")
    assert "ms" not in lead


def test_the_lead_names_the_rank_that_was_waited_for() -> None:
    step = summary_rows((0, 4, 100, 30))
    found = diagnose(step, worst_step(step), exposed_rows((0, 4, "straggler wait", 5, 1)), step)
    both = late()
    both.loc[both["index"] == 1, ["arrived_ns", "start_ns", "end_ns"]] += 20 * MS  # or they would be of one kernel
    said = (
        "2 collectives: of the 26.0 ms that 2 ranks spent in them, 6.0 ms was spent waiting for the last rank to"
        " arrive."
    )
    assert collectives_lead(both, None) == said
    hidden = step.assign(exposed_wait_ns=pd.array([2 * MS], dtype="Int64"))
    assert collectives_lead(both, None, hidden) == f"{said.removesuffix('.')}, 2.0 ms of it exposed."
    unknown = step.assign(exposed_wait_ns=pd.array([None], dtype="Int64"))
    assert collectives_lead(both, None, unknown) == said
    assert collectives_lead(both, found) == (
        f"{said} In step 4 rank 0's longest waits were for rank 1: 5.0 ms of its exposed time."
    )
    some = pd.concat([both, table(row(2, 0, wait_ns=None), row(2, 1, wait_ns=None)).assign(start_ns=0)])
    assert collectives_lead(some, None).startswith(
        "3 collectives: of the 26.0 ms that 2 ranks spent in the 2 whose waits are known, 6.0 ms was spent waiting"
    )
    alone = table(row(0, 0, wait_ns=None))
    assert "is unknown: that takes the traces of all" in collectives_lead(alone)


@pytest.mark.parametrize(
    ("values", "low", "high"), [([1.0, 1000.0], 0.5, 1500.0), ([5.0], 2.0, 11.0), ([0.0, float("nan")], 0.9, 10.1)]
)
def test_a_logarithmic_domain_holds_all_values(values: list[float], low: float, high: float) -> None:
    domain = log_domain(values)
    assert low < domain[0] <= domain[1] < high
    assert all(domain[0] < value < domain[1] for value in values if value > 0)
    ticks = log_ticks(domain)
    assert 2 <= len(ticks) <= 12
    assert all(domain[0] <= tick <= domain[1] for tick in ticks)


def test_ticks_of_many_decades_are_few() -> None:
    assert log_ticks((0.5, 2e5)) == [1.0, 10.0, 100.0, 1e3, 1e4, 1e5]
    assert log_ticks((1.0, 100.0)) == [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
    assert len(log_ticks((1e-9, 1e12))) <= 12
