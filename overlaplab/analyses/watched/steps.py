"""Every step of a watched training, and what is known of those in bursts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from overlaplab.load.watched import IN_BURST, PROFILED, CellKind, Watched, WatchedRank

_BURST_TIMES = {
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
    a profiler ran).
    """
    rows = sum(len(rank.places_of_kind(CellKind.STEP)) for rank in watched.ranks)
    # Allocated once and written in place: of millions of steps, memory that is touched costs most.
    numbers, spans, data = (np.zeros(rows, np.int64) for _ in range(3))
    flags, unknown = np.zeros(rows, np.uint8), np.ones(rows, bool)
    ranks = np.zeros(rows, np.int32)
    end = 0
    for rank in watched.ranks:
        cells = _step_cells(rank)
        part = slice(end, end := end + len(cells))
        for column, name in ((numbers, "number"), (spans, "value"), (flags, "flags")):
            column[part] = cells[name]
        ranks[part] = rank.header.rank
        _add_up(rank, CellKind.DATA, numbers[part], data[part], unknown[part])
    table = {
        "rank": ranks[:end],
        "step": numbers[:end],
        "span_ns": spans[:end],
        "data_ns": pd.arrays.IntegerArray(data[:end], unknown[:end]),
        "measured": (flags[:end] & IN_BURST) > 0,
        "profiled": (flags[:end] & PROFILED) > 0,
    }
    return pd.DataFrame(table, copy=False)


def watched_bursts(watched: Watched, steps: pd.DataFrame) -> pd.DataFrame:
    """The measured steps in the table of `watched_steps`, and what more is known of them.

    Columns: `rank`, `step`, `span_ns`, `profiled`, `forward_ns`, `backward_ns` and what communication was exposed:
    `exposed_gradients_ns` (all-reduces and reduce-scatters), `exposed_gathers_ns` (all-gathers), `exposed_others_ns`
    and `exposed_comm_ns`, their sum. Null where it is unknown: of a kind of which no wait was seen, and of gradients of
    a model in DDP where DDP has told nothing; then the sum is, too.
    """
    measured = steps.iloc[np.flatnonzero(steps["measured"])]
    table = measured[["rank", "step", "span_ns", "profiled"]].reset_index(drop=True)
    tables = [_rank_bursts(rank, table[table["rank"] == rank.header.rank]) for rank in watched.ranks]
    return pd.concat(tables, ignore_index=True)


def rank_parts(steps: pd.DataFrame) -> Iterator[tuple[int, slice]]:
    """Each rank of the table of `watched_steps`, and which rows are its."""
    return equal_stretches(steps["rank"].to_numpy())


def equal_stretches(numbers: npt.NDArray[Any]) -> Iterator[tuple[int, slice]]:
    """Each stretch of equal numbers: the number, and where it is."""
    for begin, end in pairwise([0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]):
        if end > begin:
            yield int(numbers[begin]), slice(begin, end)


def _step_cells(rank: WatchedRank) -> npt.NDArray[Any]:
    """The cells of the rank's steps, in order, without those of a number that there was before."""
    cells = rank.cells_of_kind(CellKind.STEP)
    numbers = cells["number"].astype(np.int64)
    return cells if (np.diff(numbers) > 0).all() else cells[np.unique(numbers, return_index=True)[1]]


def _rank_bursts(rank: WatchedRank, table: pd.DataFrame) -> pd.DataFrame:
    numbers = table["step"].to_numpy()
    columns = {name: _sums(rank, kind, numbers) for name, kind in _BURST_TIMES.items()}
    if rank.header.ddp:
        by_ddp = _sums(rank, CellKind.EXPOSED_DDP, numbers)
        columns["exposed_gradients_ns"] = columns["exposed_gradients_ns"].fillna(0) + by_ddp
    gradients, gathers, others = (columns[name] for name in EXPOSED)
    is_known = gradients.notna() if rank.header.ddp else gradients.notna() | gathers.notna() | others.notna()
    columns["exposed_comm_ns"] = (gradients.fillna(0) + gathers.fillna(0) + others.fillna(0)).where(is_known)
    return table.reset_index(drop=True).assign(**columns)


def _sums(rank: WatchedRank, kind: CellKind, numbers: npt.NDArray[np.int64]) -> pd.Series[Any]:
    """The sum of each step's values of a kind; null where there are none."""
    values, unknown = np.zeros(len(numbers), np.int64), np.ones(len(numbers), bool)
    _add_up(rank, kind, numbers, values, unknown)
    return pd.Series(pd.arrays.IntegerArray(values, unknown))


def _add_up(
    rank: WatchedRank,
    kind: CellKind,
    numbers: npt.NDArray[np.int64],
    values: npt.NDArray[np.int64],
    unknown: npt.NDArray[np.bool_],
) -> None:
    """Add to each step's value its cells of a kind; the steps have these numbers, in order."""
    cells = rank.cells_of_kind(kind)
    if not len(cells) or not len(numbers):
        return
    wanted = cells["number"].astype(np.int64)
    if len(wanted) == len(numbers) and (wanted == numbers).all():  # of millions of steps, each with one
        values += cells["value"]
        unknown[:] = False
        return
    consecutive = numbers[-1] - numbers[0] == len(numbers) - 1
    places = wanted - numbers[0] if consecutive else np.searchsorted(numbers, wanted)
    belongs = (places >= 0) & (places < len(numbers))
    belongs[belongs] = numbers[places[belongs]] == wanted[belongs]
    places = places[belongs]
    np.add.at(values, places, cells["value"][belongs])
    unknown[places] = False
