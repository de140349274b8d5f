"""All-reduces by size and algorithm, as `overlaplab bench-collectives` measures them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from overlaplab.costs import hops_ns, ring_factor
from overlaplab.manifest import Link


def bench_collectives(measured: Mapping[str, Any]) -> pd.DataFrame:
    """One row per size and algorithm, of what the engine's `bench` wrote.

    Columns: `bytes`, `algorithm` (`ring`, `tree`, `torch`), `time_ns`, `algbw_gb_per_s` (bytes ÷ time), `bus_gb_per_s`
    (times 2(n-1)/n, whatever the algorithm, as in nccl-tests, so that algorithms and numbers of ranks compare),
    `modelled_ns` (Int64: by the link's formula, the library's as a ring; null without a link), `wrong` (elements whose
    sum is wrong, of all ranks).
    """
    table = pd.DataFrame(measured["rows"], columns=["bytes", "algorithm", "time_ns", "wrong"])
    table["algbw_gb_per_s"] = table["bytes"] / table["time_ns"]
    table["bus_gb_per_s"] = table["algbw_gb_per_s"] * ring_factor("all_reduce", measured["ranks"])
    link = measured_link(measured)
    modelled = [
        None if link is None else hops_ns(size, link, "tree" if algorithm == "tree" else "ring")
        for size, algorithm in zip(table["bytes"].tolist(), table["algorithm"], strict=True)
    ]
    return table.assign(modelled_ns=pd.array(modelled, dtype="Int64"))


def measured_link(measured: Mapping[str, Any]) -> Link | None:
    """The emulated link behind which it was measured; None without one."""
    link = measured["link"]
    return None if link is None else Link(emulated=True, world_size=measured["ranks"], **link)


def bench_side_by_side(table: pd.DataFrame) -> pd.DataFrame:
    """One row per size of rows of `bench_collectives`: `bytes`, and each algorithm's figures as `ring_time_ns`, …"""
    figures = ("time_ns", "algbw_gb_per_s", "bus_gb_per_s")
    wide = [table.pivot(index="bytes", columns="algorithm", values=name).add_suffix(f"_{name}") for name in figures]
    return pd.concat(wide, axis=1).reset_index()
