"""The Buckets page: when each bucket was ready, what it waited for, and which parameter held it."""

from __future__ import annotations

import pandas as pd

from overlaplab import findings
from overlaplab.dashboard.head import open_page
from overlaplab.dashboard.pickers import pick_one, shown_diagnosis
from overlaplab.dashboard.spots import show_in_step
from overlaplab.dashboard.widgets import show_page
from overlaplab.sections.run import buckets_section
from overlaplab.sections.run_tables import one_window, table_window

_NOTHING = (
    "This run has no buckets. They come from the engine's labels (`engine::bucket_ready` and its kin), and"
    " from torch's DistributedDataParallel, whose all-reduces are launched as gradients are accumulated."
)


def page() -> None:
    head = open_page("Buckets")
    opened = head.opened
    table = opened.buckets
    section = None
    if len(table):
        table = one_window(table, opened.window, pick=pick_one)
        diagnosis = opened.find_diagnosis(*table_window(table))
        section = opened.get_or_make(
            ("buckets", *table_window(table)),
            lambda: buckets_section(opened, table, diagnosis, findings.note(opened.manifest)),
        )
    else:
        diagnosis = shown_diagnosis(opened)
    row = show_page(head, section, diagnosis, "buckets_table", _NOTHING)
    if row is not None:
        first = row["launch_ns"] if pd.isna(row["ready_ns"]) else row["ready_ns"]
        show_in_step(opened, row, first, row["end_ns"], carried=(row["start_ns"], row["end_ns"]))


page()
