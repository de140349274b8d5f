"""The sections that set several runs side by side, from the tables of `overlaplab.compare` and `overlaplab.sweep`.

`note` is the line about the runs' links that stands at each chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd

from overlaplab import charts, findings
from overlaplab.formats import as_held
from overlaplab.sections.blocks import Block, Chart, Section
from overlaplab.sections.tables import batches_rows, compare_rows, costs_rows, sweep_rows


def sweep_section(table: pd.DataFrame, links: pd.DataFrame, note: str | None) -> Section:
    """Rows of `sweep` and `sweep_links`: the step by cap, and when each bucket is on the link."""
    return Section(
        title="Step time by bucket_cap_mb",
        lead=f"{findings.sweep_finding(table)}.",
        blocks=[
            Chart("caps_chart", partial(charts.caps, table), note, as_held(table, "sweep")),
            Chart("links_chart", partial(charts.links, links), note, as_held(links, "sweep_links")),
            sweep_rows(table, links),
        ],
        advice=findings.sweep_advice(table),
    )


def step_times_section(table: pd.DataFrame, note: str | None, settings: Sequence[str] | None = None) -> Section:
    """Rows of `compare`; `settings` says in words what each run was recorded with, for a table that scrolls."""
    draw = partial(charts.compare, table)
    return Section(
        title="Step time",
        lead=f"{findings.compare_finding(table)}.",
        blocks=[
            Chart("compare_chart", draw, note, as_held(table, "compare")),
            compare_rows(table, settings),
        ],
        advice=(findings.compare_advice(table),),
    )


def batches_section(table: pd.DataFrame) -> Section | None:
    """Rows of `largest_batches`: what fits, and the time per sample; None where no batch was found so."""
    rows = batches_rows(table)
    if rows is None:
        return None
    advice = findings.batches_advice(table)
    return Section(
        title="The largest batch that fits",
        lead=f"{findings.batches_finding(table)}.",
        blocks=[rows],
        advice=() if advice is None else (advice,),
    )


def costs_section(table: pd.DataFrame, note: str | None) -> Section | None:
    """Rows of `compare`: bytes sent and memory held against theory, where the runs tell them."""
    drawn = (
        ("sent_chart", charts.sent_compared, "sent_bytes"),
        ("memory_chart", charts.memory_compared, "memory_bytes"),
    )
    blocks: list[Block] = [
        Chart(key=key, draw=partial(draw, table), note=note) for key, draw, name in drawn if table[name].notna().any()
    ]
    rows = costs_rows(table)
    if not blocks or rows is None:
        return None
    return Section(
        title="What each strategy costs",
        lead="Bytes that each rank sends per step, and memory that it holds, beside what theory says.",
        blocks=[*blocks, rows],
        advice=(findings.COSTS_ADVICE,),
    )
