"""The sections that set several runs side by side, from the tables of `overlaplab.compare` and `overlaplab.sweep`.

`note` is the line about the runs' links that stands at each chart.
"""

from __future__ import annotations

from functools import partial

import pandas as pd

from overlaplab import charts, findings
from overlaplab.charts.comparison import run_labels
from overlaplab.columns import columns
from overlaplab.formats import as_held
from overlaplab.sections.blocks import Block, Chart, Section, TableBlock

__all__ = ["costs_section", "step_times_section", "sweep_section"]

_CAPS = columns(
    "sweep",
    *("bucket_cap_mb", "runs", "steps", "buckets", "step_ms", "spread_ms", "lowest_ms", "highest_ms"),
    *("compute_only_ms", "hidden_ms", "exposed_ms", "rest_ms", "overlap_ratio"),
)
_CAPS_WIDE = columns(
    "sweep",
    *("bucket_cap_mb", "runs", "buckets", "step_ms", "spread_ms", "compute_only_ms", "hidden_ms", "exposed_ms"),
    *("rest_ms", "lowest_ms", "highest_ms", "steps", "overlap_ratio"),
)
_COMPARED = columns(
    "compare",
    *("run", "strategy", "bucket_cap_mb", "ranks", "steps", "step_ms_median", "step_ms_iqr"),
    *("compute_ms_median", "comm_ms_median", "exposed_ms_median", "overlap_ratio"),
)
_COSTS = columns(
    "compare",
    *("run", "sent_bytes", "theory_sent_bytes", "memory_bytes", "theory_memory_bytes", "peak_memory_bytes"),
)


def sweep_section(table: pd.DataFrame, links: pd.DataFrame, note: str | None) -> Section:
    """Rows of `sweep` and `sweep_links`: the step by cap, and when each bucket is on the link."""
    finding = f"{findings.sweep_finding(table)}."
    return Section(
        title="Step time by bucket_cap_mb",
        lead=finding,
        shows=f"Runs that differ in bucket_cap_mb alone. {finding}",
        blocks=[
            Chart(key="caps_chart", draw=partial(charts.caps, table), note=note, table=as_held(table, "sweep")),
            Chart(key="links_chart", draw=partial(charts.links, links), note=note, table=as_held(links, "sweep_links")),
            TableBlock(
                key="caps_table",
                caption="By bucket_cap_mb, each cap's recordings together",
                frame=table,
                columns=_CAPS,
                wide=_CAPS_WIDE,
                notes=findings.sweep_notes(table),
            ),
        ],
        advice=findings.sweep_advice(table),
    )


def step_times_section(table: pd.DataFrame, note: str | None, settings: list[str] | None = None) -> Section:
    """Rows of `compare`; `settings` says in words what each run was recorded with, for a table that scrolls."""
    chart = Chart(key="compare_chart", draw=partial(charts.compare, table), note=note, table=as_held(table, "compare"))
    shown = _labelled(table)
    return Section(
        title="Step time",
        lead="Each run's median step, and what it is made of.",
        blocks=[
            chart,
            TableBlock(
                key="compare_table",
                caption="Medians over all ranks' steps",
                frame=shown if settings is None else shown.assign(setting=settings),
                columns=_COMPARED,
                wide=() if settings is None else (*_COMPARED[:2], *columns("compare", "setting"), *_COMPARED[3:]),
            ),
        ],
        advice=(findings.compare_advice(table),),
    )


def costs_section(table: pd.DataFrame, note: str | None) -> Section | None:
    """Rows of `compare`: bytes sent and memory held against theory, where the runs tell them."""
    drawn = (
        ("sent_chart", charts.sent_compared, "sent_bytes"),
        ("memory_chart", charts.memory_compared, "memory_bytes"),
    )
    blocks: list[Block] = [
        Chart(key=key, draw=partial(draw, table), note=note) for key, draw, told in drawn if table[told].notna().any()
    ]
    if not blocks:
        return None
    return Section(
        title="What each strategy costs",
        lead="Bytes that each rank sends per step, and memory that it holds, beside what theory says.",
        blocks=[*blocks, TableBlock(key="costs_table", caption="Per run", frame=_labelled(table), columns=_COSTS)],
        advice=(findings.COSTS_ADVICE,),
    )


def _labelled(table: pd.DataFrame) -> pd.DataFrame:
    """With the runs' words as charts have them."""
    return table.assign(run=run_labels(table)[1])
