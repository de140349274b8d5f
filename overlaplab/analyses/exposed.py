"""Why communication was exposed: each nanosecond is attributed to one collective and one cause.

Exposed time is defined as in `summary`: communication while the rank computes nothing, cut to the step's window.

The rules that choose the collective and the cause are in docs/exposed.md; code refers to them by number.

Sources: wait and transfer as in docs/design.md; the causes are this project's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from msgspec import Struct
from msgspec.structs import replace

from overlaplab.causes import Cause
from overlaplab.events import Run, Trace, Window, activity, empty_table, window_bounds
from overlaplab.evidence.arrays import Fields, Groups, grouped_by, or_none, take_rows, take_values
from overlaplab.evidence.clocks import run_zero_ns
from overlaplab.evidence.collective_facts import collective_facts
from overlaplab.evidence.exposed_waits import exposed_waits
from overlaplab.evidence.host_waits import host_waits
from overlaplab.evidence.moments import (
    GRAIN_NS,
    NEVER_NS,
    STALL_NS,
    WAKE_NS,
    Does,
    Moments,
    attribute_moments,
    last_moving,
    split_after,
)
from overlaplab.evidence.pipelines import IdleBySchedule, idle_by_schedule
from overlaplab.evidence.selection import measured_traces, selected_windows
from overlaplab.intervals import Integers, Intervals, Mask, lengths_within, union
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.vocabulary import Rule

_ORDER = tuple(cause for cause in Cause if cause is not Cause.UNHIDEABLE)
_KEYS = ("place", "row", "cause")
_LABELS = {"index": "collective", "kind": "kind", "what": "what", "axis": "axis", "late_rank": "late_rank"}
"""Facts that become columns."""
CAUSES = tuple(cause.value for cause in _ORDER)
COLUMNS = {
    **dict.fromkeys(("rank", "step"), "Int64"),
    "cause": "object",
    "collective": "Int64",
    **dict.fromkeys(("kind", "what", "axis"), "object"),
    "late_rank": "Int64",
    **dict.fromkeys(("exposed_ns", "start_ns", "end_ns"), "int64"),
}
"""The columns of `exposed` and their dtypes."""


def exposed(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank, step, cause and collective, in order of rank and step; in a step the most expensive first.

    Columns: `rank`, `step` (Int64), `cause` (one of `CAUSES`), `collective` (Int64: `index` of
    `overlaplab.collectives`, null for communication outside all), `kind`, `what` (`bucket 3`, the unit, or the
    parameter that it moves; None where unknown), `axis` (of the mesh, see `axes`; None where unknown), `late_rank`
    (Int64: the rank that a straggler wait waited for; null for other causes, and where unknown or within clock error,
    see `clocks`), `exposed_ns`, `start_ns`, `end_ns` (of the first and the last moment, from the run's start by the
    first rank's clock).

    Per rank and step `exposed_ns` adds up to `summary`'s `exposed_comm_ns`, exactly. A rank whose device activity was
    not recorded has no rows. Raises `OverlaplabError` for an unknown rank or step.
    """
    attribution = _attribute(run, selection)
    if not attribution.parts:
        return empty_table(COLUMNS)
    moments = attribution.moments()
    groups = grouped_by(moments["place"], moments["cause"], moments["row"])
    table = _sum_moments(moments, groups)
    order = np.lexsort((table["start_ns"], -table["exposed_ns"], table["place"]))
    return attribution.to_table(take_rows(table, order))


def exposed_pauses(run: Run) -> pd.DataFrame:
    """How much of a rank's step the host paused while communication was exposed: `rank`, `step`, `paused_ns`.

    Shorter transfers would not shorten that. Steps without such a pause have no row.
    """
    causes = exposed(run)
    paused = causes[causes["cause"] == Cause.GAP].groupby(["rank", "step"], dropna=False)
    return paused["exposed_ns"].sum().rename("paused_ns").reset_index()


def exposed_moments(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """The moments that `exposed` adds up, in order of rank, step and time: its columns, and each moment has a row.

    Moments of one cause and collective that follow each other without a gap are one.
    """
    attribution = _attribute(run, selection)
    if not attribution.parts:
        return empty_table(COLUMNS)
    moments = attribution.moments()
    moments = take_rows(moments, np.lexsort((moments["start_ns"], moments["place"])))
    keys = np.column_stack([moments[name] for name in _KEYS])
    goes_on = (keys[1:] == keys[:-1]).all(axis=1) & (moments["start_ns"][1:] == moments["end_ns"][:-1])
    return attribution.to_table(_sum_moments(moments, Groups(np.cumsum(np.append(True, ~goes_on)))))


def _sum_moments(moments: Fields, groups: Groups) -> Fields:
    """One row per group of moments: the sum of their times, from the first start to the last end."""
    first = groups.first(np.ones(len(groups.of_row), dtype=bool))
    return {name: moments[name][first] for name in _KEYS} | {
        "exposed_ns": groups.reduce(np.add, moments["exposed_ns"]),
        "start_ns": groups.reduce(np.minimum, moments["start_ns"]),
        "end_ns": groups.reduce(np.maximum, moments["end_ns"]),
    }


class _Attribution(Struct, frozen=True):
    """Exposed moments by cause, and what their collectives and steps are called."""

    steps: Sequence[tuple[int | None, int | None, int]]
    """Rank, number and the run's zero by the rank's clock."""
    labels: Mapping[str, Sequence[Any]]
    """`_LABELS` by row of the moments."""
    parts: Sequence[tuple[Cause, Moments]]
    """A cause and moments that have it; their `step` is the place in `steps`."""

    def moments(self) -> Fields:
        """One row per moment: `place` in `steps`, `cause` (its place in `_ORDER`), `row`, `exposed_ns`, times."""
        names = {"place": "step", "row": "row", "start_ns": "start", "end_ns": "end"}
        rows = {key: np.concatenate([getattr(part, name) for _, part in self.parts]) for key, name in names.items()}
        causes = np.array([_ORDER.index(cause) for cause, _ in self.parts], dtype=np.int64)
        rows["cause"] = np.repeat(causes, [len(part.row) for _, part in self.parts])
        return rows | {"exposed_ns": rows["end_ns"] - rows["start_ns"]}

    def to_table(self, rows: Fields) -> pd.DataFrame:
        """Rows as of `moments`, with the columns of `exposed`."""
        place, row, cause = (rows[name] for name in _KEYS)
        ranks, numbers, zeros = (np.array(values, dtype=object) for values in zip(*self.steps, strict=True))
        columns = {column: np.array([*self.labels[name], None], dtype=object)[row] for name, column in _LABELS.items()}
        columns["late_rank"] = or_none(columns["late_rank"], cause == _ORDER.index(Cause.STRAGGLER))
        for name in ("kind", "axis"):
            columns[name] = or_none(columns[name], columns[name] != "")
        columns |= {"cause": np.array(CAUSES, dtype=object)[cause], "rank": ranks[place], "step": numbers[place]}
        zero = zeros.astype(np.int64)[place]
        columns |= {"exposed_ns": rows["exposed_ns"]} | {name: rows[name] - zero for name in ("start_ns", "end_ns")}
        series = {name: pd.Series(columns[name], dtype=dtype) for name, dtype in COLUMNS.items()}
        return pd.DataFrame(series, copy=False)


def _attribute(run: Run, selection: Selection) -> _Attribution:
    parts: list[tuple[Cause, Moments]] = []
    steps: list[tuple[int | None, int | None, int]] = []
    labels: dict[str, list[Any]] = {name: [] for name in _LABELS}
    for trace in measured_traces(run, selection):
        windows, place = selected_windows(trace, selection), run.traces.index(trace)
        facts, before = collective_facts(run)[place], len(labels["index"])
        idle = [idle_by_schedule(run).get((place, window.step)) for window in windows]
        for cause, part in _trace_causes(trace, facts, windows, idle):
            if len(part.row):
                row = np.where(part.row >= 0, part.row + before, -1)
                parts.append((cause, replace(part, row=row, step=part.step + len(steps))))
        steps += [(trace.rank, window.step, run_zero_ns(run, trace)) for window in windows]
        for name, values in labels.items():
            values += facts[name].tolist()
    return _Attribution(steps, labels, parts)


def _trace_causes(
    trace: Trace, facts: Fields, windows: Sequence[Window], idle: Sequence[IdleBySchedule | None]
) -> Iterator[tuple[Cause, Moments]]:
    """One rank's exposed moments by cause; all steps at once, as each has few.

    `idle`: for each window how long the rank must be idle in it; None where that is unknown, and without a pipeline.
    """
    busy = activity(trace)
    moving = union(facts["moves_ns"][facts["matched"]], facts["end_ns"][facts["matched"]])
    bounds = window_bounds(windows)
    excess = np.maximum(lengths_within(moving, *bounds) - lengths_within(busy.compute, *bounds), 0)
    moments = attribute_moments(facts, busy.exposed_communication, busy.compute, *bounds)
    if (waits := exposed_waits(trace)) is not None:
        moments, needless = moments.split_by(waits.not_blocking)
        yield Cause.GAP, needless.select(needless.row >= 0)
        yield Cause.UNKNOWN, needless.select(needless.row < 0)
    scheduled = np.array([step is not None for step in idle], dtype=bool)[moments.step]
    messages = take_values(facts["matched"] & facts["message"], moments.row, False)
    yield from _pipeline_causes(moments.select(scheduled & messages), idle)
    of_pipeline = take_values(facts["of_pipeline"], moments.row, False).astype(bool) & ~scheduled
    yield Cause.SEND, moments.select(of_pipeline)
    stall_ns = STALL_NS if busy.rule is Rule.CPU else 0
    others = moments.select(~of_pipeline & ~(scheduled & messages))
    yield from _decide_causes(facts, others, excess, host_waits(trace), stall_ns)


def _pipeline_causes(moments: Moments, idle: Sequence[IdleBySchedule | None]) -> Iterator[tuple[Cause, Moments]]:
    """The rules of pipelines: waits are the schedule's first, then slow stages', up to the time that each explains; the
    remainder is sending.
    """
    waits = moments.does == Does.WAITS
    bubble_ns, imbalance_ns = (
        np.array([0 if step is None else getattr(step, name) for step in idle], dtype=np.int64)
        for name in ("bubble_ns", "imbalance_ns")
    )
    bubble, remaining = split_after(moments.select(waits), bubble_ns)
    yield Cause.BUBBLE, bubble
    imbalance, remaining = split_after(remaining, imbalance_ns)
    yield Cause.IMBALANCE, imbalance
    yield Cause.SEND, remaining
    yield Cause.SEND, moments.select(~waits)


def _decide_causes(
    facts: Fields, moments: Moments, excess_ns: Integers, blocked: Intervals, stall_ns: int
) -> Iterator[tuple[Cause, Moments]]:
    """The rules in order: each yields its moments, the next rule sees the remaining ones."""
    waits = moments.does == Does.WAITS
    yield Cause.STRAGGLER, moments.select(waits)
    remaining, excess = last_moving(moments.select(~waits), excess_ns)
    yield Cause.LINK, excess
    unattributed = remaining.row < 0
    yield Cause.UNKNOWN, remaining.select(unattributed)
    remaining = remaining.select(~unattributed)
    elsewhere = _is_compute_gap(facts, remaining, blocked, stall_ns)
    yield Cause.GAP, remaining.select(elsewhere)
    remaining = remaining.select(~elsewhere)
    blocks = (facts["after_backward"] | facts["at_once"])[remaining.row]
    yield Cause.BLOCKING, remaining.select(blocks)
    yield from _split_delays(facts, remaining.select(~blocks))


def _is_compute_gap(facts: Fields, moments: Moments, blocked: Intervals, stall_ns: int) -> Mask:
    """Rule 3: the rank was not waiting for communication, by when it computes again."""
    ends_ns = facts["end_ns"][moments.row]
    early_ns = ends_ns - moments.resumes  # so much before the collective's end the rank computes again
    stalled = (facts["gradients"] & facts["edge"])[moments.row]
    stalled &= (early_ns <= stall_ns) & (early_ns < moments.end - moments.start)
    goes_on = (early_ns > GRAIN_NS) & ~stalled
    sorted_ends = np.append(NEVER_NS, np.sort(facts["end_ns"]))  # first for what resumes before any end
    resumes = np.minimum(moments.resumes, NEVER_NS - GRAIN_NS)  # cannot overflow
    # when the last collective had ended by then
    ended = sorted_ends[np.searchsorted(sorted_ends[1:], resumes + GRAIN_NS, side="right")]
    slept = (moments.resumes != NEVER_NS) & (moments.resumes - ended > WAKE_NS)
    slept &= lengths_within(blocked, ends_ns - 1, ends_ns) == 0
    return np.asarray(goes_on | (_moves_needlessly(facts, moments) & slept))


def _moves_needlessly(facts: Fields, moments: Moments) -> Mask:
    """Mark moments that move gradients while the backward pass, which does not need them, is still running."""
    return np.asarray((facts["gradients"] & ~facts["edge"])[moments.row])


def _split_delays(facts: Fields, moments: Moments) -> Iterator[tuple[Cause, Moments]]:
    """Apply rules 5 to 7, then 8 to 11 to the remaining moments."""
    remaining, queued_behind = _split_queued(facts, moments)
    yield Cause.QUEUED, queued_behind
    launched = facts["end_ns"] - facts["late_ns"]
    remaining, late = remaining.split(launched[remaining.row])
    yield Cause.LATE, late
    queued_ns = facts["queued_ns"][remaining.row] - _length_in_step(queued_behind, remaining)
    remaining, queued = remaining.split(launched[remaining.row] - queued_ns)
    yield Cause.QUEUED, queued
    edge = facts["edge"][remaining.row]
    yield Cause.TAIL, remaining.select(edge)
    remaining = remaining.select(~edge)
    gradients = facts["gradients"][remaining.row]
    yield Cause.BLOCKING, remaining.select(gradients)
    remaining = remaining.select(~gradients)
    moves = remaining.does == Does.MOVES
    yield Cause.LINK, remaining.select(moves)
    yield Cause.UNKNOWN, remaining.select(~moves)


def _length_in_step(moments: Moments, asking: Moments) -> Integers:
    """For each of the `asking` moments how long the moments of its collective in its step are together."""
    groups = grouped_by(*(np.append(getattr(moments, name), getattr(asking, name)) for name in ("step", "row")))
    lengths = np.append(moments.end - moments.start, np.zeros(len(asking.row), dtype=np.int64))
    return groups.spread(np.add, lengths)[len(moments.row) :]


def _split_queued(facts: Fields, moments: Moments) -> tuple[Moments, Moments]:
    """Split off the moments of rule 5, attributed to the collective that queues."""
    starts, ends = facts["start_ns"], facts["end_ns"]
    follows = np.searchsorted(starts, ends[moments.row], side="left")
    until, earliest = (take_values(facts[name], follows, NEVER_NS) for name in ("end_ns", "asked_ns"))
    row, group = moments.row, facts["group"]
    follows_directly = take_values(starts, follows, NEVER_NS) - ends[row] <= GRAIN_NS
    follows_directly |= take_values(facts["link"], follows, -2) == facts["link"][row]
    follows_directly |= (take_values(group, follows, "") == group[row]) & (group[row] != "")
    waits = _moves_needlessly(facts, moments) & follows_directly
    waits &= (until != NEVER_NS) & (until - GRAIN_NS <= moments.resumes)
    before, after = moments.split(np.where(waits, earliest, moments.end))
    return before, replace(after, row=np.searchsorted(starts, ends[after.row], side="left"))
