"""Why each bucket's communication was exposed, and why each gather kept its rank waiting: the diagnosis of the step."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from overlaplab.causes import OVERHEAD, Cause
from overlaplab.findings.actions.words import cause_words
from overlaplab.findings.diagnosis.causes import bucket_rows_by_name
from overlaplab.findings.diagnosis.diagnose import Diagnosis
from overlaplab.words import count, ms, size_exact

_COLUMNS = {"row": "Int64", **dict.fromkeys(("cause", "label"), "object")}
_COLUMNS |= dict.fromkeys(("exposed_ns", "start_ns", "end_ns"), "int64")
_MOST_CAUSES = 3
"""So many are named in a cell."""
_SHORT_LABEL_LENGTH = 20  # characters


def bucket_causes(diagnosis: Diagnosis | None, buckets: pd.DataFrame) -> pd.DataFrame:
    """A row per exposed moment of a step's diagnosis, in order of time; `buckets`: its rows of `buckets`.

    Columns: `row` (Int64: which of `buckets` it is counted in, by the frame's index; null for other collectives),
    `cause` (`analyses.exposed.Cause`), `label` (in words), `exposed_ns`, `start_ns` and `end_ns` (from the step's
    start).
    """
    rows_of = bucket_rows_by_name(buckets)
    starts = buckets["start_ns"].fillna(0).astype("int64")

    def find_row(what: str, at_ns: int) -> int | None:
        rows = rows_of.get(what, [])
        begun = [row for row in rows if starts[row] <= at_ns]
        return begun[-1] if begun else rows[0] if rows else None

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
    """Where buckets' exposed times add up to more than was exposed, how much of it is theirs; `causes` as above."""
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
    """
    moments = _moments(diagnosis)
    for wait_ns, end_ns in zip(schedule["wait_ns"], schedule["gather_end_ns"], strict=True):
        if pd.isna(wait_ns) or pd.isna(end_ns) or not wait_ns:
            yield None
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
    labels = [
        cause_words(Cause(cause), None if pd.isna(late) else int(late), overhead=bool(overhead))
        for cause, late, overhead in facts
    ]
    times = {name: table[name] - diagnosis.start_ns for name in ("start_ns", "end_ns")}
    return table.assign(label=pd.Series(labels, dtype=object), cause=table["cause"].map(Cause), **times)


def _longest(moments: pd.DataFrame) -> str | None:
    """The causes of these moments with their times, the longest first; None without any."""
    names = [_short_label(*facts) for facts in zip(moments["label"], moments["cause"], strict=True)]
    took = moments["exposed_ns"].groupby(names).sum().sort_values(ascending=False, kind="stable")
    words = [f"{ms(int(took_ns))} {name}" for name, took_ns in took.items()]
    left_out = len(words) - _MOST_CAUSES
    if left_out > 1:
        others_ns = int(took.iloc[_MOST_CAUSES:].sum())
        words = [*words[:_MOST_CAUSES], f"{ms(others_ns)} in {count(left_out, 'other cause')}"]
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
    late = max(int(best["end_ns"].max()) - int(best["last_ns"].iloc[0]), 0)
    return (
        f"Last row: the best buckets found on the same link, {count(len(best), 'bucket')} of {' to '.join(sizes)};"
        f" {ms(late)} of {'it' if len(best) == 1 else 'them'} cannot be hidden."
    )
