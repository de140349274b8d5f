"""What measured all-reduces of several sizes tell."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from overlaplab.costs import tree_until
from overlaplab.manifest import Link
from overlaplab.words import count, join_names, size_exact


def bench_finding(table: pd.DataFrame) -> str:
    """Say which algorithm is fastest at which sizes: rows of `analyses.bench_collectives`."""
    fastest = table.loc[table.groupby("bytes")["time_ns"].idxmin()].sort_values("bytes")
    run = (fastest["algorithm"] != fastest["algorithm"].shift()).cumsum()
    spans = [(rows["algorithm"].iloc[0], rows["bytes"].min(), rows["bytes"].max()) for _, rows in fastest.groupby(run)]
    parts = [
        f"{name} at {size_exact(least)}" if least == most else f"{name} from {size_exact(least)} to {size_exact(most)}"
        for name, least, most in spans
    ]
    return f"Fastest is {join_names(parts)}."


def bench_remarks(table: pd.DataFrame, link: Link | None) -> Iterator[str]:
    """Where ring and tree cross by the link's formula, how near it measured times are, and wrong sums if any."""
    if link is not None:
        until = tree_until(link)
        less = f"less time than a ring up to {size_exact(until)}, and more beyond"
        yield (
            f"By the formula of the link, {link.bandwidth_gbps:g} Gbit/s and {link.latency_us:g} µs, a tree over"
            f" {count(link.world_size, 'rank')} takes {less if until else 'no less than a ring'}."
        )
        ratio = (table["time_ns"] / table["modelled_ns"].astype("float64")).groupby(table["algorithm"], sort=False)
        spread = [
            f"{name} {least:.3f} to {most:.3f}"
            for name, least, most in zip(ratio.groups, ratio.min(), ratio.max(), strict=True)
        ]
        yield f"Measured ÷ formula: {join_names(spread)}."
    if wrong := int(table["wrong"].sum()):
        yield f"{count(wrong, 'element')} came out wrong."
