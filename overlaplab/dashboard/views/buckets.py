"""The Buckets page: when each bucket was ready, what it waited for, and which parameter held it."""

from __future__ import annotations

import pandas as pd

from overlaplab import findings
from overlaplab.dashboard.spots import show_in_step
from overlaplab.dashboard.widgets import (
    lead,
    nothing_to_show,
    one_window,
    page_head,
    run_or_stop,
    show_blocks,
    show_warnings,
    what_to_do,
)
from overlaplab.sections.run import buckets_section


def page() -> None:
    """Draw the page."""
    page_head(
        "Buckets",
        "When each bucket's gradients were ready, what it then waited for, and what of its communication shows.",
    )
    opened = run_or_stop()
    note = findings.note(opened.run.manifest)
    section = None if opened.buckets.empty else buckets_section(one_window(opened.buckets), note)
    if section is None:
        nothing_to_show(
            opened.run,
            "This run has no buckets. They come from the engine's labels (`engine::bucket_ready` and its kin), and"
            " from torch's DistributedDataParallel, whose all-reduces are launched as gradients are accumulated.",
        )
        show_warnings(opened)
        return
    lead(section.lead, note)
    row = show_blocks(section.blocks, choose="buckets_table")
    if row is not None:
        first = row["launch_ns"] if pd.isna(row["ready_ns"]) else row["ready_ns"]
        show_in_step(opened, row, first, row["end_ns"])
    what_to_do(section.advice)


page()
