"""A rank's collectives where no device was recorded: on the engine's emulated link, or on plain gloo."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.analyses.labels import Label
from overlaplab.analyses.recorded_rows import (
    UNKNOWN_NS,
    around_any,
    blank_rows,
    fill,
    fill_from_label,
    fill_launch,
    fill_told,
    kinds_by_name,
    label_rows,
    not_run,
    stacked,
)
from overlaplab.analyses.told import around
from overlaplab.events import Trace, lanes, matching

__all__ = ["on_gloo", "on_link"]


def on_link(trace: Trace, labels: Sequence[Label]) -> pd.DataFrame:
    """The emulated link: a call on the caller's thread, joined by its number with what the link's thread did.

    The link's own gloo ranges run while it holds a collective, and are part of that; others are on their own.
    """
    calls = label_rows([label for label in labels if label.word == "launch"])
    comms = label_rows([label for label in labels if label.word == "comm"])
    last = calls.drop_duplicates("sequence", keep="last")
    call = pd.Index(last["sequence"]).get_indexer(pd.Index(comms["sequence"]))
    call = np.append(last.index.to_numpy(), -1)[call]
    carried = blank_rows(len(comms))
    fill_from_label(carried, comms, np.arange(len(comms)))
    carried[["start_ns", "end_ns"]] = comms[["start_ns", "end_ns"]].to_numpy()
    fill_launch(carried, calls, call)
    carried["arrived_ns"] = _arrivals(carried, comms["lane"])
    alone = _gloo_ranges(trace)
    inside = around_any(comms, alone["start_ns"]) >= 0
    return stacked(carried, not_run(calls, call), alone[~inside])


def _arrivals(carried: pd.DataFrame, thread: pd.Series) -> pd.Series:
    """When each was launched, or the link got free of the one before, whichever is later, as engine/carrier.py does."""
    order = carried.sort_values("start_ns", kind="stable")
    before = order["end_ns"].groupby(thread).shift(fill_value=UNKNOWN_NS).reindex(carried.index)
    starts = carried["start_ns"]
    arrived = carried["launch_ns"].where(carried["launch_ns"] > before, before).where(lambda at: at < starts, starts)
    return arrived.where(carried["launch_ns"] != UNKNOWN_NS, starts)


def on_gloo(trace: Trace, labels: Sequence[Label]) -> pd.DataFrame:
    """Plain gloo: c10d's operators, around them the engine's labels; gloo's own ranges in the order of the calls."""
    rows = np.flatnonzero(matching(trace.events["name"], lambda text: text.startswith("c10d::")))
    labelled = label_rows([label for label in labels if label.word == "collective"])
    ran = _gloo_ranges(trace)
    if len(rows):
        events = trace.events.iloc[rows]
        starts = events["ts_ns"].to_numpy(np.int64)
        calls = pd.DataFrame(
            {"start_ns": starts, "end_ns": starts + events["dur_ns"].to_numpy(np.int64), "lane": lanes(events)}
        )
        in_label = around(labelled, calls["lane"].to_numpy(), starts)
    else:
        calls, in_label = labelled[["start_ns", "end_ns", "lane"]], np.arange(len(labelled))
    order = np.argsort(calls["start_ns"].to_numpy(), kind="stable")
    calls, in_label, rows = (
        calls.iloc[order].reset_index(drop=True),
        in_label[order],
        rows[order] if len(rows) else rows,
    )
    found = blank_rows(len(calls))
    fill_launch(found, calls, np.arange(len(calls)))
    fill_from_label(found, labelled, in_label)
    if len(rows):
        fill_told(found, trace, rows)
        named = kinds_by_name(trace.events["name"].iloc[rows])
        found["named"] = named
        found["kind"] = found["kind"].where(found["kind"] != "", named)
    skipped = _begun_before(calls["start_ns"].to_numpy(), ran[["start_ns", "end_ns"]].to_numpy())
    pair = skipped + np.arange(len(calls))
    pair = np.where(pair < len(ran), pair, -1)
    for name in ("start_ns", "end_ns"):
        found.loc[pair >= 0, name] = ran[name].to_numpy()[pair[pair >= 0]]
    found["arrived_ns"] = found["start_ns"]
    fill(found, ran, pair)
    return stacked(found, not_run(labelled, in_label), ran.iloc[:skipped])


def _begun_before(called: NDArray[np.int64], ran: NDArray[np.int64]) -> int:
    """How many of gloo's ranges were launched before the recording began: it starts them in the order of the calls.

    A recording may begin after a call whose collective it holds, and end before the collective of a call. So the
    first few that ran are left out, as few as let none start before its call, and the last calls may have none.
    """
    for skipped in range(max(len(ran) - len(called), 0), len(ran) + 1):
        rest = ran[skipped:]
        if (rest[:, 0] >= called[: len(rest)]).all():
            return skipped
    raise AssertionError("an empty rest always fits")


def _gloo_ranges(trace: Trace) -> pd.DataFrame:
    """Gloo's own ranges, as collectives whose launch is not known, in order of start."""
    rows = np.flatnonzero(matching(trace.events["name"], lambda text: text.startswith("gloo:")))
    events = trace.events.iloc[rows]
    found = blank_rows(len(rows))
    found["start_ns"] = events["ts_ns"].to_numpy(np.int64)
    found["end_ns"] = found["start_ns"] + events["dur_ns"].to_numpy(np.int64)
    found["arrived_ns"] = found["start_ns"]
    fill_told(found, trace, rows)
    found["named"] = kinds_by_name(events["name"])
    found["kind"] = found["kind"].where(found["kind"] != "", found["named"])
    return found
