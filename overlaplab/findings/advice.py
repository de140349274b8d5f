"""What to do about what the tables show: a sentence or two for the end of a page or of a report's section, plain text.

Each takes the tables its page shows; figures are theirs, so that advice never says more than what was measured.
"""

from __future__ import annotations

import pandas as pd

from overlaplab.analyses import launched_after_backward, schedule_steps
from overlaplab.analyses.spread import FEWEST
from overlaplab.manifest import Manifest
from overlaplab.words import ms, percent

__all__ = ["buckets_advice", "collectives_advice", "compare_advice", "gathers_advice", "summary_advice"]

_LITTLE = 0.02  # of the step time: less than this is not worth an effort


def summary_advice(table: pd.DataFrame) -> str:
    """Of `overlaplab.summary`'s rows: what hiding communication could gain at most."""
    span, exposed = int(table["span_ns"].sum()), int(table["exposed_comm_ns"].sum())
    if exposed == 0:
        return "Leave communication as it is: none is exposed."
    return (
        f"Hiding all exposed communication would gain at most {ms(exposed / len(table))} per rank and step,"
        f" {percent(exposed, span)} of the step time. The causes of exposed time say how."
    )


def buckets_advice(table: pd.DataFrame, late: pd.DataFrame) -> str:
    """Of `overlaplab.buckets`' rows of one rank and step, and what `late_buckets` makes of them."""
    if late.empty:
        return "Nothing to do: no bucket was late."
    if launched_after_backward(table):
        return (
            "Launch each bucket when its gradients are there instead of after the backward pass:"
            " strategy bucketed does, and so does torch's DistributedDataParallel."
        )
    worst = late.iloc[0]
    if worst["index"] == table["index"].max() and worst["held_ns"] == 0:
        return (
            f"Bucket {worst['index']} is the last: nothing is left to compute while it is sent. Make it smaller: try a"
            " lower bucket_cap_mb, and compare the runs."
        )
    if worst["link_ns"] > worst["held_ns"]:
        return (
            f"Bucket {worst['index']} waited for the link, which had work already: send less (gradients of lower"
            " precision, fewer synchronisations by accumulating), or use a faster link."
        )
    if worst["held_ns"] == 0:
        return (
            f"Little is left to compute while bucket {worst['index']} is sent: a lower bucket_cap_mb sends it earlier"
            " and in smaller parts. Record a sweep of caps and compare."
        )
    return (
        f"Bucket {worst['index']} waited for one gradient while others stood ready: a lower bucket_cap_mb parts them."
        " Record a sweep of caps and compare."
    )


def gathers_advice(table: pd.DataFrame, manifest: Manifest | None, step_ns: int | None) -> str:
    """Of `overlaplab.schedule`'s rows of one rank and step, whose step took `step_ns`."""
    wait = schedule_steps(table)["wait_ns"].iloc[0]
    if pd.isna(wait):
        return "Record with labels or device activity to see how long compute waited for gathers."
    if step_ns is not None and wait <= _LITTLE * step_ns:
        return f"Nothing to do: compute waited {ms(int(wait))} for gathers, {percent(int(wait), step_ns)} of the step."
    if manifest is not None and manifest.prefetch is not None:
        return (
            f"Compute waited {ms(int(wait))} for gathers with prefetch {manifest.prefetch}: try prefetch"
            f" {manifest.prefetch + 1}, which holds one more layer at a time, and compare."
        )
    return f"Compute waited {ms(int(wait))} for gathers: gather units earlier (prefetch), or make them larger."


def collectives_advice(late: pd.DataFrame, table: pd.DataFrame) -> str:
    """Of `overlaplab.stragglers`' rows and `overlaplab.collectives`' rows."""
    known = table[table["transfer_ns"].notna()]
    if known.empty:
        return "Open all ranks' traces together to tell waiting from transfer."
    per_collective = known.drop_duplicates("index")
    transfer, wait = int(per_collective["transfer_ns"].sum()), int(known["wait_ns"].sum())
    if late.empty or not late["last"].any() or wait * 10 < transfer * max(known["rank"].nunique(), 1):
        return (
            "No rank makes the others wait much: what is left is the transfer, which fewer bytes or a faster link cut."
        )
    worst = late.iloc[0]
    if worst["cost_ns"] < 1.5 * late["cost_ns"].mean():
        return "The ranks take turns coming last: none is slow by itself, so steady what each does in a step."
    return (
        f"Look first at rank {worst['rank']}: it came last {worst['last']} of {worst['collectives']} times, and the"
        f" others together waited {ms(int(worst['cost_ns']))} for it. Compare its compute with theirs on the timeline."
    )


def compare_advice(table: pd.DataFrame) -> str:
    """Of `overlaplab.compare`'s rows."""
    if table["fastest"].any():
        return "Keep the fastest, or vary one more thing about it and compare again."
    if table["model"].nunique() > 1:
        return "Compare runs of one model: its layers, width, batch and sequence decide how long a step takes."
    if table["spread_ms"].isna().any():
        return f"Record at least {FEWEST} steps of each run before choosing: fewer do not tell how much steps differ."
    return "Record more steps or repeat the runs before choosing: the difference is within the spread."
