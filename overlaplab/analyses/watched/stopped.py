"""Where a rank of a watched training has stopped, by the last collective that each rank was given (docs/watching.md).

A rank that hangs lacks the first collective of a group that is not over, in which the others wait. Others may have
enqueued more: a host may run ahead of them. Of a rank whose process was killed or stopped, files say what it had
enqueued at its last look, steps earlier. Ranks are looked at one after another, so that a rank counts as stuck only if
it has enqueued nothing between two looks, and for longer than its longest steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from msgspec import Struct

from overlaplab.load.watched import FAILED, STALLED, CellKind, Watched, WatchedGroup, WatchedRank

STOPPED_COLUMNS = {
    **dict.fromkeys(("rank", "last_step"), "Int64"),
    "answers": "bool",
    "since_ns": "Int64",
    "group": "object",
    **dict.fromkeys(("enqueued", "looked_step", "others_wait_in"), "Int64"),
    "ended": "bool",
}
MIN_STEPS_LONG = 3
"""A rank is stuck if no step has ended for this many times its longest step."""


class _Look(Struct, frozen=True, kw_only=True):
    """Where a rank is, by its steps and its last look."""

    rank: int
    last_step: int
    """The last step that has ended; -1 before the first has."""
    looked_step: int
    """The last step that had ended at that look."""
    is_stalled: bool
    """Whether no step has ended since, and none had for long."""
    is_stuck: bool
    """Whether it is stalled and has enqueued nothing since the look before, or the training has failed."""
    failed: bool
    ended: bool
    since_ns: int
    enqueued: Mapping[WatchedGroup, int]
    completed: Mapping[WatchedGroup, int]


def watched_stopped(watched: Watched) -> pd.DataFrame:
    """The ranks that keep a training from going on, in order; empty while it goes on, and after it has ended.

    Columns: `rank`, `last_step` (the last that has ended; null where none has), `answers` (whether its process still
    told, or told as it failed, where it is; else it was stopped or killed, or never lets go of Python), `since_ns` (how
    long no step had ended by then; null where it does not answer), `group` (its description; null where unknown),
    `enqueued` (the number of the last collective of the group that it was given), `looked_step` (the last step that had
    ended when that was so), `others_wait_in` (the number of the collective that the group's other ranks wait in) and
    `ended` (whether it has ended its training, while others go on).
    Where all ranks have enqueued the same, all have rows, and `others_wait_in` is null.
    """
    looks = [_last_look(rank) for rank in watched.ranks]
    stuck = [look for look in looks if look.is_stuck]
    others = [look for look in looks if not look.is_stuck and not look.ended]
    last_step = max((look.last_step for look in stuck), default=-1)
    goes_on = any(look.is_stalled or look.last_step > last_step for look in others)
    rows: list[dict[str, object]] = []
    if stuck and not goes_on:
        silent = [_row(look, stuck) for look in others]
        over = [_row(look, stuck) for look in looks if look.ended and not look.is_stuck]
        behind = [_row(look, stuck) for look in stuck if _first_lacking_group(look, stuck) is not None]
        all_alike = [] if any(look.ended for look in stuck) else [_row(look, stuck) for look in stuck]
        rows = silent or over or behind or all_alike
    return pd.DataFrame(rows, columns=list(STOPPED_COLUMNS)).astype(STOPPED_COLUMNS)


def _row(look: _Look, stuck: Sequence[_Look]) -> dict[str, object]:
    group = _first_lacking_group(look, stuck) or next(iter(look.enqueued), None)
    enqueued = None if group is None else look.enqueued[group]
    awaited = None if group is None else _awaited_number(group, stuck)
    is_behind = awaited is not None and enqueued is not None and enqueued < awaited
    return {
        "rank": look.rank,
        "last_step": look.last_step if look.last_step >= 0 else None,
        "answers": look.is_stuck,
        "since_ns": look.since_ns if look.is_stuck else None,
        "group": None if group is None else group_word(group.name, group.description),
        "enqueued": enqueued,
        "looked_step": look.looked_step if group is not None and look.looked_step >= 0 else None,
        "others_wait_in": awaited if is_behind else None,
        "ended": look.ended and not look.is_stuck,
    }


def _first_lacking_group(look: _Look, stuck: Sequence[_Look]) -> WatchedGroup | None:
    """The first group of which the rank lacks the collective that another rank waits in."""
    for group, enqueued in look.enqueued.items():
        awaited = _awaited_number(group, stuck)
        if awaited is not None and enqueued < awaited:
            return group
    return None


def _awaited_number(group: WatchedGroup, stuck: Sequence[_Look]) -> int | None:
    """The first collective that is over on no rank, if a rank waits in it; where that is unknown, the first that not
    all have enqueued.

    What is over on one rank was enqueued by all. A collective that has failed counts as completed.
    """
    looks = [look for look in stuck if group in look.enqueued]
    enqueued = [look.enqueued[group] for look in looks]
    over = [
        min(look.completed[group], look.enqueued[group] - 1) if look.failed else look.completed[group]
        for look in looks
        if group in look.completed
    ]
    if over:
        first = max(over) + 1
    elif len(enqueued) > 1:
        first = min(enqueued) + 1
    else:
        return max(enqueued, default=None)
    return first if first <= max(enqueued) else None


def group_word(name: str, description: str) -> str:
    """What a process group is for, else its name."""
    described = description if description not in ("undefined", "default_pg") else ""
    return described or ("default" if name == "0" else name)


def _last_look(rank: WatchedRank) -> _Look:
    cells = rank.cells
    steps, places = (rank.places_of_kind(kind) for kind in (CellKind.STEP, CellKind.LOOK))
    last_step = int(cells["number"][steps[-1]]) if len(steps) else -1
    look = cells[places[-1]] if len(places) else None
    enqueued, completed = _counts(rank, int(places[-1])) if look is not None else ({}, {})
    since_ns = int(look["value"]) if look is not None else 0
    why = int(look["flags"]) if look is not None and int(look["number"]) > last_step else None
    is_stalled = why == STALLED and not rank.header.ended
    before = cells[places[-2]] if len(places) > 1 else None
    is_still = (
        before is not None
        and before["flags"] == STALLED
        and int(before["number"]) > last_step
        and _counts(rank, int(places[-2]))[0] == enqueued
        and since_ns >= MIN_STEPS_LONG * int(cells["value"][steps].max(initial=0))
    )
    return _Look(
        rank=rank.header.rank,
        last_step=last_step,
        looked_step=int(look["number"]) - 1 if look is not None else -1,
        is_stalled=is_stalled,
        is_stuck=why == FAILED or (is_stalled and bool(is_still)),
        failed=why == FAILED,
        ended=rank.header.ended,
        since_ns=since_ns,
        enqueued=enqueued,
        completed=completed,
    )


def _counts(rank: WatchedRank, place: int) -> tuple[dict[WatchedGroup, int], dict[WatchedGroup, int]]:
    """How many collectives of each group were enqueued, and were over, at the look in this place."""
    counts: dict[int, dict[WatchedGroup, int]] = {CellKind.ENQUEUED: {}, CellKind.COMPLETED: {}}
    for cell in rank.cells[place + 1 :]:
        if int(cell["kind"]) not in counts:
            break
        if cell["group"] < len(rank.header.groups):
            counts[int(cell["kind"])][rank.header.groups[int(cell["group"])]] = int(cell["value"])
    return counts[CellKind.ENQUEUED], counts[CellKind.COMPLETED]
