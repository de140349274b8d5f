"""Collectives by hand: what their hops did, and what measured all-reduces of several sizes tell."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from overlaplab.costs import tree_until
from overlaplab.manifest import Link
from overlaplab.words import count, join_names, ms, size_exact


def hops_title(moments: pd.DataFrame) -> str:
    """After which hop the sum was complete anywhere, and on all ranks: rows of `analyses.chunks_after_hops`."""
    ranks = moments["rank"].nunique()
    done = moments.assign(whole=moments["ranks"] == ranks)
    somewhere = done.groupby(["hop", "chunk"])["whole"].any().groupby("hop").all()
    everywhere = done.groupby("hop")["whole"].all()
    if not everywhere.any():
        return "The hops that were recorded do not complete the sum"
    return (
        f"After hop {somewhere.idxmax()} the sum is complete, each part of it on a rank of its own,"
        f" and after hop {everywhere.idxmax()} on all ranks"
        if moments["chunk"].nunique() > 1
        else f"After hop {somewhere.idxmax()} one rank has the sum, and after hop {everywhere.idxmax()} all have it"
    )


def hops_remark(table: pd.DataFrame) -> str:
    """What the hops of a bucket took and sent: rows of `analyses.hops` of one step and bucket."""
    first = table.iloc[0]
    by_rank = table.groupby("rank")
    took = by_rank["end_ns"].max() - by_rank["start_ns"].min()
    sent = by_rank["bytes"].sum()
    each = " to ".join(dict.fromkeys((size_exact(int(sent.min())), size_exact(int(sent.max())))))
    longest = table.iloc[int((table["end_ns"] - table["start_ns"]).to_numpy().argmax())]
    return (
        f"Bucket {first['bucket']} of step {first['step']}: {count(int(table['hop'].max()) + 1, 'hop')} in"
        f" {ms(int(took.max()))}, in which each rank sent {each}. The longest, hop {longest['hop']} of rank"
        f" {longest['rank']}, took {ms(int(longest['end_ns'] - longest['start_ns']))}."
    )


def bench_finding(table: pd.DataFrame) -> str:
    """Say which algorithm is fastest at which sizes: rows of `bench_collectives`."""
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
        ends = zip(ratio.groups, ratio.min(), ratio.max(), strict=True)
        spread = [f"{name} {least:.3f} to {most:.3f}" for name, least, most in ends]
        yield f"Measured ÷ formula: {join_names(spread)}."
    if wrong := int(table["wrong"].sum()):
        yield f"{count(wrong, 'element')} came out wrong."
