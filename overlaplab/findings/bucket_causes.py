"""Why each bucket's communication was exposed, as the diagnosis of its step says."""

from __future__ import annotations

import pandas as pd

from overlaplab.findings.diagnosis.causes import bucket_rows_by_name
from overlaplab.findings.diagnosis.diagnose import Diagnosis
from overlaplab.words import count, ms, percent, size


def bucket_causes(diagnosis: Diagnosis | None, buckets: pd.DataFrame) -> pd.DataFrame:
    """A row per bucket and cause of a step's diagnosis, each bucket's longest first; `buckets`: its rows of `buckets`.

    Columns: `row` (which of `buckets`, by the frame's index), `cause` (`analyses.exposed.Cause`), `label` (in words),
    `exposed_ns`.
    """
    rows_of = bucket_rows_by_name(buckets)
    starts = buckets["start_ns"].fillna(0).astype("int64")
    rows = []
    for share in diagnosis.causes if diagnosis else ():
        exposures = zip(*(share.rows[name] for name in ("what", "start_ns", "exposed_ns")), strict=True)
        for what, at_ns, took_ns in exposures:
            launched = rows_of.get(str(what), [])
            if diagnosis is not None and launched:
                begun = [row for row in launched if starts[row] <= int(at_ns) - diagnosis.start_ns]
                rows.append((begun[-1] if begun else launched[0], share.cause, share.label, int(took_ns)))
    table = pd.DataFrame(rows, columns=["row", "cause", "label", "exposed_ns"])
    return table.sort_values(["row", "exposed_ns"], ascending=[True, False], kind="stable", ignore_index=True)


def bucket_cause_words(causes: pd.DataFrame, row: int) -> str:
    """A bucket's longest cause in words, and its share of what is exposed of it; empty where nothing is."""
    of_bucket = causes[causes["row"] == row]
    if of_bucket.empty:
        return ""
    first, whole = of_bucket.iloc[0], int(of_bucket["exposed_ns"].sum())
    share = "" if len(of_bucket) == 1 else f", {percent(int(first['exposed_ns']), whole)} of it"
    return f"{first['label']}{share}"


def best_buckets_remark(best: pd.DataFrame | None) -> str | None:
    """What the chart's row of the best buckets is: rows of `simulate.best_buckets` of one rank and step."""
    if best is None or best.empty:
        return None
    sizes = dict.fromkeys(size(int(value)) for value in (best["bytes"].min(), best["bytes"].max()))
    late = max(int(best["end_ns"].max()) - int(best["last_ns"].iloc[0]), 0)
    return (
        f"Last row: the best buckets found on the same link, {count(len(best), 'bucket')} of {' to '.join(sizes)};"
        f" {ms(late)} of {'it' if len(best) == 1 else 'them'} cannot be hidden."
    )
