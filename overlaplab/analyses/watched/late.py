"""Who was late in a watched training, without comparing clocks.

An all-reduce ends on all ranks at once, when the last one has joined: the rank on which it is shortest came last, and
each rank as much later than the first as its own is shorter than the longest. Broadcasts and all-gathers do not tell,
as they end at different times.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from overlaplab.load.watched import CellKind, Watched, WatchedRank

MIN_LATE_NS = 1_000_000
"""Whoever comes last by less than a millisecond is not late: durations differ by that much anyway."""
MIN_LATE_SHARE = 0.02
"""Nor is whoever comes last by less than so much of the median step."""


def watched_late(watched: Watched) -> pd.DataFrame:
    """The last rank of each measured step and process group, in order of steps.

    Of a step's all-reduces, the one tells whose durations differ most; DDP's count as one. Columns: `step`, `group`
    (its name), `late_rank`, `late_ns` (behind the group's first rank) and `late` (whether that is more than durations
    differ by anyway, MIN_LATE_NS and MIN_LATE_SHARE). No row where all-reduces of not all ranks are known.
    """
    rows = pd.concat([_durations(rank) for rank in watched.ranks], ignore_index=True)
    grouped = rows.groupby(["step", "group", "members", "number"], sort=False)
    telling = grouped["duration_ns"].agg(["size", "min", "max", "idxmin"]).reset_index()
    telling = telling[telling["size"] == telling["members"].map(len)]
    telling["late_ns"] = telling["max"] - telling["min"]
    telling = telling.sort_values("late_ns", kind="stable").drop_duplicates(["step", "group", "members"], keep="last")
    telling["late_rank"] = rows["rank"].to_numpy()[telling["idxmin"].to_numpy(np.int64)]
    telling["late"] = telling["late_ns"] >= max(MIN_LATE_NS, MIN_LATE_SHARE * _median_step_ns(watched))
    columns = ["step", "group", "late_rank", "late_ns", "late"]
    return telling.sort_values(["step", "group", "late_rank"], kind="stable")[columns].reset_index(drop=True)


def _durations(rank: WatchedRank) -> pd.DataFrame:
    """How long all-reduces took on a rank; those of DDP together have the number -1."""
    cells = rank.cells
    begins = cells["kind"] == CellKind.STEP
    step_before = np.concatenate([[0], cells["number"][begins]])[np.cumsum(begins)]
    by_ddp = cells["kind"] == CellKind.DDP_COMMUNICATION
    chosen = ((cells["kind"] == CellKind.ALL_REDUCE) & (np.cumsum(begins) > 0)) | by_ddp
    chosen &= cells["group"] < len(rank.header.groups)
    steps = np.where(by_ddp, cells["number"], step_before)[chosen].astype(np.int64)
    numbers = np.where(by_ddp, -1, cells["number"].astype(np.int64))[chosen]
    groups = [rank.header.groups[int(place)] for place in cells["group"][chosen]]
    table = pd.DataFrame(
        {
            "rank": rank.header.rank,
            "step": steps,
            "group": pd.Series([group.name for group in groups], dtype=object),
            "members": pd.Series([group.ranks for group in groups], dtype=object),
            "number": numbers,
            "duration_ns": cells["value"][chosen],
        }
    )
    return table.drop_duplicates(["step", "group", "members", "number"])


def _median_step_ns(watched: Watched) -> float:
    spans: list[npt.NDArray[Any]] = [rank.cells_of_kind(CellKind.STEP)["value"] for rank in watched.ranks]
    values = np.concatenate(spans)
    return float(np.median(values)) if len(values) else 0.0
