"""Bytes of gathered parameters over time, against counting at every moment."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlaplab.analyses import gathered_bytes, schedule_steps
from overlaplab.analyses.sharding.schedule import _COLUMNS, _TEXTS


def table_of(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """A schedule of one rank's step 3; fields that a row does not give are null."""
    filled = [{"rank": 0, "step": 3, "microbatch": 0, "phase": "forward", "resharded_bytes": 0, **row} for row in rows]
    return pd.DataFrame(filled, columns=list(_COLUMNS)).astype(dict.fromkeys(set(_COLUMNS) - {*_TEXTS}, "Int64"))


def held(start: int, end: int | None, size: int | None = 8, layer: int | None = 0) -> dict[str, Any]:
    return {"held_ns": start, "free_ns": end, "bytes": size, "layer": layer}


def curve(rows: list[dict[str, Any]]) -> list[list[Any]]:
    return gathered_bytes(table_of(rows))[["time_ns", "bytes", "layers"]].to_numpy().tolist()


def test_a_curve() -> None:
    rows = [held(10, 40, 8), held(20, 50, 4, layer=None), held(50, None, 2)]
    assert curve(rows) == [[0, 0, 0], [10, 8, 1], [20, 12, 1], [40, 4, 0], [50, 2, 1]]
    (step,) = schedule_steps(table_of(rows)).to_dict("records")
    assert (step["peak_gathered_bytes"], step["peak_ns"], step["peak_layers"]) == (12, 20, 1)


def test_what_is_freed_when_another_is_gathered_makes_no_peak() -> None:
    assert curve([held(10, 20), held(20, 30)]) == [[0, 0, 0], [10, 8, 1], [20, 8, 1], [30, 0, 0]]


def test_a_gather_before_the_window_begins_the_curve_there() -> None:
    assert curve([held(-5, 20)]) == [[-5, 0, 0], [-5, 8, 1], [20, 0, 0]]


def test_unknown_bytes_leave_the_layers() -> None:
    rows = [held(10, 40, None), held(20, 50, 4)]
    assert [[time, layers] for time, _, layers in curve(rows)] == [[0, 0], [10, 1], [20, 2], [40, 1], [50, 0]]
    table = table_of(rows)
    assert gathered_bytes(table)["bytes"].isna().all()
    (step,) = schedule_steps(table).to_dict("records")
    assert (step["peak_layers"], step["peak_ns"]) == (2, 20)
    assert pd.isna(step["peak_gathered_bytes"])


def test_every_rank_and_step_has_a_curve_of_its_own() -> None:
    table = table_of([held(10, 20) | {"rank": rank, "step": step} for rank in (None, 1) for step in (3, 4)])
    found = gathered_bytes(table)
    assert [[row["time_ns"], row["bytes"]] for row in found.to_dict("records")] == [[0, 0], [10, 8], [20, 0]] * 4
    assert found.dtypes.astype(str).unique().tolist() == ["Int64"]
    assert gathered_bytes(table_of([])).columns.tolist() == [
        *("rank", "step", "time_ns", "bytes", "resharded_bytes", "layers"),
    ]


gathers = st.tuples(
    *(st.integers(-50, 50), st.none() | st.integers(0, 60), st.integers(1, 9), st.sampled_from([None, 0, 1])),
    st.none() | st.integers(0, 20),
)


@settings(deadline=None)
@given(st.lists(gathers, min_size=1, max_size=12))
def test_the_curve_is_what_counting_at_every_moment_gives(
    drawn: list[tuple[int, int | None, int, int | None, int | None]],
) -> None:
    """The last number of a gather is for how long half of it stays after its free."""
    rows = [
        held(start, None if lasts is None else start + lasts, size, layer) for start, lasts, size, layer, _ in drawn
    ]
    for row, (*_, stays) in zip(rows, drawn, strict=True):
        if stays is not None and row["free_ns"] is not None:
            row |= {"resharded_bytes": row["bytes"] // 2, "resharded_until_ns": row["free_ns"] + stays}

    def now(at: int) -> tuple[int, int]:
        there = [r for r in rows if r["held_ns"] <= at and (r["free_ns"] is None or at < r["free_ns"])]
        parts = [r for r in rows if r.get("resharded_bytes") and r["free_ns"] <= at < r["resharded_until_ns"]]
        full = sum(r["bytes"] for r in there), sum(r["layer"] is not None for r in there)
        return full[0] + sum(r["resharded_bytes"] for r in parts), full[1]

    table = table_of(rows)
    points = gathered_bytes(table).to_dict("records")
    times = [point["time_ns"] for point in points]
    assert times == sorted(times)
    for at in range(-60, 120):
        so_far = [p for p in points if p["time_ns"] <= at]
        told = (so_far[-1]["bytes"], so_far[-1]["layers"]) if so_far else (0, 0)
        assert told == now(at)
    (step,) = schedule_steps(table).to_dict("records")
    peak = max(now(at)[0] for at in range(-60, 120))
    assert step["peak_gathered_bytes"] == peak
    assert now(step["peak_ns"]) == (peak, step["peak_layers"])


@pytest.mark.parametrize(("waits", "total"), [([], None), ([None], None), ([5, None, 7], 12)])
def test_waits_add_up_as_far_as_they_are_known(waits: list[int | None], total: int | None) -> None:
    table = table_of([held(0, 1) | {"wait_ns": wait} for wait in waits] or [held(0, 1)])
    found = schedule_steps(table)["wait_ns"].iloc[0]
    assert pd.isna(found) if total is None else found == total
