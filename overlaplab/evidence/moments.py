"""Exposed communication as disjoint pieces of time, each attributed to one collective (see `exposed`)."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlaplab.evidence.arrays import Fields, take_values
from overlaplab.intervals import Integers, Intervals, Mask, pieces, subtract, union

GRAIN_NS = 20_000
"""A rank that resumes computing so shortly before a collective ends may still have waited for it: threads wake up and
labels close microseconds apart."""
STALL_NS = 5_000_000
"""On a CPU: the thread that carries a collective may have to wait so long for a core before it can end its range."""
WAKE_NS = 1_000_000
"""A rank that waited computes again so soon after the collective's end; one that computes later did something else."""
NEVER_NS = int(np.iinfo(np.int64).max)


class Does(IntEnum):
    """What a collective does at a moment. Of several at once the one listed first here counts."""

    MOVES = 0
    UNKNOWN = 1
    WAITS = 2


class Moments(Struct, frozen=True):
    """Pieces of time in absolute ns: every array has one item per piece."""

    row: Integers
    """The collective's row among the facts, -1 for none."""
    start: Integers
    end: Integers
    does: Integers
    """A `Does`."""
    resumes: Integers
    """When the rank computes next, or `NEVER_NS`."""
    step: Integers
    """The place of the step's window, among those given to `attribute_moments`, that contains the piece."""

    def select(self, chosen: Mask | Integers) -> Moments:
        return Moments(**{name: getattr(self, name)[chosen] for name in Moments.__struct_fields__})

    def split(self, at_ns: Integers) -> tuple[Moments, Moments]:
        """The parts before and after a moment, which is given for each piece."""
        before = replace(self, end=np.minimum(self.end, at_ns))
        after = replace(self, start=np.maximum(self.start, at_ns))
        return before.select(before.start < before.end), after.select(after.start < after.end)

    def split_by(self, times: Intervals) -> tuple[Moments, Moments]:
        """The parts outside of a set of times, and those within."""
        parts = []
        for inside in (subtract(union(self.start, self.end), times), times):
            piece, start, end = pieces(self.start, self.end, inside)
            parts.append(replace(self.select(piece), start=start, end=end))
        return parts[0], parts[1]


def attribute_moments(facts: Fields, gaps: Intervals, compute: Intervals, starts: Integers, ends: Integers) -> Moments:
    """The moments of gaps in computing within steps' windows, each attributed to one collective.

    `starts` and `ends`: the windows, in absolute ns, disjoint and in order.
    """
    within = np.column_stack(pieces(starts, ends, gaps)[1:])
    rows, begins, until, does = _states(facts)
    state, begin, end = pieces(begins, until, within)
    # Every border of a piece ends a slot: piece i covers the slots from `first` on, `count` of them.
    borders = np.unique(np.concatenate((begin, end)))
    first = np.searchsorted(borders, begin)
    count = np.searchsorted(borders, end) - first
    piece = np.repeat(np.arange(len(state)), count)
    slot = np.repeat(first - np.cumsum(count) + count, count) + np.arange(len(piece))
    row, doing = rows[state][piece], does[state][piece]
    # Of a slot's candidates the first wins by what it does, then those that end before the rank computes again.
    resumes = _resumes(compute, borders[slot])
    later = facts["end_ns"][row] - GRAIN_NS > resumes
    order = np.lexsort((row, later, doing, slot))
    best = order[np.flatnonzero(np.diff(slot[order], prepend=-1))]
    alone = subtract(within, union(begin, end))
    start = np.append(borders[slot[best]], alone[:, 0])
    return Moments(
        row=np.append(row[best], np.full(len(alone), -1)),
        start=start,
        end=np.append(borders[slot[best] + 1], alone[:, 1]),
        does=np.append(doing[best], np.full(len(alone), Does.UNKNOWN)),
        resumes=np.append(resumes[best], _resumes(compute, alone[:, 0])),
        step=np.searchsorted(starts, start, side="right") - 1,
    )


def _states(facts: Fields) -> tuple[Integers, Integers, Integers, Integers]:
    """What each collective does over time, as arrays: row, start, end, `Does`."""
    starts, ends, moves, matched = (facts[name] for name in ("start_ns", "end_ns", "moves_ns", "matched"))
    number = np.arange(len(starts))
    columns = (starts, moves, Does.WAITS), (moves, ends, Does.MOVES), (starts, ends, Does.UNKNOWN)
    parts = [
        np.column_stack((number, begin, end, np.full(len(number), does)))[chosen]
        for (begin, end, does), chosen in zip(columns, (matched, matched, ~matched), strict=True)
    ]
    row, begins, until, doing = np.concatenate(parts).T
    return row, begins, until, doing


def _resumes(compute: Intervals, at_ns: Integers) -> Integers:
    """When the rank next begins to compute, from each moment on; `NEVER_NS` for never."""
    return take_values(compute[:, 0], np.searchsorted(compute[:, 0], at_ns, side="left"), NEVER_NS)


def last_moving(moments: Moments, length_ns: Integers) -> tuple[Moments, Moments]:
    """Split off the last `length_ns` of each step's moments in which something moves: the remainder, and what was
    split off.
    """
    moves = np.flatnonzero(moments.does == Does.MOVES)
    order = moves[np.lexsort((-moments.start[moves], moments.step[moves]))]
    at = moments.end.copy()
    at[order] -= _fill(moments, order, length_ns)
    return moments.split(at)


def split_after(moments: Moments, length_ns: Integers) -> tuple[Moments, Moments]:
    """Split each step's moments, in order of time, after `length_ns` of them: what is before, and the remainder."""
    order = np.lexsort((moments.start, moments.step))
    at = moments.start.copy()
    at[order] += _fill(moments, order, length_ns)
    return moments.split(at)


def _fill(moments: Moments, order: Integers, length_ns: Integers) -> Integers:
    """How much of each moment is used up, if its step's moments are used in this order for the step's `length_ns`."""
    step, lengths = moments.step[order], (moments.end - moments.start)[order]
    before = np.cumsum(lengths) - lengths
    before -= before[np.searchsorted(step, step)]  # without the steps before it
    return np.asarray(np.clip(length_ns[step] - before, 0, lengths))
