"""Why each bucket's communication was exposed, as the diagnosis of its step says."""

from __future__ import annotations

import pandas as pd

from overlaplab.findings.diagnosis.causes import buckets_by_name
from overlaplab.findings.diagnosis.diagnose import Diagnosis
from overlaplab.words import count, ms, percent, size


def bucket_causes(found: Diagnosis | None, buckets: pd.DataFrame) -> pd.DataFrame:
    """A row per bucket and cause of a step's diagnosis, each bucket's longest first; `buckets`: its rows of `buckets`.

    Columns: `index` (of the bucket), `cause` (`analyses.exposed.Cause`), `label` (in words), `exposed_ns`.
    """
    known = buckets_by_name(buckets)
    rows = [
        (known[str(what)], share.cause, share.label, int(took))
        for share in (found.causes if found else ())
        for what, took in zip(share.rows["what"], share.rows["exposed_ns"], strict=True)
        if str(what) in known
    ]
    table = pd.DataFrame(rows, columns=["index", "cause", "label", "exposed_ns"])
    return table.sort_values(["index", "exposed_ns"], ascending=[True, False], kind="stable", ignore_index=True)


def bucket_cause_words(causes: pd.DataFrame, index: int) -> str:
    """A bucket's longest cause in words, and its share of what is exposed of it; empty where nothing is."""
    own = causes[causes["index"] == index]
    if own.empty:
        return ""
    first, whole = own.iloc[0], int(own["exposed_ns"].sum())
    return (
        str(first["label"]) if len(own) == 1 else f"{first['label']}, {percent(int(first['exposed_ns']), whole)} of it"
    )


def best_buckets_remark(best: pd.DataFrame | None) -> str | None:
    """What the chart's row of the best buckets is: rows of `simulate.best_buckets` of one rank and step."""
    if best is None or best.empty:
        return None
    sizes = dict.fromkeys(size(int(value)) for value in (best["bytes"].min(), best["bytes"].max()))
    late = max(int(best["end_ns"].max()) - int(best["last_ns"].iloc[0]), 0)
    return (
        f"Last row: the best of all buckets on the same link, {count(len(best), 'bucket')} of {' to '.join(sizes)};"
        f" {ms(late)} of {'it' if len(best) == 1 else 'them'} cannot be hidden."
    )
