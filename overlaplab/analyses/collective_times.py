"""How long collectives of any size take, without waiting for other ranks: lines through what was measured."""

from __future__ import annotations

import numpy as np
import pandas as pd

from overlaplab.analyses.transfer_lines import fitted_lines
from overlaplab.events import Run

_TYPES = dict.fromkeys(("ranks", "kind", "dtype"), "object") | dict.fromkeys(("bytes", "time_ns", "count"), "int64")
_BEYOND = 2.0
"""Times: from half the smallest size that was measured to twice the largest."""
_STEP = 2**0.25
"""The ratio of one size to the next: between them no interpolation errs by more than 1 %."""
_MAX_DEVIATION_SHARE = 0.25
"""If a line misses more than 25 % of the measured time, the times do not follow from the sizes."""


def collective_times(run: Run) -> pd.DataFrame:
    """One row per group, kind, dtype and size, from half the smallest size measured to twice the largest.

    Columns: `ranks` (the group's, a tuple), `kind`, `dtype`, `bytes` (of the full tensor), `time_ns` (by the line of
    least absolute deviation through the group's transfers of that kind, of any dtype: each from the last rank's arrival
    to the median rank's end), `count` (how many transfers the line rests on). Waiting is in none of them. Groups of
    which a rank's trace is missing have no rows, nor have kinds whose times do not follow from their sizes.
    """
    rows = []
    for line in fitted_lines(run):
        if line.deviation > _MAX_DEVIATION_SHARE:
            continue
        for dtype, of_dtype in line.transfers.dropna(subset=["dtype"]).groupby("dtype", sort=True):
            for size in _grid(int(of_dtype["bytes"].min()), int(of_dtype["bytes"].max())):
                took = round(line.latency_ns + line.ns_per_byte * size)
                rows.append((line.ranks, line.kind, dtype, size, took, len(line.transfers)))
    return pd.DataFrame(rows, columns=list(_TYPES)).astype(_TYPES)


def _grid(least: int, most: int) -> list[int]:
    """Sizes in equal ratios, both ends included."""
    low, high = least / _BEYOND, most * _BEYOND
    number = int(np.ceil(np.log(high / low) / np.log(_STEP))) + 1
    return sorted({max(round(size), 1) for size in np.geomspace(low, high, number)})
