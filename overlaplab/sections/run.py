"""The sections about one run, each from the tables of `overlaplab.analyses`; None where there is nothing to show.

`note` is the line about the run that stands at each chart.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd

from overlaplab import analyses, charts, findings
from overlaplab.charts.theme import LINE
from overlaplab.formats import as_held, as_shown
from overlaplab.manifest import Link, Manifest
from overlaplab.sections import tables
from overlaplab.sections.blocks import Block, Chart, Lines, Section
from overlaplab.timeline.timeline import View

__all__ = [
    "buckets_section",
    "collectives_section",
    "exposed_section",
    "gathers_section",
    "summary_section",
    "timeline_section",
]


def summary_section(table: pd.DataFrame, note: str | None, totals: pd.DataFrame | None = None) -> Section | None:
    """Rows of `summary`; in the table those of `totals`, if given, stand in their place."""
    if table.empty:
        return None
    draw = partial(charts.summary, table)
    held, rows = as_shown(table, tables.summary_rows(table).columns), tables.summary_rows(table, totals)
    return Section(
        title="Where the step time went",
        lead="Each rank's step time, split into compute, communication hidden and exposed, memory and idle:"
        " each moment is counted once.",
        blocks=[Chart(key="summary_chart", draw=draw, note=note, table=held), rows],
        advice=(findings.summary_advice(table),),
    )


def exposed_section(
    table: pd.DataFrame,
    causes: pd.DataFrame,
    idle: pd.DataFrame,
    over: str = "all ranks and steps",
    unseen: findings.Unseen = findings.OTHER_RANKS,
    bound: Mapping[str, Any] | None = None,
) -> Section | None:
    """Rows of `summary`, `exposed` and `idle` about the same ranks and steps, which `over` names."""
    if causes.empty:
        return None
    window = analyses.worst_step(table)
    rows = analyses.rows_of(causes, window)  # a median step may have none
    spots = [tables.spots_rows(rows, findings.rank_and_step(window))] if len(rows) else []
    return Section(
        title="Where the exposed time went",
        lead=findings.exposed_lead(rows, window, table),
        blocks=[*spots, tables.causes_rows(table, causes, over)],
        advice=(findings.exposed_advice(table, causes, idle, unseen, bound),),
    )


def timeline_section(view: View, where: str, ranks: int, note: str | None) -> Section:
    """A window of the timeline that nobody can zoom far into; `where` names it. `ranks`: how many there are."""
    return Section(
        title="Timeline",
        lead=findings.timeline_lead(view, where, ranks),
        blocks=[
            Chart(key="timeline", draw=partial(charts.timeline, view), note=note),
            tables.window_rows(view.totals, "The same window in figures, from the raw events"),
        ],
        advice=(findings.timeline_advice(view),),
    )


def buckets_section(table: pd.DataFrame, note: str | None) -> Section | None:
    """Rows of `buckets` of one rank and step."""
    if table.empty:
        return None
    late = analyses.late_buckets(table)
    blocks: list[Block] = []
    if len(late) and not analyses.launched_after_backward(table):
        lines = tuple(findings.late_sentences(late))
        blocks.append(Lines(key="late", heading="Which parameter held each late bucket", lines=lines))
    draw = partial(charts.buckets, table)
    blocks.append(Chart(key="buckets_chart", draw=draw, note=note, table=as_held(table, "buckets")))
    return Section(
        title="Buckets",
        lead=findings.buckets_lead(table, late),
        blocks=[*blocks, tables.buckets_rows(table)],
        advice=(findings.buckets_advice(table, late),),
    )


def gathers_section(
    table: pd.DataFrame,
    scatters: pd.DataFrame,
    steps: pd.DataFrame,
    manifest: Manifest | None,
    note: str | None,
    *,
    window_ns: tuple[int, int] | None = None,
    top_bytes: int = 0,
    line: int = LINE,
    prefix: str = "",
) -> Section | None:
    """Rows of `schedule` of one rank and step; of `scatters` and of `summary`, as `steps`, all that there are.

    `window_ns`, `top_bytes` and `line` are those of the charts, so that two runs can stand side by side; `prefix`
    begins the charts' keys then.
    """
    if table.empty:
        return None
    first = {name: table[name].iloc[0] for name in ("rank", "step")}
    scatters, steps = analyses.rows_of(scatters, first), analyses.rows_of(steps, first)
    held = analyses.gathered_bytes(table)
    window = window_ns or charts.schedule_window(table, scatters)
    prefetch = manifest.prefetch if manifest else None
    curve = partial(charts.gathered, held, window_ns=window, top_bytes=top_bytes, line=line)
    rows = partial(charts.schedule, table, scatters, prefetch=prefetch, window_ns=window, line=line)
    span_ns = int(steps["span_ns"].iloc[0]) if len(steps) else None
    return Section(
        title="Gathered parameters (ZeRO-3, FSDP)",
        lead=findings.gathers_lead(table, findings.window_name(table) or "the whole recording"),
        blocks=[
            Chart(key=f"{prefix}curve_chart", draw=curve, note=note, table=as_held(held, "gathered_bytes")),
            Chart(key=f"{prefix}schedule_chart", draw=rows, note=note, table=as_held(table, "schedule")),
            tables.gathers_rows(table),
        ],
        advice=(findings.gathers_advice(table, manifest, span_ns),),
    )


def collectives_section(
    table: pd.DataFrame,
    late: pd.DataFrame,
    link: Link | None,
    note: str | None,
    by_kind: pd.DataFrame | None = None,
    unseen: findings.Unseen = findings.OTHER_RANKS,
) -> Section | None:
    """Rows of `collectives`, `stragglers` and, if given, `communication_by` about the same ranks and steps."""
    if table.empty:
        return None
    rows = analyses.each_collective(table)
    held, blocks = as_held(rows, "each_collective"), list[Block]()
    if ((rows["bus_gb_per_s"] > 0) & (rows["bytes"] > 0)).any():
        draw = partial(charts.bus_bandwidth, rows, link=link)
        blocks.append(Chart(key="bus_bandwidth", draw=draw, note=note, table=held))
    if rows["wait_ns"].notna().any():
        blocks.append(Chart(key="waits", draw=partial(charts.waits, rows), note=note, table=held))
    if late["last"].any():
        draw = partial(charts.late_ranks, late)
        blocks.append(Chart(key="late_ranks", draw=draw, note=note, table=as_held(late, "stragglers")))
        blocks.append(tables.late_ranks_rows(late))
    blocks.append(tables.collectives_rows(rows))
    if by_kind is not None:
        blocks.append(tables.kinds_rows(by_kind))
    return Section(
        title="Collectives",
        lead=findings.collectives_lead(table, late),
        blocks=blocks,
        advice=(findings.collectives_advice(late, table, unseen),),
    )
