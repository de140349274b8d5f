"""A sweep over bucket_cap_mb as a table for a terminal of 80 columns, and as a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from rich.table import Table

from overlaplab.analyses import sweep, sweep_links
from overlaplab.columns import columns
from overlaplab.events import Run
from overlaplab.findings import sweep_finding, sweep_notes
from overlaplab.formats import UNKNOWN, text
from overlaplab.report.console import add_row, blank_table
from overlaplab.report.records import plain_value, records
from overlaplab.selection import EVERYTHING, Selection

__all__ = ["sweep_document", "sweep_table"]

_COUNTS = ("bucket_cap_mb", "runs", "buckets")
_TIMES = ("step_ms", "spread_ms", "compute_only_ms", "hidden_ms", "exposed_ms", "rest_ms")


def sweep_table(table: pd.DataFrame, links: pd.DataFrame, title: str) -> Table:
    """`sweep`'s rows in ms, the fastest bold; beside them from when to when `sweep_links` saw the link in use."""
    shown = blank_table(title, *columns("sweep", *_COUNTS, *_TIMES, "on_link"))
    shown.caption = (
        "ms; step: median over every rank's steps, ± their spread; compute + hidden + exposed + rest (memory, idle)"
        " = step; hidden: communication while the rank computes; on link: first start to last end in the first rank's"
        " step nearest the median"
    )
    for row in table.to_dict("records"):
        own = links[links["bucket_cap_mb"].eq(row["bucket_cap_mb"])]
        span = f"{text(own['start_ns'].min(), 'ns')}–{text(own['end_ns'].max(), 'ns')}" if len(own) else UNKNOWN
        counts = (text(row[name], "count") for name in _COUNTS)
        add_row(shown, [*counts, *(_ms(row[name]) for name in _TIMES), span], style="bold" if row["fastest"] else None)
    return shown


def _ms(value: Any) -> str:
    """Of seconds the tenths tell nothing, and ten columns have no room for them."""
    return text(value, "ms", 1 if pd.isna(value) or value < 1000 else 0)


def sweep_document(runs: Sequence[Run], selection: Selection = EVERYTHING) -> dict[str, Any]:
    """`sweep`'s rows by cap, each with its buckets on the link: ns from the start of the step that stands for it."""
    table, links = sweep(runs, selection), sweep_links(runs, selection)
    caps = []
    for row in records(table):
        own = links[links["bucket_cap_mb"].eq(row["bucket_cap_mb"])]
        caps.append(row | {"links": _links(own)})
    return {
        "varies": "bucket_cap_mb",
        "finding": sweep_finding(table),
        "notes": list(sweep_notes(table)),
        "caps": caps,
    }


def _links(own: pd.DataFrame) -> dict[str, Any] | None:
    """The step that stands for a cap, and its buckets."""
    if own.empty:
        return None
    own = own.assign(exposed_ns=(own["end_ns"] - own["start_ns"]).where(own["part"] == "exposed", 0))
    found = own.groupby("bucket", sort=False).agg(
        bytes=("bytes", "first"),
        start_ns=("start_ns", "min"),
        end_ns=("end_ns", "max"),
        exposed_ns=("exposed_ns", "sum"),
    )
    first = own.iloc[0]
    return {
        "path": first["path"],
        "rank": plain_value(first["rank"]),
        "step": plain_value(first["step"]),
        "buckets": records(found.reset_index()),
    }
