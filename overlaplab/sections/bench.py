"""The table of `overlaplab bench-collectives`."""

from __future__ import annotations

import pandas as pd

from overlaplab.analyses.systems.bench import bench_side_by_side
from overlaplab.columns import columns
from overlaplab.sections.blocks import TableBlock
from overlaplab.words import size_exact

_SPEEDS = ("algbw_gb_per_s", "bus_gb_per_s")


def bench_rows(table: pd.DataFrame, ranks: int) -> TableBlock:
    """Rows of `bench_collectives`, the algorithms side by side."""
    algorithms = table["algorithm"].drop_duplicates()
    speeds = [f"{algorithm}_{figure}" for algorithm in algorithms for figure in _SPEEDS]
    named = [f"{algorithm}_{figure}" for algorithm in algorithms for figure in ("time_ns", *_SPEEDS)]
    wide = bench_side_by_side(table)
    return TableBlock(
        key="bench_table",
        caption=f"All-reduce over {ranks} ranks, out of place",
        frame=wide.assign(
            terse_bytes=wide["bytes"].map(size_exact),
            **{f"terse_{name}": (1000 * wide[name]).map("{:.3g}".format) for name in speeds},
        ),
        columns=columns("bench_side_by_side", "bytes", *named),
        legend="each algorithm: ms per all-reduce; alg = bytes ÷ time, bus = alg × 2(n−1)/n, both in MB/s",
    )
