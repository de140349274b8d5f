"""The sections about one run, each from the tables of `overlaplab.analyses`; None where there is nothing to show.

`note` is the line about the run that stands at each chart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pandas as pd
from msgspec.structs import replace

from overlaplab import analyses, charts, findings
from overlaplab.charts.systems.hops import MOST_CELLS
from overlaplab.charts.theme import LINE
from overlaplab.evidence.pipelines import find_plan
from overlaplab.formats import as_held
from overlaplab.manifest import Manifest
from overlaplab.sections import tables
from overlaplab.sections.blocks import Block, Chart, Lines, Section, Tiles
from overlaplab.sections.run_tables import RunTables, diagnosed_pipeline_waits, pipeline_tables
from overlaplab.timeline.timeline import View
from overlaplab.timeline.window_statistics import WindowStatistics


def timeline_section(
    view: View, where: str, ranks: int, note: str | None, diagnosis: findings.Diagnosis | None
) -> Section:
    """A window of the timeline that nobody can zoom far into; `where` names it. `ranks`: how many there are.

    `diagnosis`: the diagnosis of a rank's step in it.
    """
    return Section(
        title="Timeline",
        lead=findings.timeline_lead(view, where, ranks),
        blocks=[
            Chart("timeline", partial(charts.timeline, view), note),
            tables.window_rows(view.totals, "The same window in figures, from the raw events"),
        ],
        advice=_advice(diagnosis),
    )


def window_section(
    visible: WindowStatistics,
    selected: WindowStatistics | None,
    what: str,
    step: int | None,
    why: str,
) -> Section:
    """A window of the timeline that can be moved: what is `visible`, or else `selected`, in figures.

    `what` says what is selected, or how to select; `step` is the visible one, if exactly one step is visible, and `why`
    says why that one is.
    """
    chosen = selected or visible
    notes = [findings.window_size(chosen).removesuffix("."), what.removesuffix(".")]
    causes = [tables.window_causes_rows(chosen)] if len(chosen.causes) else []
    return Section(
        title="Timeline",
        lead=findings.window_lead(visible, step, why),
        blocks=[
            tables.window_rows(chosen.ranks, findings.window_title(chosen, selected=selected is not None), notes),
            *causes,
            tables.kernels_rows(chosen.kernels),
        ],
        advice=(),  # the page's head has it
    )


def buckets_section(
    of: RunTables, table: pd.DataFrame, diagnosis: findings.Diagnosis | None, note: str | None
) -> Section | None:
    """`table`: the rows of `buckets` of one rank and step; `diagnosis`: that step's."""
    if table.empty:
        return None
    late = analyses.late_buckets(table)
    blocks: list[Block] = []
    lines = () if late.empty or analyses.launched_after_backward(table) else tuple(findings.late_sentences(late))
    if lines:
        blocks.append(Lines(key="late", heading="Late buckets, and what came last in them", lines=lines))
    causes = findings.bucket_causes(diagnosis, table)
    best = analyses.rows_of(of.best_buckets, dict(table.iloc[0]))
    draw = partial(charts.buckets, table, causes=causes, best=best)
    blocks.append(Chart("buckets_chart", draw, note, as_held(table, "buckets")))
    return Section(
        title="Buckets",
        lead=findings.buckets_lead(table, late),
        blocks=[*blocks, tables.buckets_rows(table, causes)],
        advice=_advice(diagnosis),
    )


def gathers_section(
    of: RunTables,
    table: pd.DataFrame,
    diagnosis: findings.Diagnosis | None,
    note: str | None,
    *,
    window_ns: tuple[int, int] | None = None,
    top_bytes: int = 0,
    line: int = LINE,
    prefix: str = "",
    after: Sequence[Chart] = (),
) -> Section | None:
    """`table`: the rows of `schedule` of one rank and step; `diagnosis`: that step's.

    `window_ns`, `top_bytes` and `line` are those of the charts, so that two runs can stand side by side; `prefix`
    begins the charts' keys then. `after`: charts before the table, such as `strips`.
    """
    if table.empty:
        return None
    scatters = analyses.rows_of(of.scatters, dict(table.iloc[0]))
    held = analyses.gathered_bytes(table)
    window = window_ns or charts.schedule_window(table, scatters)
    prefetch = of.manifest.prefetch if of.manifest else None
    limit = gathers_limit(table, of.manifest)
    curve = partial(charts.gathered, held, window_ns=window, top_bytes=top_bytes, limit=limit, line=line)
    rows = partial(charts.schedule, table, scatters, prefetch=prefetch, window_ns=window, line=line)
    where = findings.window_name(table) or "the whole recording"
    exposed = None if diagnosis is None else pd.concat([share.rows for share in diagnosis.causes] or [scatters.head(0)])
    remarks: list[str | None] = []
    if exposed is not None and "kind" in exposed:
        remarks = [findings.gathers_exposed(table, exposed), findings.scatters_exposed(scatters, exposed)]
    return Section(
        title="Gathered parameters (ZeRO-3, FSDP)",
        lead=" ".join(filter(None, [findings.gathers_lead(table, where), *remarks])),
        blocks=[
            Chart(f"{prefix}schedule_chart", rows, note, as_held(table, "schedule")),
            Chart(f"{prefix}curve_chart", curve, note, as_held(held, "gathered_bytes")),
            *after,
            tables.gathers_rows(table, diagnosis),
        ],
        advice=_advice(diagnosis),
    )


def gathers_limit(table: pd.DataFrame, manifest: Manifest | None) -> analyses.HeldLimit | None:
    """What a rank may hold at once, from rows of `schedule` of one rank and step; None where that is unknown."""
    prefetch = manifest.prefetch if manifest else None
    return None if prefetch is None else analyses.held_limit(table, prefetch)


def strips(of: RunTables, note: str | None = None) -> list[Chart]:
    """Charts of waits for gathers and of exposed reduce-scatters by rank and step, each if it has several cells."""
    tables = (
        ("gather_waits", charts.gather_waits, analyses.schedule_steps(of.schedule).dropna(subset=["wait_ns"])),
        ("scatters_exposed", charts.scatters_exposed, analyses.scatter_steps(of.scatters, of.exposed)),
    )
    return [
        Chart(key, partial(draw, steps), note)
        for key, draw, steps in tables
        if len(steps.dropna(subset=["rank", "step"])) > 1
    ]


def collectives_section(
    of: RunTables,
    diagnosis: findings.Diagnosis | None,
    note: str | None,
    *,
    step: int | None = None,
    kinds: bool = False,
) -> Section | None:
    """All collectives of the selected ranks, or those of one step.

    `diagnosis`: that of a rank's step among them; of this step the hops of the largest bucket are drawn. `kinds`:
    whether to add a table of the time by kind.
    """
    table, hops, stale, exposed, summary = (
        each if step is None else analyses.rows_of(each, {"step": step})
        for each in (of.collectives, of.hops, of.staleness, of.exposed, of.summary)
    )
    if table.empty:
        return None
    link = of.manifest.link if of.manifest else None
    late = of.stragglers if step is None else analyses.stragglers(of.run, replace(of.selection, steps=[step]))
    rows = analyses.each_collective(table)
    worded = rows.assign(bus_is_lower_bound=tables.bound_words(rows))
    held, blocks = as_held(worded, "each_collective"), list[Block]()
    if late["last"].any():
        blocks.append(Chart("late_ranks", partial(charts.late_ranks, late), note, as_held(late, "stragglers")))
        blocks.append(tables.late_ranks_rows(late))
    by_size = tables.sizes_rows(rows, None if link is None else link.bandwidth_gbps / 8)
    if by_size is not None:
        blocks.append(by_size)
    if by_size is None and rows["wait_ns"].notna().any():
        blocks.append(Chart("waits", partial(charts.waits, rows), note, held))
    if by_size is None and ((rows["bus_gb_per_s"] > 0) & (rows["bytes"] > 0)).any():
        blocks.append(Chart("bus_bandwidth", partial(charts.bus_bandwidth, rows, link=link), note, held))
    if len(stale):
        blocks.append(Chart("staleness", partial(charts.staleness, stale), note, as_held(stale, "staleness")))
    blocks += _hops(hops, None if diagnosis is None else diagnosis.step, note)
    blocks.append(tables.collectives_rows(rows))
    if kinds:
        blocks.append(tables.kinds_rows(of.communication_by))
    if len(of.transfer_lines):
        blocks.append(tables.lines_rows(of.transfer_lines))
    by_axis = findings.exposed_by_axis(exposed)
    return Section(
        title="Collectives",
        lead=" ".join(filter(None, (findings.collectives_lead(table, diagnosis, summary), by_axis))),
        blocks=blocks,
        advice=_advice(diagnosis),
    )


def _hops(table: pd.DataFrame, step: int | None, note: str | None) -> Iterator[Chart]:
    """Where the chunks of the step's largest bucket were, unless ranks' hops are missing or too many to draw."""
    if table.empty:
        return
    steps = table["step"].dropna()
    hops = table[table["step"].isin([step if (steps == step).any() else steps.max()])] if len(steps) else table
    hops = hops[hops["bucket"] == hops.groupby("bucket")["bytes"].sum().idxmax()]
    moments = analyses.chunks_after_hops(hops)
    if 0 < len(moments) <= MOST_CELLS:
        yield Chart("hops_chart", partial(charts.hops, hops, moments), note, as_held(hops, "hops"))


def pipeline_section(
    of: RunTables, diagnosis: findings.Diagnosis | None, window: tuple[int | None, int | None] | None = None
) -> Section | None:
    """The step of the pipeline that a rank is in; where stages are not labelled, all that is known of the waits.

    `window`: the rank and step, where they are not those that speak for the run; `diagnosis`: theirs.
    """
    if of.pipeline.empty:
        return _pipeline_waits_section(diagnosed_pipeline_waits(of), diagnosis)
    table, ranks, step = pipeline_tables(of, window)
    figures, note = step.iloc[0].to_dict(), findings.note(of.manifest)
    curves, end_ns = analyses.pipeline_held(table), int(table["end_ns"].max())
    draw = partial(charts.pipeline, table, title=findings.pipeline_title(figures, find_plan(of.run)))
    hold = partial(charts.pipeline_held, curves, end_ns=end_ns)
    tried = findings.pipeline_advice(of.pipeline_remedies)
    openings = {line.partition(":")[0] for line in tried}
    return Section(
        title="Pipeline",
        lead=findings.pipeline_lead(figures),
        blocks=[
            Tiles(key="pipeline_tiles", tiles=findings.pipeline_tiles(figures)),
            Chart("pipeline_chart", draw, note, as_held(table, "pipeline")),
            Chart("pipeline_held_chart", hold, None, as_held(curves, "pipeline_held")),
            tables.pipeline_ranks_rows(ranks),
            tables.pipeline_rows(table),
        ],
        advice=(*tried, *(line for line in _advice(diagnosis) if line.partition(". ")[0] not in openings)),
    )


def _pipeline_waits_section(table: pd.DataFrame, diagnosis: findings.Diagnosis | None) -> Section | None:
    """Rows of `pipeline_waits` of one step."""
    if table.empty:
        return None
    return Section(
        title="Pipeline",
        lead=findings.pipeline_waits_lead(table),
        blocks=[tables.pipeline_waits_rows(table)],
        advice=(findings.PIPELINE_UNLABELLED, *_advice(diagnosis)),
    )


def _advice(diagnosis: findings.Diagnosis | None) -> tuple[str, ...]:
    """The headline with the rank and step that it is about, and what to do: the same on every screen."""
    return () if diagnosis is None else findings.why_and_what_to_do(diagnosis)
