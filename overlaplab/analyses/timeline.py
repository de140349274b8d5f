"""What happened when, lane by lane, at a level of detail that a screen can draw.

`timeline_events` makes a run's table once; `timeline_view` takes a window of it and merges what is too close
together to be told apart. No event vanishes: each one that touches the window is inside exactly one mark and
counted there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.analyses.clocks import zero_of
from overlaplab.analyses.level_of_detail import merged_marks
from overlaplab.events import (
    Activity,
    Kind,
    Run,
    Trace,
    activity,
    classify,
    lanes,
    matching,
    rule_of,
    windows,
)
from overlaplab.intervals import clip, intersect, subtract, total
from overlaplab.vocabulary import ANNOTATION_CATEGORIES, Rule, label_fields

__all__ = ["MARKS", "Mark", "Timeline", "View", "timeline_events", "timeline_view"]

MARKS = 1500
"""Marks in a view: what a browser redraws within a third of a second."""

_PHASES = ("forward", "backward", "optimizer")


class Mark(StrEnum):
    """What a mark on the timeline stands for; where a mark's time is shared equally, the later word here wins."""

    STEP = "step"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    MEMORY = "memory"
    COMPUTE = "compute"
    COMMUNICATION = "communication"
    EXPOSED = "exposed communication"


_ORDER = tuple(Mark)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A run's marks before any merging; times in ns from the run's zero."""

    lanes: pd.DataFrame
    """One row per lane, top to bottom: `lane` (its number), `label`, `rank` (Int64)."""
    events: pd.DataFrame
    """Columns `lane`, `part` (a place in `Mark`), `start_ns`, `end_ns` (int64), `name` (category), by lane
    and start.
    """
    steps: pd.DataFrame
    """Columns `rank` (Int64), `step` (Int64), `start_ns`, `end_ns`."""
    activities: tuple[tuple[int | None, Activity, int], ...]
    """Rank, activity (absolute ns) and the run's zero by the rank's clock, for figures from the raw intervals."""

    @property
    def extent(self) -> tuple[int, int]:
        """From the first step's start to the last one's end, or of all events where there is no step."""
        table = self.steps if len(self.steps) else self.events
        if table.empty:
            return 0, 1
        return int(table["start_ns"].min()), int(table["end_ns"].max())


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A window of a timeline, drawn with few marks; times in ns from the run's zero."""

    start_ns: int
    end_ns: int
    marks: pd.DataFrame
    """Columns `lane`, `label`, `rank`, `part` (str), `start_ns`, `end_ns` (cut to the window), `events`
    (their number), `busy_ns` (the union of their times), `name` (of the longest)."""
    lanes: pd.DataFrame
    """`Timeline.lanes` of the chosen ranks."""
    totals: pd.DataFrame
    """One row per rank: `rank`, `span_ns`, `compute_ns`, `comm_ns`, `overlapped_ns`, `exposed_comm_ns`,
    within the window, from the raw intervals."""


def timeline_events(run: Run) -> Timeline:
    """The lanes and marks of a run: per rank its steps, phases, streams or threads, and exposed communication.

    All by the first rank's clock (see `clocks`).
    """
    lane_rows: list[tuple[str, int | None]] = []
    tables: list[pd.DataFrame] = []
    steps: list[pd.DataFrame] = []
    activities: list[tuple[int | None, Activity, int]] = []
    for trace in run.traces:
        found, zero = activity(trace), zero_of(run, trace)
        activities.append((trace.rank, found, zero))
        found_steps = windows(trace)
        found_steps[["start_ns", "end_ns"]] -= zero
        steps.append(found_steps.assign(rank=pd.array([trace.rank] * len(found_steps), dtype="Int64")))
        for label, table in _rank_lanes(trace, zero, found, found_steps):
            tables.append(table.assign(lane=len(lane_rows)))
            lane_rows.append((label, trace.rank))
    events = pd.concat(tables, ignore_index=True) if tables else _table([], [], [], 0)
    events["name"] = events["name"].astype("category")
    if "lane" not in events:
        events["lane"] = 0
    return Timeline(
        lanes=pd.DataFrame(
            {
                "lane": range(len(lane_rows)),
                "label": [label for label, _ in lane_rows],
                "rank": pd.array([rank for _, rank in lane_rows], dtype="Int64"),
            }
        ),
        events=events.sort_values(["lane", "start_ns", "end_ns"], ignore_index=True, kind="stable"),
        steps=pd.concat(steps, ignore_index=True)
        if steps
        else pd.DataFrame({"rank": [], "step": [], "start_ns": [], "end_ns": []}, dtype="Int64"),
        activities=tuple(activities),
    )


def timeline_view(
    timeline: Timeline,
    *,
    start_ns: int | None = None,
    end_ns: int | None = None,
    ranks: frozenset[int] | None = None,
    marks: int = MARKS,
) -> View:
    """The window [start_ns, end_ns) of the chosen ranks in at most `marks` marks (one per lane, if lanes are more)."""
    start, end = timeline.extent
    start, end = start if start_ns is None else start_ns, end if end_ns is None else end_ns
    end = max(end, start + 1)
    chosen = timeline.lanes
    if ranks is not None:
        chosen = chosen[chosen["rank"].isin(ranks) | chosen["rank"].isna()]
    events = timeline.events
    inside = (
        (events["start_ns"].to_numpy() < end)
        & (events["end_ns"].to_numpy() >= start)
        & ((events["end_ns"].to_numpy() > start) | (events["start_ns"].to_numpy() == start))
        & events["lane"].isin(chosen["lane"]).to_numpy()
    )
    cut = events[inside]
    merged = merged_marks(cut, start, end, marks)
    merged["part"] = [_ORDER[code].value for code in merged["part"]]
    merged = merged.merge(chosen, on="lane", how="left")
    return View(
        start_ns=start,
        end_ns=end,
        marks=merged,
        lanes=chosen.reset_index(drop=True),
        totals=_totals(timeline, start, end, ranks),
    )


def _rank_lanes(trace: Trace, zero: int, found: Activity, steps: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """One rank's lanes from top to bottom: steps, phases, streams or threads, exposed."""
    rank = "rank ?" if trace.rank is None else f"rank {trace.rank}"
    lanes_: list[tuple[str, pd.DataFrame]] = []
    named = ["the trace" if pd.isna(step) else f"step {step}" for step in steps["step"]]
    lanes_.append((f"{rank} steps", _table(steps["start_ns"], steps["end_ns"], named, Mark.STEP)))
    phases = _phases(trace, zero)
    if len(phases):
        lanes_.append((f"{rank} phases", phases))
    lanes_ += [(f"{rank} {label}", table) for label, table in _counted_lanes(trace, zero)]
    gaps = subtract(found.communication, found.compute) - zero
    names = ["communication while nothing computes"] * len(gaps)
    lanes_.append((f"{rank} exposed", _table(gaps[:, 0], gaps[:, 1], names, Mark.EXPOSED)))
    return lanes_


def _phases(trace: Trace, zero: int) -> pd.DataFrame:
    """The engine's forward, backward and optimizer ranges on the host."""
    chosen = matching(trace.events["name"], lambda text: (label_fields(text) or ("", {}))[0] in _PHASES)
    rows = trace.events[chosen & trace.events["category"].isin(ANNOTATION_CATEGORIES).to_numpy()]
    words = [(label_fields(name) or ("", {}))[0] for name in rows["name"]]
    starts = rows["ts_ns"] - zero
    table = _table(starts, starts + rows["dur_ns"], rows["name"].astype(str), Mark.STEP)
    table["part"] = np.array([_ORDER.index(Mark(word)) for word in words], dtype=np.int64)
    return table


def _counted_lanes(trace: Trace, zero: int) -> list[tuple[str, pd.DataFrame]]:
    """What the rule counts, by stream on a GPU and by thread on the CPU; the busiest compute first, then the rest."""
    if rule_of(trace) is Rule.UNRECORDED:
        return []
    kinds = classify(trace)
    counted = kinds != Kind.NOTHING
    rows, kinds = trace.events[counted], kinds[counted]
    starts = rows["ts_ns"].to_numpy() - zero
    table = _table(starts, starts + rows["dur_ns"].to_numpy(), rows["name"].astype(str).to_numpy(), Mark.STEP)
    table["part"] = [_ORDER.index(Mark(kind.value)) for kind in kinds]
    gpu = rule_of(trace) is Rule.GPU
    where = _streams(rows) if gpu else lanes(rows)
    found = []
    for lane in np.unique(where):
        here = where == lane
        own = table[here].sort_values("start_ns", kind="stable")
        first = rows[here].iloc[0]
        label = _stream_label(first, rows) if gpu else f"thread {first['tid']}"
        took = (own["end_ns"] - own["start_ns"]).groupby(own["part"]).sum()
        main = int(took.idxmax())
        found.append((main != _ORDER.index(Mark.COMPUTE), main, -int(took.max()), label, own))
    found.sort(key=lambda lane: lane[:4])
    return [(label, own if gpu else _outermost(own)) for _, _, _, label, own in found]


def _streams(rows: pd.DataFrame) -> NDArray[np.int64]:
    """A number per event that tells its (device, stream)."""
    device, stream = rows["device"].to_numpy(dtype=np.int64), rows["stream"].to_numpy(dtype=np.int64)
    where: NDArray[np.int64] = device * 1_000_003 + stream
    return where


def _stream_label(row: pd.Series, rows: pd.DataFrame) -> str:
    device = f"device {row['device']} " if rows["device"].nunique() > 1 else ""
    return f"{device}stream {row['stream']}"


def _outermost(table: pd.DataFrame) -> pd.DataFrame:
    """Operators call operators: a thread's lane shows the outer ones of each kind, which cover the others' time."""
    table = table.sort_values(["start_ns", "end_ns"], ascending=[True, False], kind="stable")
    keep = np.ones(len(table), dtype=bool)
    ends, parts = table["end_ns"].to_numpy(), table["part"].to_numpy()
    for part in np.unique(parts):
        rows = np.flatnonzero(parts == part)
        reach = np.maximum.accumulate(ends[rows])
        keep[rows[1:]] = ends[rows[1:]] > reach[:-1]
    return table[keep]


def _totals(timeline: Timeline, start: int, end: int, ranks: frozenset[int] | None) -> pd.DataFrame:
    """What each rank did within the window, from its intervals."""
    rows = []
    for rank, found, origin in timeline.activities:
        if ranks is not None and rank is not None and rank not in ranks:
            continue
        compute, comm = (
            clip(intervals, start + origin, end + origin) for intervals in (found.compute, found.communication)
        )
        both = total(intersect(compute, comm))
        rows.append((rank, end - start, total(compute), total(comm), both, total(comm) - both))
    columns = ["rank", "span_ns", "compute_ns", "comm_ns", "overlapped_ns", "exposed_comm_ns"]
    return pd.DataFrame(rows, columns=columns).astype({"rank": "Int64"})


def _table(starts: object, ends: object, names: object, part: Mark | int) -> pd.DataFrame:
    """Rows of one kind of mark."""
    table = pd.DataFrame(
        {
            "start_ns": np.asarray(starts, dtype=np.int64),
            "end_ns": np.asarray(ends, dtype=np.int64),
            "name": np.asarray(names, dtype=object),
        }
    )
    table["part"] = np.int64(_ORDER.index(part) if isinstance(part, Mark) else part)
    return table
