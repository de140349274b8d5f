"""Hops of collectives that are made by hand."""

from __future__ import annotations

import pandas as pd

from overlaplab.words import count, ms, size_exact


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
