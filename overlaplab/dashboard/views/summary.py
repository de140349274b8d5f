"""The Summary page: the verdict, one bar per rank, where the exposed time went, and the figures behind them."""

from __future__ import annotations

from typing import Any

import pandas as pd

from overlaplab import findings
from overlaplab.dashboard.costs import costs_beside_theory
from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.links import go_to_timeline
from overlaplab.dashboard.widgets import (
    chosen_rows,
    lead,
    nothing_counts,
    page_head,
    pick_ranks,
    pick_step,
    run_or_stop,
    show_block,
    show_section,
    show_warnings,
    what_to_do,
)
from overlaplab.sections.run import exposed_section, summary_section

_ROOM = 0.2  # of a spot's length, shown on both sides of it
_LEAST_ROOM_NS = 50_000


def page() -> None:
    """Draw the page."""
    page_head("Summary", "How each rank's step time was spent, and why communication was exposed.")
    opened = run_or_stop()
    ranks, step = pick_ranks(opened.run), pick_step(opened.summary)
    table, causes, idled = (chosen_rows(one, ranks, step) for one in (opened.summary, opened.exposed, opened.idle))
    manifest = opened.run.manifest
    if table.empty:
        nothing_counts(opened.run)
        show_warnings(opened)
        return
    note = findings.note(manifest)
    only_ends = findings.sees_only_ends(opened.run)
    lead(findings.verdict(table, manifest, causes, idled, only_ends=only_ends), note)
    show_warnings(opened)
    section = summary_section(table, note)
    assert section is not None, "there are rows"
    chart, rows = section.blocks
    show_block(chart)
    over = "all ranks and steps" if ranks is None and step is None else "the chosen ranks and steps"
    exposed = exposed_section(table, causes, idled, over)
    if exposed is not None:
        chosen = show_section(exposed, choose="exposed_table")
        if chosen is not None:
            _go_to(opened, chosen)
    show_block(rows)
    costs_beside_theory(opened, table)
    what_to_do([findings.exposed_advice(table, causes, idled)])


def _go_to(opened: Opened, row: dict[Any, Any]) -> None:
    room = max(int(_ROOM * (row["end_ns"] - row["start_ns"])), _LEAST_ROOM_NS)
    rank = None if pd.isna(row["rank"]) else int(row["rank"])
    go_to_timeline(opened.name, start_ns=row["start_ns"] - room, end_ns=row["end_ns"] + room, rank=rank)


page()
