"""Why communication was exposed: each nanosecond is attributed to one collective and one cause.

Exposed time is defined as in `summary`: communication while the rank computes nothing, cut to the step's window.

The rules that choose the collective and the cause are in docs/exposed.md; code refers to them by number.

Sources: wait and transfer as in docs/design.md; the causes are this project's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd

from overlaplab.events import Run, Trace, Window, activity, empty_table
from overlaplab.evidence.clocks import zero_of
from overlaplab.evidence.collective_facts import collective_facts
from overlaplab.evidence.moments import GRAIN_NS, NEVER_NS, Does, Facts, Moments, last_moving, owned
from overlaplab.evidence.selection import selected_traces, selected_windows
from overlaplab.intervals import clip, subtract, total, union
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.vocabulary import Rule

__all__ = ["CAUSES", "COLUMNS", "Cause", "exposed"]


class Cause(StrEnum):
    """Why a moment of communication was exposed; see docs/exposed.md for each one's rules."""

    STRAGGLER = "straggler wait"
    LATE = "late launch"
    QUEUED = "queued"
    TAIL = "tail"
    BLOCKING = "blocking"
    LINK = "link-bound"
    GAP = "compute gap"
    UNKNOWN = "unknown"


_ORDER = tuple(Cause)
_LABELS = {"index": "collective", "kind": "kind", "what": "what", "late_rank": "late_rank"}
"""Facts that become columns."""
CAUSES = tuple(cause.value for cause in Cause)
COLUMNS = {
    **dict.fromkeys(("rank", "step"), "Int64"),
    "cause": "object",
    "collective": "Int64",
    **dict.fromkeys(("kind", "what"), "object"),
    "late_rank": "Int64",
    **dict.fromkeys(("exposed_ns", "start_ns", "end_ns"), "int64"),
}
"""The columns of `exposed` and their dtypes."""


def exposed(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank, step, cause and collective, in order of rank and step; in a step the most expensive first.

    Columns: `rank`, `step` (Int64), `cause` (one of `CAUSES`), `collective` (Int64: `index` of
    `overlaplab.collectives`, null for communication outside all), `kind`, `what` (`bucket 3`, the unit, or the
    parameter that it moves; None where unknown), `late_rank` (Int64: the rank that a straggler wait waited for; null
    for other causes, and where unknown or within clock error, see `clocks`), `exposed_ns`, `start_ns`, `end_ns`
    (of the first and the last moment, from the run's start by the first rank's clock).

    Per rank and step `exposed_ns` adds up to `summary`'s `exposed_comm_ns`, exactly. A rank whose device activity was
    not recorded has no rows. Raises `OverlaplabError` for an unknown rank or step.
    """
    parts: list[tuple[int, Cause, Moments]] = []
    steps: list[tuple[int | None, int | None, int]] = []
    labels: dict[str, list[Any]] = {name: [] for name in _LABELS}
    for trace in selected_traces(run, selection):
        if activity(trace).rule is Rule.UNRECORDED:
            continue
        windows = selected_windows(trace, selection)
        table = collective_facts(run)[run.traces.index(trace)]
        facts = {str(name): column.to_numpy() for name, column in table.items()}
        before = len(labels["index"])
        for number, cause, part in _of_trace(trace, facts, windows):
            row = np.where(part.row >= 0, part.row + before, -1)
            parts.append((len(steps) + number, cause, replace(part, row=row)))
        steps += [(trace.rank, window.step, zero_of(run, trace)) for window in windows]
        for name, values in labels.items():
            values += facts[name].tolist()
    return _table(steps, labels, parts) if parts else empty_table(COLUMNS)


def _of_trace(trace: Trace, facts: Facts, windows: Sequence[Window]) -> Iterator[tuple[int, Cause, Moments]]:
    """One rank's exposed moments by step and cause."""
    compute, communication = activity(trace).compute, activity(trace).communication
    gaps = subtract(communication, compute)
    moving = union(facts["moves_ns"][facts["matched"]], facts["end_ns"][facts["matched"]])
    for number, window in enumerate(windows):
        bounds = window.start_ns, window.end_ns
        excess = total(clip(moving, *bounds)) - total(clip(compute, *bounds))
        moments = owned(facts, clip(gaps, *bounds), compute)
        yield from ((number, cause, part) for cause, part in _decided(facts, moments, max(0, excess)) if len(part.row))


def _decided(facts: Facts, moments: Moments, excess_ns: int) -> Iterator[tuple[Cause, Moments]]:
    """The rules in order: each yields its moments, the next rule sees the remaining ones."""
    waits = moments.does == Does.WAITS
    yield Cause.STRAGGLER, moments.where(waits)
    remaining, excess = last_moving(moments.where(~waits), excess_ns)
    yield Cause.LINK, excess
    unattributed = remaining.row < 0
    yield Cause.UNKNOWN, remaining.where(unattributed)
    remaining = remaining.where(~unattributed)
    goes_on = facts["end_ns"][remaining.row] - GRAIN_NS > remaining.resumes
    yield Cause.GAP, remaining.where(goes_on)
    remaining = remaining.where(~goes_on)
    blocks = (facts["after_backward"] | facts["at_once"])[remaining.row]
    yield Cause.BLOCKING, remaining.where(blocks)
    yield from _delayed(facts, remaining.where(~blocks))


def _delayed(facts: Facts, moments: Moments) -> Iterator[tuple[Cause, Moments]]:
    """Rules 5 to 7, then 8 to 11 for the remaining moments."""
    remaining, behind = _behind(facts, moments)
    yield Cause.QUEUED, behind
    queued_ns = facts["queued_ns"].copy()
    np.subtract.at(queued_ns, behind.row, behind.end - behind.start)
    launched = facts["end_ns"] - facts["late_ns"]
    remaining, late = remaining.split(launched[remaining.row])
    yield Cause.LATE, late
    remaining, queued = remaining.split((launched - queued_ns)[remaining.row])
    yield Cause.QUEUED, queued
    edge = facts["edge"][remaining.row]
    yield Cause.TAIL, remaining.where(edge)
    remaining = remaining.where(~edge)
    gradients = facts["gradients"][remaining.row]
    yield Cause.BLOCKING, remaining.where(gradients)
    remaining = remaining.where(~gradients)
    moves = remaining.does == Does.MOVES
    yield Cause.LINK, remaining.where(moves)
    yield Cause.UNKNOWN, remaining.where(~moves)


def _behind(facts: Facts, moments: Moments) -> tuple[Moments, Moments]:
    """The moments without those of rule 5, and those of rule 5, attributed to the collective that queues."""
    starts, ends = facts["start_ns"], facts["end_ns"]
    needless = (facts["gradients"] & ~facts["edge"])[moments.row]
    follows = np.searchsorted(starts, ends[moments.row], side="left")
    until, asked = (np.append(facts[name], NEVER_NS)[follows] for name in ("end_ns", "asked_ns"))
    waits = needless & (until != NEVER_NS) & (until - GRAIN_NS <= moments.resumes)
    before, after = moments.split(np.where(waits, asked, moments.end))
    return before, replace(after, row=np.searchsorted(starts, ends[after.row], side="left"))


def _table(
    steps: Sequence[tuple[int | None, int | None, int]],
    labels: Mapping[str, Sequence[Any]],
    parts: Sequence[tuple[int, Cause, Moments]],
) -> pd.DataFrame:
    """One row per step, cause and collective, in order of step, the most expensive first.

    `steps` are rank, number and the run's zero by the rank's clock; `labels` are `_LABELS` by row of `parts`, which say
    their step.
    """
    lengths = [len(part.row) for _, _, part in parts]
    moments = {name: np.concatenate([getattr(part, name) for _, _, part in parts]) for name in ("row", "start", "end")}
    table = pd.DataFrame(
        {
            "place": np.repeat(np.array([number for number, _, _ in parts], dtype=np.int64), lengths),
            "cause": np.repeat(np.array([_ORDER.index(cause) for _, cause, _ in parts], dtype=np.int64), lengths),
            "row": moments["row"],
            "exposed_ns": moments["end"] - moments["start"],
            "start_ns": moments["start"],
            "end_ns": moments["end"],
        }
    )
    grouped = table.groupby(["place", "cause", "row"], sort=True)
    found = grouped.agg({"exposed_ns": "sum", "start_ns": "min", "end_ns": "max"}).reset_index()
    order = np.lexsort((found["start_ns"], -found["exposed_ns"], found["place"]))
    found = found.iloc[order].reset_index(drop=True)
    row, waits = found["row"].to_numpy(), (found["cause"] == _ORDER.index(Cause.STRAGGLER)).to_numpy()
    for name, column in _LABELS.items():
        found[column] = np.array([*labels[name], None], dtype=object)[row]
    found["late_rank"] = found["late_rank"].where(waits, None)
    found["kind"] = found["kind"].where(found["kind"] != "", None)
    found["cause"] = np.array(CAUSES, dtype=object)[found["cause"]]
    ranks, numbers, zeros = zip(*steps, strict=True)
    place = found["place"].to_numpy()
    found["rank"], found["step"] = (pd.array(values, dtype="Int64")[place] for values in (ranks, numbers))
    found[["start_ns", "end_ns"]] -= np.array(zeros, dtype=np.int64)[place, None]
    return found[list(COLUMNS)].astype(COLUMNS)
