"""Lines through the transfers of each group's collectives, without waiting for other ranks: what any size takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from msgspec import Struct

from overlaplab.analyses.collectives import collectives
from overlaplab.costs import fit_line, ring_factor, students_t
from overlaplab.costs.link import ROUNDS, UNSTEADY
from overlaplab.events import Run

_TYPES = {
    **dict.fromkeys(("ranks", "kind"), "object"),
    **dict.fromkeys(("latency_ns", "bus_gb_per_s", "deviation", "r_squared"), "Float64"),
    **dict.fromkeys(("count", "sizes"), "int64"),
}
_TIMES = dict.fromkeys(("ranks", "kind", "dtype"), "object") | dict.fromkeys(("bytes", "time_ns", "count"), "int64")
_BEYOND = 2.0
"""Times are given from the smallest measured size ÷ 2 to the largest × 2."""
_STEP = 2**0.25
"""The ratio of one size to the next: between them no interpolation errs by more than 1 %."""


class Fitted(Struct, frozen=True, kw_only=True):
    """The transfers of one kind in one group, and the line of least absolute deviation through them."""

    ranks: tuple[int, ...]
    kind: str
    group_size: int
    """Phantoms included."""
    transfers: pd.DataFrame
    """`dtype`, `bytes` and `transfer_ns` of each, from the last rank's arrival to the median rank's end."""
    latency_ns: float
    """Latency of the whole collective."""
    ns_per_byte: float
    """Time per byte of the full tensor."""

    @property
    def deviation(self) -> float:
        """By how much the line misses the transfers, ÷ their time."""
        return float(np.abs(self._residuals()).sum() / max(self.transfers["transfer_ns"].sum(), 1))

    @property
    def r_squared(self) -> float | None:
        """The part of the times' variance that the sizes explain; None where there is one size or one time."""
        times = self.transfers["transfer_ns"].to_numpy(float)
        varied = float(((times - times.mean()) ** 2).sum())
        if self.transfers["bytes"].nunique() < 2 or not varied:
            return None
        return 1 - float((self._residuals() ** 2).sum()) / varied

    @property
    def half_ns(self) -> float | None:
        """Half of the 95 % interval around the line of one more transfer; None of two transfers or fewer."""
        freedom = len(self.transfers) - 2
        if freedom < 1:
            return None
        return students_t(freedom) * float(np.sqrt((self._residuals() ** 2).sum() / freedom))

    def time_ns(self, num_bytes: int) -> int:
        """T of so many bytes, in ns."""
        return round(self.latency_ns + self.ns_per_byte * num_bytes)

    def _residuals(self) -> np.ndarray:
        sizes, times = (self.transfers[name].to_numpy(float) for name in ("bytes", "transfer_ns"))
        residuals: np.ndarray = self.latency_ns + self.ns_per_byte * sizes - times
        return residuals


def transfer_lines(run: Run) -> pd.DataFrame:
    """One row per group and kind: T = s·α + f·bytes ÷ B, fitted to the group's transfers of that kind.

    Columns: `ranks` (the group's, a tuple), `kind`, `latency_ns` (α, per message; null where there is one size),
    `bus_gb_per_s` (B, what each rank sends in a second, in decimal GB, latency included where there is one size; null
    where more bytes take no longer), `deviation` (by how much the line misses the transfers, ÷ their time), `r_squared`
    (null where there is one size, below 0 where the mean of the times would miss them less; all Float64), `count`
    (transfers), `sizes` (different ones; both int64). s and f are a ring's (docs/design.md, "The link, emulated").
    Waiting is in none of them. Groups of which a rank's trace is missing have no rows.
    """
    rows = [_row(line) for line in fitted_lines(run)]
    return pd.DataFrame(rows, columns=list(_TYPES)).astype(_TYPES)


def _row(line: Fitted) -> tuple[object, ...]:
    number, sizes = len(line.transfers), line.transfers["bytes"].nunique()
    latency_ns = None if sizes < 2 else line.latency_ns / max(ROUNDS[line.kind] * (line.group_size - 1), 1)
    speed = ring_factor(line.kind, line.group_size) / line.ns_per_byte if line.ns_per_byte else None
    return line.ranks, line.kind, latency_ns, speed, line.deviation, line.r_squared, number, sizes


def collective_times(run: Run) -> pd.DataFrame:
    """One row per group, kind, dtype and size, from half the smallest size measured to twice the largest.

    Columns: `ranks` (the group's, a tuple), `kind`, `dtype`, `bytes` (of the full tensor), `time_ns` (by the line of
    least absolute deviation through the group's transfers of that kind, of any dtype: each from the last rank's arrival
    to the median rank's end), `count` (how many transfers the line rests on). Waiting is in none of them. Groups of
    which a rank's trace is missing have no rows, nor have kinds whose times do not follow from their sizes.
    """
    rows = []
    for line in fitted_lines(run):
        if line.deviation > UNSTEADY:
            continue
        for dtype, of_dtype in line.transfers.dropna(subset=["dtype"]).groupby("dtype", sort=True):
            for size in _grid(int(of_dtype["bytes"].min()), int(of_dtype["bytes"].max())):
                rows.append((line.ranks, line.kind, dtype, size, line.time_ns(size), len(line.transfers)))
    return pd.DataFrame(rows, columns=list(_TIMES)).astype(_TIMES)


def _grid(least: int, most: int) -> list[int]:
    """Sizes in equal ratios, both ends included."""
    low, high = least / _BEYOND, most * _BEYOND
    number = int(np.ceil(np.log(high / low) / np.log(_STEP))) + 1
    return sorted({max(round(size), 1) for size in np.geomspace(low, high, number)})


def fitted_lines(run: Run) -> Iterator[Fitted]:
    """The line of each group and kind, in order of both."""
    table = collectives(run)
    timed = table[table["transfer_ns"].notna() & table["kind"].isin(ROUNDS) & (table["bytes"] > 0) & ~table["doubtful"]]
    timed = timed[timed["rank"].notna()]  # a lone trace's may be unknown
    each = timed.groupby("index").agg(
        ranks=("rank", lambda ranks: tuple(sorted(map(int, ranks)))),
        kind=("kind", "first"),
        size=("group_size", "first"),
        dtype=("dtype", "first"),
        bytes=("bytes", "first"),
        transfer_ns=("transfer_ns", "median"),
    )
    each["size"] = each["size"].fillna(each["ranks"].map(len)).astype("int64")  # of one trace several groups may differ
    by_group: Any = each.groupby(["ranks", "kind", "size"], sort=True)
    for (ranks, kind, size), of_group in by_group:
        transfers = of_group[["dtype", "bytes", "transfer_ns"]].astype({"bytes": "int64", "transfer_ns": "int64"})
        latency_ns, ns_per_byte = fit_line(transfers["bytes"].tolist(), transfers["transfer_ns"].tolist())
        yield Fitted(
            ranks=ranks, kind=kind, group_size=size, transfers=transfers, latency_ns=latency_ns, ns_per_byte=ns_per_byte
        )
