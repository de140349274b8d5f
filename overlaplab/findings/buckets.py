"""When buckets were ready and sent, which of them were late and why, and what to do about it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from overlaplab.analyses import launched_after_backward
from overlaplab.findings.diagnosis.causes import bucket_numbers
from overlaplab.findings.thresholds import (
    HELD_NS,
    LISTED_SHARE,
    MOST_BUCKETS_LISTED,
    MOST_LATE_BUCKETS,
    PROMPT_LAUNCH_NS,
)
from overlaplab.findings.windows import window_name
from overlaplab.words import count, gradient_word, ms, to_ms


def bucket_notes(table: pd.DataFrame) -> tuple[str, ...]:
    """What a reader of `overlaplab.buckets`' table must know, a line each."""
    if table.empty:
        return ("no buckets were found: they show in the engine's labels or torch's DDP, and on a GPU in its activity",)
    notes = []
    from_ddp = int((table["source"] == "ddp").sum())
    if 0 < from_ddp < len(table):
        notes.append(
            f"{from_ddp} of {len(table)} buckets have no labels (no Recorder was made for their models): they are read"
            " from torch's DDP, as all-reduces launched while a gradient is accumulated, without names"
        )
    elif from_ddp:
        notes.append(
            "read from torch's DDP: its buckets are all-reduces launched while a gradient is accumulated, without names"
        )
    if by_order := int((table["told_by"] == "order").sum()):
        notes.append(
            f"sizes do not determine the gradients of {by_order} of {len(table)} buckets: taken in order of arrival"
        )
    if unknown := int(table["told_by"].isna().sum()):
        notes.append(f"which gradients {unknown} of {len(table)} buckets hold is unknown")
    launches = int(table.groupby(["rank", "step", "index"], dropna=False).size().max())
    if launches > 1:
        notes.append(f"a bucket was launched up to {launches} times in a step: each launch has a row")
    if (most := int(table["passes"].max())) > 1:
        notes.append(f"up to {most} backward passes of a step sent gradients: the last one's buckets are shown")
    added_ns, once_ns = _sent_ns(table)
    if added_ns > once_ns:
        notes.append(
            f"some buckets are sent at once, and each counts that time: they take {ms(added_ns)} added up, and"
            f" {ms(once_ns)} together"
        )
    return tuple(notes)


def buckets_lead(table: pd.DataFrame, late: pd.DataFrame) -> str:
    """How many buckets were late.

    Takes rows of `overlaplab.buckets` of one rank and step, and what `overlaplab.analyses.late_buckets` makes of them.
    """
    where = window_name(table)
    number = count(len(table), "bucket") + (f" of {where}" if where else "")
    if table["end_ns"].isna().all():
        return f"{number}: their communication was not found in the trace, only when they were ready."
    if late.empty:
        return f"{number}: none was late, all of their communication is hidden behind compute."
    if launched_after_backward(table):
        return f"{number}: nothing was launched before backward ended, so no gradient held up a bucket."
    exposed, held = int((late["exposed_ns"] > 0).sum()), int((late["held_ns"] > 0).sum())
    waited = f"; later buckets were ready and waited for {held} of them" if held else ""
    return f"{number}: {exposed or 'none'} with exposed communication{waited}."


def buckets_title(table: pd.DataFrame) -> str:
    """How much of the communication of `overlaplab.buckets`' rows is exposed."""
    added_ns, once_ns = _sent_ns(table)
    if added_ns <= 0:
        return "The buckets' communication was not found in the trace"
    exposed = int(table["exposed_ns"].sum())
    title = f"{ms(exposed)} of the buckets' {ms(added_ns)} of communication are exposed"
    return title if added_ns == once_ns else f"{title}, added up: some are sent at once"


def _sent_ns(table: pd.DataFrame) -> tuple[int, int]:
    """How long `overlaplab.buckets`' rows were sent, added up, and with each moment of a rank's step counted once."""
    sent = table.dropna(subset=["start_ns", "end_ns"]).sort_values("start_ns", kind="stable")
    starts, ends = sent["start_ns"].astype("int64"), sent["end_ns"].astype("int64")
    step = [sent["rank"], sent["step"]]
    busy_until = ends.groupby(step, dropna=False).cummax().groupby(step, dropna=False).shift().fillna(starts)
    once = (ends - np.maximum(starts, busy_until)).clip(lower=0)
    return int((ends - starts).sum()), int(once.sum())


def buckets_remarks(table: pd.DataFrame) -> list[str]:
    """Say how many buckets' communication is missing, and how many waited to be launched."""
    remarks = []
    if missing := int(table["end_ns"].isna().sum()):
        remarks.append(f"The communication of {count(missing, 'bucket')} was not found in the trace.")
    labelled = table[table["source"] != "ddp"] if "source" in table else table  # DDP's launch defines readiness
    if waited := int((labelled["launch_ns"] - labelled["ready_ns"] > PROMPT_LAUNCH_NS).sum()):
        least = f"{to_ms(PROMPT_LAUNCH_NS):g} ms"
        remarks.append(
            f"{count(waited, 'bucket')} waited more than {least} for launch, although ready (launches keep order)."
        )
    return remarks


def late_sentences(late: pd.DataFrame, limit: int = MOST_LATE_BUCKETS) -> list[str]:
    """A sentence for each row of `overlaplab.analyses.late_buckets` that matters, the first `limit` of them.

    That are buckets with over `LISTED_SHARE` of the step's exposed time, or whose last gradient cost as much.
    """
    enough = LISTED_SHARE * int(late["exposed_ns"].sum())
    rows = late[(late["exposed_ns"] > enough) | (late["saved_ns"] > enough)]
    lines = [_late_sentence(row) for row in rows.head(limit).to_dict("records")]
    if len(rows) > limit:
        lines.append(f"{count(len(rows) - limit, 'more late bucket')} in the table below.")
    return lines


def _late_sentence(row: dict[Any, Any]) -> str:
    """Say which gradient came last and when, whether it or the link held up the bucket, and what that cost."""
    name = gradient_word(row["parameter"], row["arrival"], row["shape"])
    alone = pd.isna(row["gap_ns"])
    gap = "the only one in it" if alone else f"{ms(row['gap_ns'])} after the one before it"
    waited = f", and then waited {ms(row['link_ns'])} for the busy link" if row["link_ns"] > PROMPT_LAUNCH_NS else ""
    exposed = f"{ms(row['exposed_ns'])} of it is exposed."
    if row["earlier_ns"] <= HELD_NS:
        return f"Bucket {row['index']}: {name} came last, {gap}{waited}; {exposed}"
    saved = f"{ms(row['saved_ns'])} less would be" if row["saved_ns"] else "no less would be"
    line = f"Bucket {row['index']} was held by {name}, {gap}{waited}; {exposed}"
    if row["held"]:
        at_most = "up to " if len(row["held"]) > 1 else ""
        line += f" {_bucket_numbers(row['held'])} stood ready and waited {at_most}{ms(row['held_ns'])} for it."
    return f"{line} Without that delay it would start {ms(row['earlier_ns'])} earlier, and {saved} exposed."


def _bucket_numbers(indices: tuple[int, ...]) -> str:
    if len(indices) > MOST_BUCKETS_LISTED:
        return f"{len(indices)} buckets"
    text = bucket_numbers(indices)
    return f"{text[0].upper()}{text[1:]}"
