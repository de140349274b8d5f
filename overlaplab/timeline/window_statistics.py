"""What happened within a window of a timeline, computed from raw events rather than merged marks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd
from msgspec import Struct
from numpy.typing import NDArray

from overlaplab.evidence.arrays import take_values
from overlaplab.intervals import clip, intersect, total, union
from overlaplab.timeline.level_of_detail import added_ns, rows_in_window
from overlaplab.timeline.marks import MarkKind, Timeline, mark_names
from overlaplab.vocabulary import label_fields


class WindowStatistics(Struct, frozen=True, kw_only=True):
    """The window [start_ns, end_ns), in ns from the run's zero, in numbers."""

    start_ns: int
    end_ns: int
    ranks: pd.DataFrame
    """Each rank's totals, as `window_totals` gives them."""
    kernels: pd.DataFrame
    """The ten names with most time on streams (on the CPU: threads), by `busy_ns`: `name` (of the engine's labels only
    the word and the kind), `part` (a `MarkKind`, the one with most of their time), `events` (how many overlap the
    window), `busy_ns` (the union of their times within the window on each rank, summed over ranks)."""
    causes: pd.DataFrame
    """The window's exposed time by `part` (a `MarkKind`), the most expensive first: `exposed_ns`, summed over ranks."""
    events: int
    """How many events of streams overlap the window."""


def timeline_window(
    timeline: Timeline, start_ns: int, end_ns: int, ranks: Collection[int] | None = None
) -> WindowStatistics:
    """Statistics of the window [start_ns, end_ns) of these ranks, or of all."""
    lanes = chosen_rows(timeline.lanes, ranks)
    streams = lanes.loc[lanes["kind"] == "stream", "lane"].to_numpy()
    here = timeline.events.iloc[rows_in_window(timeline.events, start_ns, end_ns, streams)]
    return WindowStatistics(
        start_ns=start_ns,
        end_ns=end_ns,
        ranks=window_totals(timeline, start_ns, end_ns, ranks),
        kernels=_kernels(here, start_ns, end_ns).head(10),
        causes=_causes(timeline.events, lanes, start_ns, end_ns),
        events=len(here),
    )


def chosen_rows(table: pd.DataFrame, ranks: Collection[int] | None) -> pd.DataFrame:
    """The rows of these ranks, or of all; those without a rank are always included."""
    return table if ranks is None else table[table["rank"].isin(list(ranks)) | table["rank"].isna()]


def window_totals(timeline: Timeline, start_ns: int, end_ns: int, ranks: Collection[int] | None) -> pd.DataFrame:
    """What each rank did within the window, from its intervals: one row per rank.

    Columns: `rank` (Int64), `span_ns`, `busy_ns` (anything), `compute_ns`, `comm_ns`, `memory_only_ns` (nothing else at
    the same time), `overlapped_ns` (compute and communication), `exposed_comm_ns`, `idle_ns`.
    """
    rows = []
    for rank, rank_activity, origin in timeline.activities:
        if ranks is not None and rank is not None and rank not in ranks:
            continue
        compute, comm, memory = (
            clip(intervals, start_ns + origin, end_ns + origin)
            for intervals in (rank_activity.compute, rank_activity.communication, rank_activity.memory)
        )
        both = total(intersect(compute, comm))
        working = total(compute) + total(comm) - both
        busy = total(union(*np.concatenate((compute, comm, memory)).T))
        span = end_ns - start_ns
        rows.append(
            (rank, span, busy, total(compute), total(comm), busy - working, both, total(comm) - both, span - busy)
        )
    columns = ["rank", "span_ns", "busy_ns", "compute_ns", "comm_ns", "memory_only_ns"]
    columns += ["overlapped_ns", "exposed_comm_ns", "idle_ns"]
    return pd.DataFrame(rows, columns=columns).astype({"rank": "Int64"} | dict.fromkeys(columns[1:], "int64"))


def _causes(events: pd.DataFrame, lanes: pd.DataFrame, start_ns: int, end_ns: int) -> pd.DataFrame:
    """The exposed lanes' marks within the window, by part; those of one lane do not overlap."""
    exposed = lanes.loc[lanes["kind"] == "exposed", "lane"].to_numpy()
    here = events.iloc[rows_in_window(events, start_ns, end_ns, exposed)]
    took = here["end_ns"].clip(upper=end_ns) - here["start_ns"].clip(lower=start_ns)
    sums = took.groupby(here["part"]).sum().sort_values(ascending=False, kind="stable")
    return pd.DataFrame({"part": mark_names(sums.index), "exposed_ns": sums.to_numpy(np.int64)})


def _kernels(events: pd.DataFrame, start_ns: int, end_ns: int) -> pd.DataFrame:
    """The names of these events, those with the most time first."""
    names = events["name"].array
    texts, of_name = np.unique(np.array([_group(str(name)) for name in names.categories], object), return_inverse=True)
    group = take_values(of_name, names.codes, len(texts))
    begins, ends = (np.clip(events[name].to_numpy(), start_ns, end_ns) for name in ("start_ns", "end_ns"))
    trace = events["trace"].to_numpy()
    key = group * (int(trace.max(initial=0)) + 1) + trace
    order = np.argsort(begins, kind="stable")
    order = order[np.argsort(_narrow_keys(key[order]), kind="stable")]
    group, adds = group[order], added_ns(key[order], begins[order], ends[order])
    shares = np.zeros((len(texts) + 1, len(MarkKind)), dtype=np.int64)
    np.add.at(shares, (group, events["part"].to_numpy()[order]), adds + 1)  # +1: instants count as well
    counts = np.bincount(group, minlength=len(shares))
    present = np.flatnonzero(counts)
    table = pd.DataFrame(
        {
            "name": take_values(texts, present, ""),  # the last stands for a missing name
            "part": mark_names(shares[present].argmax(axis=1)),
            "events": counts[present],
            "busy_ns": shares[present].sum(axis=1) - counts[present],
        }
    )
    return table.sort_values(["busy_ns", "name"], ascending=[False, True], kind="stable", ignore_index=True)


def _narrow_keys(keys: NDArray[np.int64]) -> NDArray[Any]:
    """The keys in 16 bits if they fit, which numpy sorts fastest."""
    return keys.astype(np.int16) if len(keys) and keys.min() >= -(1 << 15) and keys.max() < 1 << 15 else keys


def _group(name: str) -> str:
    """The name to count an event under: without the numbers in the engine's labels."""
    label = label_fields(name)
    if label is None:
        return name
    word, fields = label
    return f"engine::{word} {fields['kind']}" if "kind" in fields else f"engine::{word}"
