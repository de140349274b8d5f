"""When buckets were ready and sent, which were late, and why they and gathers were exposed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from overlaplab.analyses import launched_after_backward
from overlaplab.causes import OVERHEAD, Cause
from overlaplab.evidence.arrays import int_or_none
from overlaplab.findings.actions.words import cause_words
from overlaplab.findings.diagnosis.causes import bucket_numbers, bucket_rows_by_name
from overlaplab.findings.diagnosis.diagnose import Diagnosis
from overlaplab.findings.thresholds import (
    HELD_NS,
    LISTED_SHARE,
    MOST_BUCKETS_LISTED,
    MOST_CAUSES,
    MOST_LATE_BUCKETS,
    PROMPT_LAUNCH_NS,
    SECOND_CAUSE,
)
from overlaplab.findings.windows import window_name
from overlaplab.words import capitalise, count, gradient_word, ms, size_exact, to_ms


def bucket_notes(table: pd.DataFrame) -> tuple[str, ...]:
    """What a reader of `overlaplab.buckets`' table must know, a line each."""
    if table.empty:
        return (
            "no buckets were found: they show in the engine's labels or torch's DDP, and on a GPU in its activity; what"
            " gathers parameters is in `overlaplab schedule`",
        )
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
            f"some buckets are sent at the same time, which each counts: {ms(added_ns)} added up, and {ms(once_ns)}"
            " together, of all ranks and steps that are listed"
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
    if late.empty and (missing := int(table["end_ns"].isna().sum())):
        return (
            f"{number}: none is known to be late; the communication of {count(missing, 'bucket')} was not found in the"
            " trace, all other is hidden behind compute."
        )
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
            f"{count(waited, 'bucket')} waited more than {least} for launch, although ready: launches keep order, or"
            " come after the backward pass."
        )
    return remarks


def late_sentences(late: pd.DataFrame, limit: int = MOST_LATE_BUCKETS) -> list[str]:
    """A sentence for each of the first `limit` rows of `overlaplab.analyses.late_buckets` that matter.

    A bucket matters with over `LISTED_SHARE` of the late buckets' exposed time, or if its last gradient cost as much.
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
    gap = "the only one in it" if pd.isna(row["gap_ns"]) else f"{ms(row['gap_ns'])} after the one before it"
    waited = (
        f", and then waited {ms(row['link_ns'])} behind what was sent before it"
        if row["link_ns"] > PROMPT_LAUNCH_NS
        else ""
    )
    exposed = f"{ms(row['exposed_ns'])} of its communication is exposed."
    if row["earlier_ns"] <= HELD_NS:
        return f"Bucket {row['index']}: {name} came last, {gap}{waited}; {exposed}"
    saved = f"{ms(row['saved_ns'])} less would be" if row["saved_ns"] else "no less would be"
    line = f"Bucket {row['index']} was held by {name}, {gap}{waited}; {exposed}"
    if row["held"]:
        number, at_most = len(row["held"]), "up to " if len(row["held"]) > 1 else ""
        held = f"{number} buckets" if number > MOST_BUCKETS_LISTED else capitalise(bucket_numbers(row["held"]))
        line += f" {held} stood ready and waited {at_most}{ms(row['held_ns'])} for it."
    return (
        f"{line} Without that delay it could have been launched {ms(row['earlier_ns'])} earlier, and {saved} exposed."
    )


_COLUMNS = {"row": "Int64", **dict.fromkeys(("cause", "label"), "object")}
_COLUMNS |= dict.fromkeys(("exposed_ns", "start_ns", "end_ns"), "int64")
_SHORT_LABEL_LENGTH = 20  # characters


def bucket_causes(diagnosis: Diagnosis | None, buckets: pd.DataFrame) -> pd.DataFrame:
    """A row per exposed moment of a step's diagnosis, in order of time; `buckets`: that step's rows of `buckets`.

    Columns: `row` (Int64: which of `buckets` counts it, by the frame's index; null for other collectives),
    `cause` (`causes.Cause`), `label` (in words), `exposed_ns`, `start_ns` and `end_ns` (from the step's start).
    """
    rows_of = bucket_rows_by_name(buckets)
    starts = buckets["start_ns"].fillna(0).astype("int64")

    def find_row(what: str, at_ns: int) -> int | None:
        rows = rows_of.get(what, [])
        begun = [row for row in rows if starts[row] <= at_ns]
        return begun[-1] if begun else rows[0] if rows else None  # of several launches the latest that has begun

    table = _moments(diagnosis)
    rows = [find_row(str(what), at_ns) for what, at_ns in zip(table["what"], table["start_ns"], strict=True)]
    return table.assign(row=pd.array(rows, dtype="Int64"))[list(_COLUMNS)].astype(_COLUMNS)


def bucket_cause_words(causes: pd.DataFrame, bucket: pd.Series) -> str | None:
    """Why a row of `buckets` was exposed, the longest cause first; None where it is unknown whether it was.

    `causes`: `bucket_causes` of the step.
    """
    if pd.isna(bucket["exposed_ns"]):
        return None
    if not bucket["exposed_ns"]:
        return "all hidden"
    counted = causes[(causes["row"] == bucket.name).fillna(False)]
    return _longest(counted) or "counted in another collective at the same time"


def counted_once_note(causes: pd.DataFrame, buckets: pd.DataFrame) -> str | None:
    """How much was exposed, where buckets' exposed times add up to more; else None. `causes`: `bucket_causes`."""
    added_ns = int(buckets["exposed_ns"].fillna(0).sum())
    once_ns = int(causes.loc[causes["row"].notna(), "exposed_ns"].sum())
    if causes.empty or added_ns <= once_ns:
        return None
    return (
        f"the exposed times add up to {ms(added_ns)}, because collectives at the same time each count it; each moment"
        f" counted once, as on Summary, it is {ms(once_ns)}"
    )


def gather_cause_words(diagnosis: Diagnosis | None, schedule: pd.DataFrame) -> Iterator[str | None]:
    """For each row of `schedule` of a step why compute waited for it, the longest cause first; None where nothing did.

    A gather's wait ends with the gather, and each of its moments has the cause that the diagnosis of the step says.
    What ended before this step's first kernel belongs to the step before.
    """
    moments = _moments(diagnosis)
    for wait_ns, end_ns in zip(schedule["wait_ns"], schedule["gather_end_ns"], strict=True):
        if pd.isna(wait_ns) or pd.isna(end_ns) or not wait_ns:
            yield None
            continue
        if end_ns <= 0:
            yield "waited before the step"
            continue
        begun, ended = moments["start_ns"].clip(lower=end_ns - wait_ns), moments["end_ns"].clip(upper=end_ns)
        within = moments.assign(exposed_ns=(ended - begun).clip(lower=0))
        yield _longest(within[within["exposed_ns"] > 0])


def _moments(diagnosis: Diagnosis | None) -> pd.DataFrame:
    """The diagnosis' moments in order of time, from the step's start, with a `label`."""
    if diagnosis is None:
        return pd.DataFrame(columns=[*_COLUMNS, "what"]).astype(_COLUMNS)
    table = diagnosis.moments.sort_values("start_ns", kind="stable", ignore_index=True)
    facts = zip(table["cause"], table["late_rank"], table["overhead"], strict=True)
    labels = [cause_words(Cause(cause), int_or_none(late), overhead=bool(short)) for cause, late, short in facts]
    times = {name: table[name] - diagnosis.start_ns for name in ("start_ns", "end_ns")}
    return table.assign(label=pd.Series(labels, dtype=object), cause=table["cause"].map(Cause), **times)


def _longest(moments: pd.DataFrame) -> str | None:
    """The causes of these moments with their times, the longest first, small ones together; None without any."""
    names = [_short_label(*facts) for facts in zip(moments["label"], moments["cause"], strict=True)]
    took = moments["exposed_ns"].groupby(names).sum().sort_values(ascending=False, kind="stable")
    words = [f"{ms(int(took_ns))} {name}" for name, took_ns in took.items()]
    listed = min(int((took >= SECOND_CAUSE * took.sum()).sum()), MOST_CAUSES)
    left_out = len(words) - listed
    if left_out > 1:
        others_ns = int(took.iloc[listed:].sum())
        words = [*words[:listed], f"{ms(others_ns)} in {count(left_out, 'other cause')}"]
    return ", ".join(words) or None


def _short_label(label: str, cause: str) -> str:
    """A cause in few words: without its term in parentheses, or by this term alone."""
    if label == OVERHEAD:
        return "short pauses"
    words = label.partition(" (")[0]
    return words if len(words) <= _SHORT_LABEL_LENGTH else Cause(cause).value


def best_buckets_remark(best: pd.DataFrame | None) -> str | None:
    """What the chart's row of the best buckets is: rows of `simulate.best_buckets` of one rank and step."""
    if best is None or best.empty:
        return None
    sizes = dict.fromkeys(size_exact(int(value)) for value in (best["bytes"].min(), best["bytes"].max()))
    last_ns = int(best["last_ns"].iloc[0])
    late = max(int(best["end_ns"].max()) - last_ns, 0)
    return (
        f"Last row: the best buckets on the same link, {count(len(best), 'bucket')} of {' to '.join(sizes)};"
        f" {'it' if len(best) == 1 else 'the last'} ends {ms(late)} after this rank's last gradient, which then comes"
        f" at {ms(last_ns)}; waits for other ranks are included."
    )
