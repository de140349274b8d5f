"""Buckets that were averaged by hand, hop by hop, as the collectives that they stand for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pandas as pd

from overlaplab.events import Run
from overlaplab.evidence.clocks import corrections
from overlaplab.evidence.executions import executions
from overlaplab.evidence.labels import labels_of

__all__ = ["averaged_by_hand"]

_COLUMNS = ("trace", "match", "kind", "bytes", "launch_ns", "start_ns", "end_ns", "last_ns")


def averaged_by_hand(run: Run) -> pd.DataFrame:
    """One row per trace and bucket whose all-reduce `ring` or `tree` made, with columns as `numbered` has.

    Its launch is when the hops of the bucket could begin on the rank, unless those of another were under way; it ends
    with the rank's last hop. Empty where the ranks' hops are of different buckets.
    """
    rows = pd.DataFrame(list(_rows(run)), columns=[*_COLUMNS, "chunks"])
    by = rows.groupby("match")
    if rows.empty or (by["trace"].transform("nunique") != len(run.traces)).any():
        return pd.DataFrame(columns=list(_COLUMNS))
    sizes = {match: sum(_joined(own["chunks"]).values()) for match, own in by}
    return rows.assign(bytes=rows["match"].map(sizes), last_ns=by["launch_ns"].transform("max"))[list(_COLUMNS)]


def _rows(run: Run) -> Iterator[dict[str, Any]]:
    """With `chunks`: the bytes of those that the rank sent, by their numbers."""
    for place, trace in enumerate(run.traces):
        ran, offset = executions(trace), int(corrections(run)[place])
        seen: Counter[str] = Counter()
        for label in labels_of(trace):
            hops = ran.hops(label)
            if not hops:
                continue
            bucket = label.fields["bucket"]
            yield {
                "trace": place,
                "match": f"{bucket} {seen[bucket]}",
                "kind": "all_reduce",
                "launch_ns": min(hops[0].start_ns, label.end_ns) - offset,
                "start_ns": hops[0].start_ns - offset,
                "end_ns": max(hop.end_ns for hop in hops) - offset,
                "chunks": {hop.fields["sends"]: int(hop.fields["bytes"]) for hop in hops if "sends" in hop.fields},
            }
            seen[bucket] += 1


def _joined(chunks: pd.Series) -> dict[str, int]:
    found: dict[str, int] = {}
    for own in chunks:
        found |= own
    return found
