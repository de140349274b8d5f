"""Every step of a watched training."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from overlaplab.load.watched import IN_BURST, PROFILED, CellKind, Watched, WatchedRank

_TIMES = {
    "data_ns": CellKind.DATA,
    "forward_ns": CellKind.FORWARD,
    "backward_ns": CellKind.BACKWARD,
    "exposed_gradients_ns": CellKind.EXPOSED_GRADIENTS,
    "exposed_gathers_ns": CellKind.EXPOSED_GATHERS,
    "exposed_others_ns": CellKind.EXPOSED_OTHER,
}
EXPOSED = ("exposed_gradients_ns", "exposed_gathers_ns", "exposed_others_ns")
"""The columns whose sum is `exposed_comm_ns`."""


def watched_steps(watched: Watched) -> pd.DataFrame:
    """Every step of every rank, in order of ranks and steps.

    Columns: `rank`, `step` (from 0), `span_ns` (from one `step()` to the next), `data_ns` (from `step()` to the next
    forward pass; null where an evaluation lies between), `measured` (whether it is one of a burst), `profiled` (whether
    a profiler ran), and of measured steps `forward_ns`, `backward_ns` and what communication was exposed:
    `exposed_gradients_ns` (all-reduces and reduce-scatters), `exposed_gathers_ns` (all-gathers), `exposed_others_ns`
    and `exposed_comm_ns`, their sum. Null where it is unknown: of a kind of which no wait was seen, and of gradients of
    a model in DDP where DDP has told nothing; then the sum is, too.
    """
    tables = [_rank_steps(rank) for rank in watched.ranks]
    return pd.concat(tables, ignore_index=True)


def _rank_steps(rank: WatchedRank) -> pd.DataFrame:
    cells = rank.cells_of_kind(CellKind.STEP)
    numbers, places = np.unique(cells["number"], return_index=True)
    cells = cells[places]
    table = pd.DataFrame({"rank": rank.header.rank, "step": numbers.astype(np.int64), "span_ns": cells["value"]})
    table["measured"] = (cells["flags"] & IN_BURST) > 0
    table["profiled"] = (cells["flags"] & PROFILED) > 0
    for column, kind in _TIMES.items():
        table[column] = _sums(rank, kind, numbers)
    if rank.header.ddp:
        by_ddp = _sums(rank, CellKind.EXPOSED_DDP, numbers)
        table["exposed_gradients_ns"] = table["exposed_gradients_ns"].fillna(0) + by_ddp
    gradients, gathers, others = (table[column] for column in EXPOSED)
    is_known = gradients.notna() if rank.header.ddp else gradients.notna() | gathers.notna() | others.notna()
    table["exposed_comm_ns"] = (gradients.fillna(0) + gathers.fillna(0) + others.fillna(0)).where(is_known)
    for column in (*EXPOSED, "exposed_comm_ns", "forward_ns", "backward_ns"):
        table[column] = table[column].where(table["measured"])
    return table


def _sums(rank: WatchedRank, kind: CellKind, numbers: npt.NDArray[Any]) -> pd.Series[Any]:
    """The sum of each step's values of a kind; null where there are none."""
    cells = rank.cells_of_kind(kind)
    places = np.searchsorted(numbers, cells["number"])
    belongs = places < len(numbers)
    belongs[belongs] = numbers[places[belongs]] == cells["number"][belongs]
    places, values = places[belongs], cells["value"][belongs]
    counts = np.bincount(places, minlength=len(numbers))
    sums = np.bincount(places, values, len(numbers)).astype(np.int64)  # exact: they are far below 2⁵³
    return pd.Series(pd.arrays.IntegerArray(sums, counts == 0))
