"""Who was late in a watched training, without comparing clocks.

An all-reduce ends on all ranks at once, when the last one has joined: the rank on which it is shortest came last, and
each rank as much later than the first as its own is shorter than the longest. Broadcasts and all-gathers do not tell,
as they end at different times.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from overlaplab.load.watched import CellKind, Watched, WatchedGroup, WatchedRank

MIN_LATE_NS = 1_000_000
"""Whoever comes last by less than a millisecond is not late: durations differ by that much anyway."""
MIN_LATE_SHARE = 0.02
"""Nor is whoever comes last by less than so much of the median step."""


def watched_late(watched: Watched, times: pd.Series[Any]) -> pd.DataFrame:
    """The last rank of each measured step and process group, in order of steps.

    Takes the table of `watched_step_times`. Of a step's all-reduces, the one tells whose durations differ most; DDP's
    count as one. Columns: `step`, `group` (its name), `late_rank`, `late_ns` (behind the group's first rank) and `late`
    (whether that is more than durations differ by anyway, MIN_LATE_NS and MIN_LATE_SHARE). No row where all-reduces of
    not all ranks are known.
    """
    groups = list(dict.fromkeys(group for rank in watched.ranks for group in rank.header.groups))
    rows = pd.concat([_durations(rank, groups) for rank in watched.ranks], ignore_index=True)
    telling = rows.groupby(["step", "group", "number"], sort=False)["duration_ns"].agg(["size", "min", "max", "idxmin"])
    telling = telling.reset_index()
    members = np.array([len(group.ranks) for group in groups], np.int64)
    telling = telling.loc[telling["size"].to_numpy() == members[telling["group"].to_numpy()]]
    telling["late_ns"] = telling["max"] - telling["min"]
    telling = telling.sort_values("late_ns", kind="stable").drop_duplicates(["step", "group"], keep="last")
    telling["late_rank"] = rows["rank"].to_numpy()[telling["idxmin"].to_numpy(np.int64)]
    typical_ns = float(times.median()) if len(times) else 0.0
    telling["late"] = telling["late_ns"] >= max(MIN_LATE_NS, MIN_LATE_SHARE * typical_ns)
    telling["group"] = pd.Series([groups[place].name for place in telling["group"]], telling.index, object)
    columns = ["step", "group", "late_rank", "late_ns", "late"]
    table: pd.DataFrame = telling.sort_values(["step", "group", "late_rank"], kind="stable")
    return table[columns].reset_index(drop=True)


def _durations(rank: WatchedRank, groups: list[WatchedGroup]) -> pd.DataFrame:
    """How long all-reduces took on a rank; those of DDP together have the number -1. Groups are places in the list."""
    cells = rank.cells
    kinds = cells["kind"]
    both = (CellKind.ALL_REDUCE, CellKind.DDP_COMMUNICATION)
    places = np.sort(np.concatenate([rank.places_of_kind(kind) for kind in both]))
    places = places[cells["group"][places] < len(rank.header.groups)]
    steps = rank.places_of_kind(CellKind.STEP)
    before = np.searchsorted(steps, places)  # how many steps have begun
    by_ddp = kinds[places] == CellKind.DDP_COMMUNICATION
    places, before, by_ddp = (array[by_ddp | (before > 0)] for array in (places, before, by_ddp))
    chosen = cells[places]
    numbers = chosen["number"].astype(np.int64)
    step_before = np.concatenate([[0], cells["number"][steps]]).astype(np.int64)[before]
    place_of_group = np.array([groups.index(group) for group in rank.header.groups], np.int64)
    table = pd.DataFrame(
        {
            "rank": rank.header.rank,
            "step": np.where(by_ddp, numbers, step_before),
            "group": place_of_group[chosen["group"]],
            "number": np.where(by_ddp, -1, numbers),
            "duration_ns": chosen["value"],
        }
    )
    return table.drop_duplicates(["step", "group", "number"])
