"""What happened when, lane by lane, at a level of detail that a screen can draw.

`timeline_events` builds a run's table once. `timeline_view` cuts a window out of it and merges events that are too
close to be distinguished. No event vanishes: each one that overlaps the window is counted in exactly one mark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from msgspec import Struct, field
from pandas.api.types import union_categoricals

from overlaplab.analyses.exposed import exposed_moments
from overlaplab.causes import SHORT_PAUSE_NS
from overlaplab.events import Activity, Run, activity, step_windows, window_bounds
from overlaplab.evidence.arrays import int_or_none
from overlaplab.evidence.clocks import clocks, run_zero_ns
from overlaplab.timeline.host_lanes import has_host_lanes
from overlaplab.timeline.label_lanes import label_lanes
from overlaplab.timeline.level_of_detail import merged_marks, rows_in_window
from overlaplab.timeline.marks import Lane, MarkKind, Timeline, encode_names, mark_names, marks_table
from overlaplab.timeline.rank_lanes import rank_lanes
from overlaplab.timeline.window_statistics import chosen_rows, window_totals

MARK_LIMIT = 1500
"""The default number of marks in a view: a browser redraws them within a third of a second."""


class View(Struct, frozen=True, kw_only=True):
    """A window of a timeline, drawn with few marks; times in ns from the run's zero."""

    start_ns: int
    end_ns: int
    marks: pd.DataFrame
    """Columns `lane`, `label`, `rank`, `kind`, `part` (str), `collective` (-1 unless all events are of the same one),
    `start_ns`, `end_ns` (cut to the window), `events` (their number), `busy_ns` (the union of their times), `name` (of
    the longest)."""
    lanes: pd.DataFrame
    """`Timeline.lanes` of the chosen ranks."""
    steps: pd.DataFrame = field(default_factory=pd.DataFrame)
    """`Timeline.steps` of the chosen ranks that overlap the window, not cut."""
    offsets: tuple[tuple[int | None, int], ...] = ()
    """`Timeline.offsets` of the chosen ranks."""
    totals: pd.DataFrame
    """What each rank did within the window, from the raw intervals: see `window_totals`."""


def _cause(row: Mapping[Any, Any]) -> str:
    return str(row["cause"])


def timeline_events(
    run: Run, moments: pd.DataFrame | None = None, exposed_name: Callable[[Mapping[Any, Any]], str] = _cause
) -> Timeline:
    """The lanes and marks of a run: per rank its steps, phases, labels, streams or threads, and exposed communication.

    `moments`: the stretches of exposed communication and their causes, where they are not `exposed_moments`.
    `exposed_name` names one, given its row. All times are by the first rank's clock (see `clocks`).
    """
    moments = _name_moments(exposed_moments(run) if moments is None else moments, exposed_name)
    placed_lanes: list[tuple[int, Lane]] = []
    steps: list[pd.DataFrame] = []
    activities: list[tuple[int | None, Activity, int]] = []
    for trace in run.traces:
        zero = run_zero_ns(run, trace)
        activities.append((trace.rank, activity(trace), zero))
        windows = step_windows(trace)
        starts, ends = window_bounds(windows)
        rank_steps = pd.DataFrame(
            {"step": [window.step for window in windows], "start_ns": starts - zero, "end_ns": ends - zero}
        ).astype({"step": "Int64"})
        steps.append(rank_steps.assign(rank=pd.array([trace.rank] * len(windows), dtype="Int64")))
    for place, labels in enumerate(label_lanes(run, steps)):
        rank = run.traces[place].rank
        rank_moments = moments if rank is None else moments[moments["rank"] == rank]
        placed_lanes += [
            (place, lane) for lane in rank_lanes(run, place, activities[place][2], steps[place], labels, rank_moments)
        ]
    ranks = [run.traces[place].rank for place, _ in placed_lanes]
    named = zip(ranks, placed_lanes, strict=True)
    lanes = {
        "lane": range(len(placed_lanes)),
        "label": [f"rank {'?' if rank is None else rank} {lane.label}" for rank, (_, lane) in named],
        "rank": pd.array(ranks, dtype="Int64"),
        "kind": [lane.kind for _, lane in placed_lanes],
    }
    return Timeline(
        lanes=pd.DataFrame(lanes),
        events=_join_marks(placed_lanes),
        steps=pd.concat(steps, ignore_index=True)
        if steps
        else pd.DataFrame({"step": [], "start_ns": [], "end_ns": [], "rank": []}, dtype="Int64"),
        activities=tuple(activities),
        offsets=_offsets(run),
        coordinates=_coordinates(run),
        hosts=tuple(place for place, trace in enumerate(run.traces) if has_host_lanes(trace)),
    )


def _coordinates(run: Run) -> dict[int, str]:
    """Where each rank is on a mesh of several axes: `dp 1, tp 0`; empty for one axis."""
    mesh = None if run.manifest is None else run.manifest.axes
    if mesh is None or mesh.is_one_axis:
        return {}
    ranks = [trace.rank for trace in run.traces if trace.rank is not None and trace.rank < mesh.size]
    several = [axis for axis, size in mesh.axes.items() if size > 1]
    return {rank: ", ".join(f"{axis} {mesh.coordinates(rank)[axis]}" for axis in several) for rank in ranks}


def _name_moments(moments: pd.DataFrame, exposed_name: Callable[[Mapping[Any, Any]], str]) -> pd.DataFrame:
    """The moments with a `name` (category); what has one cause and collective, and is short or not, is named once."""
    keys = ["rank", "step", "cause", "collective", moments["exposed_ns"] < SHORT_PAUSE_NS]
    alike = moments.groupby(keys, dropna=False, sort=False).ngroup().to_numpy()
    firsts = moments.iloc[np.unique(alike, return_index=True)[1]]
    rows = zip(*(firsts[name].tolist() for name in firsts), strict=True)  # a third of what `to_dict` takes
    names = [exposed_name(dict(zip(firsts.columns, row, strict=True))) for row in rows]
    return moments.assign(name=encode_names(names)[alike])


def _join_marks(placed_lanes: list[tuple[int, Lane]]) -> pd.DataFrame:
    """All lanes' marks as `Timeline.events`."""
    if not placed_lanes:
        return marks_table([], [], [], MarkKind.STEP).assign(lane=0, trace=0)
    tables = [lane.marks for _, lane in placed_lanes]
    names = [name for name in map(str, tables[0]) if name != "name"]
    columns: dict[str, Any] = {name: np.concatenate([table[name].to_numpy() for table in tables]) for name in names}
    sizes = [len(table) for table in tables]
    columns["lane"] = np.repeat(np.arange(len(placed_lanes)), sizes)
    columns["trace"] = np.repeat([place for place, _ in placed_lanes], sizes)
    columns["name"] = union_categoricals([table["name"].array for table in tables])
    return pd.DataFrame(columns, copy=False)


def timeline_view(
    timeline: Timeline,
    *,
    start_ns: int | None = None,
    end_ns: int | None = None,
    ranks: frozenset[int] | None = None,
    marks: int = MARK_LIMIT,
) -> View:
    """The window [start_ns, end_ns) of the chosen ranks in at most `marks` marks, or one per lane."""
    start, end = timeline.extent
    start, end = start if start_ns is None else start_ns, end if end_ns is None else end_ns
    end = max(end, start + 1)
    chosen, steps = chosen_rows(timeline.lanes, ranks), chosen_rows(timeline.steps, ranks)
    cut = timeline.events.iloc[rows_in_window(timeline.events, start, end, chosen["lane"].to_numpy())]
    merged = merged_marks(cut, start, end, marks)
    merged["part"] = mark_names(merged["part"])
    merged = merged.merge(chosen, on="lane", how="left")
    return View(
        start_ns=start,
        end_ns=end,
        marks=merged,
        lanes=chosen.reset_index(drop=True),
        steps=steps[(steps["start_ns"] < end) & (steps["end_ns"] > start)].reset_index(drop=True),
        offsets=tuple((rank, ns) for rank, ns in timeline.offsets if ranks is None or rank is None or rank in ranks),
        totals=window_totals(timeline, start, end, ranks),
    )


def _offsets(run: Run) -> tuple[tuple[int | None, int], ...]:
    table = clocks(run)
    table = table[table["applied"]]
    ranks = map(int_or_none, table["rank"])
    return tuple(zip(ranks, table["offset_ns"].astype(int), strict=True))
