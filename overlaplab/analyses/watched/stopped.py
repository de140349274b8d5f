"""Where a rank of a watched training has stopped, by the last collective that each rank was given (docs/watching.md).

A rank that hangs has enqueued fewer collectives of a group than the others, which wait in the first one that it lacks.
Of a rank whose process was killed or stopped, files say what it had enqueued at its last look, steps earlier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from overlaplab.load.watched import FAILED, STALLED, CellKind, Watched, WatchedGroup, WatchedRank

STOPPED_COLUMNS = {
    **dict.fromkeys(("rank", "last_step"), "Int64"),
    "answers": "bool",
    "since_ns": "Int64",
    "group": "object",
    **dict.fromkeys(("enqueued", "looked_step", "others_wait_in"), "Int64"),
}


@dataclass(frozen=True, slots=True)
class _Look:
    """A rank's last look."""

    rank: int
    last_step: int
    """The last one that has ended; -1 before."""
    looked_step: int
    """The last one that had ended then."""
    is_stuck: bool
    """Whether no step has ended since, and none had for long, or the training has failed."""
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
    ended when that was so) and `others_wait_in` (the number of the collective that the group's other ranks wait in).
    Where all ranks have enqueued the same, all have rows, and `others_wait_in` is null.
    """
    looks = [_last_look(rank) for rank in watched.ranks]
    stuck = [look for look in looks if look.is_stuck]
    others = [look for look in looks if not look.is_stuck and not look.ended]
    rows: list[dict[str, object]] = []
    if stuck and not any(look.last_step > max(each.last_step for each in stuck) for look in others):
        silent = [_row(look, stuck) for look in others]
        behind = [_row(look, stuck) for look in stuck if _first_behind(look, stuck) is not None]
        all_alike = [] if any(look.ended for look in stuck) else [_row(look, stuck) for look in stuck]
        rows = silent or behind or all_alike
    return pd.DataFrame(rows, columns=list(STOPPED_COLUMNS)).astype(STOPPED_COLUMNS)


def _row(look: _Look, stuck: Sequence[_Look]) -> dict[str, object]:
    group = _first_behind(look, stuck) or next(iter(look.enqueued), None)
    waits = [] if group is None else [_waits_in(other, group) for other in stuck if other is not look]
    enqueued = None if group is None else look.enqueued[group]
    wait = min((wait for wait in waits if wait is not None and wait > (enqueued or 0)), default=None)
    return {
        "rank": look.rank,
        "last_step": look.last_step if look.last_step >= 0 else None,
        "answers": look.is_stuck,
        "since_ns": look.since_ns if look.is_stuck else None,
        "group": None if group is None else group_word(group.name, group.description),
        "enqueued": enqueued,
        "looked_step": look.looked_step if group is not None and look.looked_step >= 0 else None,
        "others_wait_in": wait,
    }


def _first_behind(look: _Look, stuck: Sequence[_Look]) -> WatchedGroup | None:
    """The first group of which another rank has enqueued more."""
    for group, enqueued in look.enqueued.items():
        if any(other.enqueued.get(group, 0) > enqueued for other in stuck):
            return group
    return None


def _waits_in(look: _Look, group: WatchedGroup) -> int | None:
    """The first collective that is not over; the last one that was enqueued where that is unknown, or it has failed."""
    enqueued, completed = look.enqueued.get(group), look.completed.get(group)
    if enqueued is None or completed is None or look.failed:
        return enqueued
    return completed + 1 if completed < enqueued else None


def group_word(name: str, description: str) -> str:
    """What a process group is for, else its name."""
    described = description if description not in ("undefined", "default_pg") else ""
    return described or ("default" if name == "0" else name)


def _last_look(rank: WatchedRank) -> _Look:
    cells = rank.cells
    steps = cells["number"][cells["kind"] == CellKind.STEP]
    last_step = int(steps[-1]) if len(steps) else -1
    places = np.flatnonzero(cells["kind"] == CellKind.LOOK)
    look = cells[places[-1]] if len(places) else None
    counts: dict[int, dict[WatchedGroup, int]] = {CellKind.ENQUEUED: {}, CellKind.COMPLETED: {}}
    for cell in cells[places[-1] + 1 :] if look is not None else ():
        if int(cell["kind"]) not in counts:
            break
        if cell["group"] < len(rank.header.groups):
            counts[int(cell["kind"])][rank.header.groups[int(cell["group"])]] = int(cell["value"])
    return _Look(
        rank=rank.header.rank,
        last_step=last_step,
        looked_step=int(look["number"]) - 1 if look is not None else -1,
        is_stuck=look is not None and look["flags"] in (STALLED, FAILED) and int(look["number"]) > last_step,
        failed=look is not None and look["flags"] == FAILED,
        ended=rank.header.ended,
        since_ns=int(look["value"]) if look is not None else 0,
        enqueued=counts[CellKind.ENQUEUED],
        completed=counts[CellKind.COMPLETED],
    )
