"""A watched training in as many pieces as a chart has room for: step time by kind of step, and who was late when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from overlaplab.analyses.watched.kinds import is_periodic, kinds_periods
from overlaplab.analyses.watched.steps import equal_stretches
from overlaplab.load.watched import CellKind, Watched

_MAX_SERIES_PIECES = 500
"""Half of a chart's width in pixels: more pieces show nothing more."""
_MAX_STRIP_PIECES = 160
"""So many cells are still wide enough to be seen one by one."""
_ROUND = (1, 2, 5)

_SPANS = ["span_low_ns", "span_ns", "span_high_ns"]
_EXPOSED = ["exposed_low_ns", "exposed_comm_ns", "exposed_high_ns"]
_SERIES = ["period", "first_step", "last_step", "steps", *_SPANS, "measured_steps", *_EXPOSED, "exposed_share"]
_STRIP = ["rank", "first_step", "last_step", "telling_steps", "late_steps", "late_share", "late_median_ns"]


def watched_series(times: pd.Series[Any], kinds: pd.DataFrame, bursts: pd.DataFrame) -> pd.DataFrame:
    """Step time and exposed communication over the whole training, in at most 500 pieces of equally many steps.

    Takes the tables of `watched_step_times`, `watched_kinds` and `watched_bursts`. A row per kind of step and piece in
    which there is one, in order. Columns: `period` (the kind's, null for ordinary steps), `first_step` and `last_step`
    (of the piece), `steps` (of the kind, in the piece), `span_low_ns`, `span_ns` and `span_high_ns` (the shortest, the
    median and the longest, each step's being the median over the ranks), `measured_steps` (in how many of them it is
    known what was exposed), and over those and all ranks `exposed_low_ns`, `exposed_comm_ns`, `exposed_high_ns` and
    `exposed_share` (the least, the median and the most, and the median share of the step). Null where unknown.
    """
    exposed = _exposed_steps(bursts)
    numbers, spans = times.index.to_numpy(), times.to_numpy()
    width = round_width(numbers, _MAX_SERIES_PIECES)
    rows: list[dict[str, Any]] = []
    for period, first in [(None, 0), *kinds_periods(kinds)]:
        places = _places_of_kind(numbers, kinds, period, first)
        measured = exposed.iloc[_places_of_kind(exposed.index.to_numpy(), kinds, period, first)]
        measured_numbers = measured.index.to_numpy()
        exposed_ns, shares = (measured[name].to_numpy(np.float64) for name in ("exposed_comm_ns", "share"))
        measured_part = dict(_pieces(measured_numbers, width))
        for piece, part in _pieces(numbers[places], width):
            values = spans[places[part]]
            row: dict[str, Any] = {"period": period, "first_step": piece * width, "steps": len(values)}
            row |= {"last_step": min((piece + 1) * width - 1, int(numbers[-1])), "measured_steps": 0}
            row |= dict(zip(_SPANS, _extent(values), strict=True))
            if piece in measured_part:
                there = measured_part[piece]
                row |= {"measured_steps": len(set(measured_numbers[there].tolist()))}
                row |= {"exposed_share": float(np.nanmedian(shares[there]))}
                row |= dict(zip(_EXPOSED, _extent(exposed_ns[there]), strict=True))
            rows.append(row)
    table = pd.DataFrame(rows, columns=_SERIES)
    whole = [column for column in _SERIES if column != "exposed_share"]
    table[whole] = table[whole].astype("Float64").round().astype("Int64")
    return table.astype({"exposed_share": "Float64"})


def watched_strip(watched: Watched, late: pd.DataFrame, ranks: Sequence[int]) -> pd.DataFrame:
    """How often each of these ranks was late, in at most 160 pieces of equally many steps, each with a burst.

    Takes the table of `watched_late`. A row per rank and piece in which an all-reduce of the rank tells, in order.
    Columns: `rank`, `first_step` and `last_step` (of the piece), `telling_steps` (how many tell), `late_steps` (in how
    many of them the rank was late), `late_share` and `late_median_ns` (by how much, where it was; null elsewhere).
    """
    every = max(rank.header.every for rank in watched.ranks)
    last_step = max(int(rank.cells_of_kind(CellKind.STEP)["number"].max(initial=0)) for rank in watched.ranks)
    numbers = late["step"].to_numpy()
    width = max(round_width(numbers, _MAX_STRIP_PIECES), every)
    group_of_row = late.groupby(["group", "late_rank"], sort=False).ngroup().to_numpy()
    members = _members(watched, late.drop_duplicates(["group", "late_rank"]))
    rows: list[dict[str, Any]] = []
    for rank in ranks:
        has_rank = np.array([rank in ranks_of_group for ranks_of_group in members], bool)[group_of_row]
        telling = np.unique(numbers[has_rank])
        is_late = has_rank & (late["late_rank"] == rank).to_numpy() & late["late"].to_numpy()
        behind = late[is_late].groupby("step")["late_ns"].max()
        parts = dict(_pieces(behind.index.to_numpy(), width))
        for piece, part in _pieces(telling, width):
            count = len(telling[part])
            row: dict[str, Any] = {"rank": rank, "first_step": piece * width}
            row["last_step"] = min((piece + 1) * width - 1, last_step)
            row |= {"telling_steps": count, "late_steps": 0, "late_share": 0.0}
            if piece in parts:
                late_ns = behind.to_numpy()[parts[piece]]
                row |= {"late_steps": len(late_ns), "late_share": len(late_ns) / count}
                row |= {"late_median_ns": round(float(np.median(late_ns)))}
            rows.append(row)
    table = pd.DataFrame(rows, columns=_STRIP).astype({"late_median_ns": "Int64", "late_share": "float64"})
    return table.astype({name: "int64" for name in _STRIP if not name.startswith(("late_share", "late_median"))})


def round_width(numbers: npt.NDArray[Any], pieces: int) -> int:
    """How many steps a piece has so that there are at most so many: 1, 2, 5, 10, 20, …"""
    if not len(numbers):
        return 1
    steps, power = int(numbers.max()) + 1, 1
    while steps > _ROUND[-1] * power * pieces:
        power *= 10
    return next(digit * power for digit in _ROUND if steps <= digit * power * pieces)


def _pieces(numbers: npt.NDArray[Any], width: int) -> Iterator[tuple[int, slice]]:
    """Each piece in which there are steps, and where these are among the numbers, which are in order."""
    return equal_stretches(numbers // width)


def _exposed_steps(bursts: pd.DataFrame) -> pd.DataFrame:
    """What was exposed in each rank's steps of which that is known, in ns and as a share, by step in order."""
    is_known = ~bursts["profiled"] & bursts["exposed_comm_ns"].notna()
    exposed = bursts[is_known].sort_values("step", kind="stable").set_index("step")
    return exposed[["exposed_comm_ns"]].assign(share=exposed["exposed_comm_ns"].astype("float64") / exposed["span_ns"])


def _places_of_kind(
    numbers: npt.NDArray[Any], kinds: pd.DataFrame, period: int | None, first: int
) -> npt.NDArray[np.intp]:
    """Where steps of a kind are among these numbers; a step of several periods is of the first of them."""
    periods = kinds_periods(kinds)
    if period is None:
        return np.flatnonzero(~is_periodic(numbers, periods))
    earlier = periods[: periods.index((period, first))]
    return np.flatnonzero(is_periodic(numbers, [(period, first)]) & ~is_periodic(numbers, earlier))


def _extent(values: npt.NDArray[Any]) -> tuple[float, float, float]:
    return float(values.min()), float(np.median(values)), float(values.max())


def _members(watched: Watched, late: pd.DataFrame) -> list[tuple[int, ...]]:
    """The ranks of each row's group: of the groups of its name, the one with its `late_rank`."""
    every = [group for rank in watched.ranks for group in rank.header.groups]
    groups = {(group.name, member): group.ranks for group in every for member in group.ranks}
    pairs = zip(late["group"], late["late_rank"], strict=True)
    return [groups.get((str(name), int(rank)), ()) for name, rank in pairs]
