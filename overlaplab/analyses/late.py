"""Late buckets: what each one waited for, and what that cost.

[Note: without its last gradient]
The buckets are sent again as they were, but one bucket is ready with its last gradient but one. A bucket is launched
once all buckets up to it are ready, as long after as it was; it starts when it is launched and the previous one has
left the link, and takes as long as it did. What ends earlier after the end of the backward pass is saved, since
computation waits for all of them then.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import pandas as pd

from overlaplab.intervals import length_before, union
from overlaplab.words import last_arrival

_COLUMNS = (
    *("index", "parameter", "arrival", "shape", "gap_ns"),
    *("held_ns", "held", "link_ns", "exposed_ns", "cost_ns", "earlier_ns", "saved_ns"),
)
_COST_NS = 1_000  # shorter waits are within the clock's resolution


def late_buckets(table: pd.DataFrame) -> pd.DataFrame:
    """What each bucket of one rank and step waited for and cost: one row per bucket with a cost, most expensive first.

    Takes rows of `overlaplab.buckets(run)` for one rank and step; the result keeps their pandas index, since
    a step may launch a bucket several times. Columns: `index`, `parameter` (whose
    gradient came last; None where it has no name), `arrival`, `shape` (of that gradient, as in `buckets`), `gap_ns`
    (how long after the bucket's previous gradient; null if it is the only one), `held_ns` (the longest that a later,
    ready bucket waited for this one), `held` (their indices), `link_ns` (how long after its launch the link was busy
    with earlier buckets), `exposed_ns`, `cost_ns` = exposed + held; `earlier_ns` (how much earlier it could have
    been launched without its last gradient, in bucket order as ever) and `saved_ns` (how much earlier the last bucket
    would then have ended after the backward pass; see [Note: without its last gradient]).
    """
    rows, costly = [], []
    table = table.sort_values("launch_ns", kind="stable")
    ordered = table.to_dict("records")
    by_design = launched_after_backward(table)
    held = {} if by_design else _held_back(ordered)
    ran = table.dropna(subset=["start_ns", "end_ns"])
    busy_before = length_before(union(ran["start_ns"].tolist(), ran["end_ns"].tolist()))
    free_ns = 0  # when the link is done with the previous bucket
    for place, bucket in enumerate(ordered):
        ready_ns, start_ns = _ready_to_go(bucket), _int_or_zero(bucket["start_ns"])
        busy_ns = max(busy_before(min(start_ns, free_ns)) - busy_before(ready_ns), 0)
        if free_ns - start_ns > busy_ns:  # they share the link, as gloo's may
            busy_ns = 0
        free_ns = max(free_ns, _int_or_zero(bucket["end_ns"]))
        waiting = held.get(place, {})
        exposed = _int_or_zero(bucket["exposed_ns"])
        cost = exposed + max(waiting.values(), default=0)
        if cost < _COST_NS:
            continue
        costly.append(table.index[place])
        rows.append(
            {
                "index": bucket["index"],
                "parameter": bucket["last_parameter"],
                **dict(zip(("arrival", "shape"), last_arrival(bucket), strict=True)),
                "gap_ns": last_gap_ns(bucket["gradient_ready_ns"]),
                "held_ns": max(waiting.values(), default=0),
                "held": tuple(ordered[other]["index"] for other in waiting),
                "link_ns": busy_ns,
                "exposed_ns": exposed,
                "cost_ns": cost,
                **_without_last(ordered, place, by_design=by_design),
            }
        )
    late = pd.DataFrame(rows, index=costly, columns=list(_COLUMNS)).astype({"gap_ns": "Int64", "arrival": "Int64"})
    return late.sort_values("cost_ns", ascending=False, kind="stable")


def last_gap_ns(gradient_ready_ns: Iterable[int | None]) -> int | None:
    """How long after the previous gradient a bucket's last one arrived; None if fewer than two did."""
    arrivals = sorted(time for time in gradient_ready_ns if time is not None and not pd.isna(time))
    return arrivals[-1] - arrivals[-2] if len(arrivals) > 1 else None


def launched_after_backward(table: pd.DataFrame) -> bool:
    """Whether all launches waited for the whole backward pass, as in `naive`: then no bucket held up another."""
    return len(table) > 1 and bool((table["launch_ns"] >= table["backward_end_ns"]).all())


def _without_last(ordered: list[dict[Any, Any]], place: int, *, by_design: bool) -> dict[str, int]:
    """`earlier_ns` and `saved_ns` of the bucket at this place; 0 where unknown, or launched after all by design."""
    nothing = {"earlier_ns": 0, "saved_ns": 0}
    gap_ns = last_gap_ns(ordered[place]["gradient_ready_ns"])
    unknown = any(pd.isna(bucket[name]) for bucket in ordered for name in ("ready_ns", "launch_ns", "end_ns"))
    unknown |= len({(bucket.get("source"), bucket["backward_end_ns"]) for bucket in ordered}) > 1  # of several passes
    if by_design or gap_ns is None or unknown:
        return nothing
    ready_ns = [_int_or_zero(bucket["ready_ns"]) for bucket in ordered]
    sooner_ns = [ready - gap_ns if number == place else ready for number, ready in enumerate(ready_ns)]
    before, after = list(accumulate(ready_ns, max)), list(accumulate(sooner_ns, max))
    end_ns = free_ns = 0  # as recorded, and without the gradient
    for bucket, was_ns, is_ns in zip(ordered, before, after, strict=True):
        launched_ns = _ready_to_go(bucket)
        took_ns = _int_or_zero(bucket["end_ns"]) - max(launched_ns, end_ns)
        end_ns = _int_or_zero(bucket["end_ns"])
        free_ns = max(launched_ns - (was_ns - is_ns), free_ns) + took_ns
    over_ns = _int_or_zero(ordered[-1]["backward_end_ns"])
    return {"earlier_ns": before[place] - after[place], "saved_ns": max(end_ns, over_ns) - max(free_ns, over_ns)}


def _held_back(ordered: list[dict[Any, Any]]) -> dict[int, dict[int, int]]:
    """By a bucket's place: the places of later buckets that were ready but had to wait for it, and how long, in ns.

    Launches keep bucket order, so a ready bucket waits for the earlier bucket that became ready last.
    """
    held: dict[int, dict[int, int]] = {}
    latest: tuple[int, dict[Any, Any]] | None = None
    for place, bucket in enumerate(ordered):
        if pd.isna(bucket["ready_ns"]):
            continue
        if latest is not None:
            waits = _int_or_zero(latest[1]["ready_ns"]) - _int_or_zero(bucket["ready_ns"])
            waits = min(waits, _ready_to_go(bucket) - _int_or_zero(bucket["ready_ns"]))
            if waits >= _COST_NS:
                held.setdefault(latest[0], {})[place] = waits
        if latest is None or _int_or_zero(bucket["ready_ns"]) >= _int_or_zero(latest[1]["ready_ns"]):
            latest = place, bucket
    return held


def _ready_to_go(bucket: dict[Any, Any]) -> int:
    """When a bucket was both ready and launched, in ns."""
    times = [_int_or_zero(bucket[key]) for key in ("ready_ns", "launch_ns") if not pd.isna(bucket[key])]
    return max(times, default=_int_or_zero(bucket["start_ns"]))


def _int_or_zero(value: Any) -> int:
    return 0 if pd.isna(value) else int(value)
