"""Rows of `summary` and `exposed` written by hand, for sentences; times in ms."""

from __future__ import annotations

from typing import Any

import pandas as pd

from overlaplab.analyses.exposed import COLUMNS

MS = 1_000_000
BOUND = {"compute_ns": 60 * MS, "transfer_ns": 50 * MS, "bound_ns": 70 * MS, "any_cap_ns": 64 * MS}
BOUND |= {"waits_known": True, "bytes_explain": True}
"""Of a step that computes for 60 ms: with the best buckets 4 ms stay exposed."""


def summary_rows(*steps: tuple[int | None, int | None, int, int]) -> pd.DataFrame:
    """Rank, step, length and exposed time of each; 20 ms are hidden, and a tenth of the exposed time is waiting."""
    rows = []
    for rank, step, span, exposed in steps:
        row = {"rank": rank, "step": step, "start_ns": 0, "span_ns": span, "comm_ns": exposed + 20, "overlapped_ns": 20}
        row |= {"exposed_comm_ns": exposed, "exposed_wait_ns": exposed // 10, "compute_ns": span - exposed}
        rows.append(
            row | dict.fromkeys(("idle_ns", "memory_only_ns", "host_wait_ns", "kernel_wait_ns", "preempted_ns"), 0)
        )
    table = pd.DataFrame(rows)
    times = [name for name in table if name.endswith("_ns")]
    table[times] *= MS
    return table.astype({"rank": "Int64", "step": "Int64", "exposed_wait_ns": "Int64"})


def exposed_rows(*rows: tuple[int | None, int | None, str, float, int | None], **columns: Any) -> pd.DataFrame:
    """Rank, step, cause, exposed time and late rank of each, of buckets from 0 on; `columns` replace others."""
    found = pd.DataFrame(rows, columns=["rank", "step", "cause", "exposed_ns", "late_rank"])
    ends = found["exposed_ns"].cumsum() * MS
    number = range(len(found))
    found = found.assign(
        collective=list(number),
        kind="all_reduce",
        axis=None,
        what=[f"bucket {index}" for index in number],
        exposed_ns=found["exposed_ns"] * MS,
        start_ns=ends - found["exposed_ns"] * MS,
        end_ns=ends,
    ).assign(**columns)
    return found[list(COLUMNS)].astype(COLUMNS)


def gains(*rows: tuple[str, float | None, float] | tuple[str, float | None, float, float]) -> pd.DataFrame:
    """Rows of `simulate.gains` of steps of 100 ms: remedy, setting, gain, and by how much it may be off, in ms."""
    names = ["remedy", "setting", "gain_ns", "half_ns"]
    table = pd.DataFrame([(*row, None)[:4] for row in rows], columns=names)
    table[["gain_ns", "half_ns"]] = (table[["gain_ns", "half_ns"]].astype("Float64") * MS).astype("Int64")
    return table.assign(step_ns=100 * MS - table["gain_ns"], what=None, memory_bytes=0)
