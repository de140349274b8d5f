"""The sections about one run, each from the tables of `overlaplab.analyses`; None where there is nothing to show.

`note` is the line about the run that stands at each chart.
"""

from __future__ import annotations

from functools import partial

import pandas as pd

from overlaplab import analyses, charts, findings
from overlaplab.analyses.exposed import Cause
from overlaplab.charts.theme import LINE
from overlaplab.columns import columns
from overlaplab.formats import as_held, as_shown
from overlaplab.manifest import Link, Manifest
from overlaplab.sections.blocks import Block, Chart, Lines, Section, TableBlock
from overlaplab.words import last_gradient, shorten

__all__ = ["buckets_section", "collectives_section", "exposed_section", "gathers_section", "summary_section"]

_PARTS = (
    *("rank", "step", "span_ns", "compute_only_ns", "overlapped_ns", "exposed_comm_ns", "exposed_wait_ns"),
    *("exposed_transfer_ns", "memory_only_ns", "idle_ns", "overlap_ratio"),
)
_SUMMARY = columns("summary", *_PARTS)
_TOTALS = columns("totals", *(name for name in _PARTS if name != "step"))
_SPOTS = columns("exposed", "cause", "moved", "exposed_ns", "of_exposed", "start_ns", "end_ns")
_CAUSES = columns("exposed", "cause", "exposed_ns", "of_exposed", "of_step", "meaning")
_BUCKETS = columns(
    "buckets",
    *("index", "bytes", "last_parameter", "ready_ns", "launch_ns", "start_ns", "end_ns", "exposed_ns", "held_ns"),
)
_BUCKETS_WIDE = (*_BUCKETS[:3], *columns("buckets", "gap_ns"), *_BUCKETS[3:])
_GATHERS = columns(
    "schedule",
    *("unit", "phase", "microbatch", "gather_launch_ns", "gather_start_ns", "gather_end_ns"),
    *("first_use_ns", "wait_ns", "free_ns", "bytes"),
)
_COLLECTIVES = columns(
    "each_collective",
    *("index", "step", "group", "kind", "bytes", "wait_ns", "transfer_ns", "exposed_ns", "last_rank", "bus_gb_per_s"),
)
_STRAGGLERS = columns(
    "stragglers", "rank", "last", "collectives", "late_median_ns", "late_max_ns", "cost_ns", "alone_ns"
)
_BY_KIND = columns("communication_by", "rank", "group", "kind", "count", "bytes", "busy_ns", "exposed_ns")


def summary_section(table: pd.DataFrame, note: str | None, totals: pd.DataFrame | None = None) -> Section | None:
    """Rows of `summary`; in the table those of `totals`, if given, stand in their place."""
    if table.empty:
        return None
    if totals is None:
        rows = TableBlock(key="summary_table", caption="Per rank and step", frame=table, columns=_SUMMARY)
    else:
        caption = "Per rank, all steps together"
        rows = TableBlock(key="summary_table", caption=caption, frame=totals, columns=_TOTALS)
    shown = as_shown(table, _SUMMARY)
    return Section(
        title="Where the step time went",
        lead="Each rank's step time, split into compute, communication hidden and exposed, memory and idle:"
        " each moment is counted once.",
        blocks=[Chart(key="summary_chart", draw=partial(charts.summary, table), note=note, table=shown), rows],
        advice=(findings.summary_advice(table),),
    )


def exposed_section(
    table: pd.DataFrame, causes: pd.DataFrame, idle: pd.DataFrame, over: str = "all ranks and steps"
) -> Section | None:
    """Rows of `summary`, `exposed` and `idle` about the same ranks and steps, which `over` names."""
    if causes.empty:
        return None
    window = analyses.worst_step(table)
    rows = analyses.rows_of(causes, window)
    shows = findings.exposed_lead(rows, window)
    blocks = [_spots(rows, findings.rank_and_step(window))] if len(rows) else []
    return Section(
        title="Where the exposed time went",
        lead=findings.exposed_in_median_step(rows, window, table) if len(rows) else shows,
        shows=shows,
        blocks=[*blocks, _by_cause(table, causes, over)],
        advice=(findings.exposed_advice(table, causes, idle),),
    )


def _spots(rows: pd.DataFrame, where: str) -> TableBlock:
    """Rows of `exposed` of one rank and step."""
    records = rows.to_dict("records")
    shown = rows.assign(
        cause=[findings.cause_label(row) for row in records],
        moved=[findings.collective_label(row) for row in records],
        of_exposed=rows["exposed_ns"] / max(int(rows["exposed_ns"].sum()), 1),
    )
    return TableBlock(
        key="exposed_table",
        caption=f"{where[0].upper()}{where[1:]}, each cause and collective, the dearest first",
        frame=shown,
        columns=_SPOTS,
        notes=["from, to: since the run's zero, as on the timeline"],
        most=15,
    )


def _by_cause(table: pd.DataFrame, causes: pd.DataFrame, over: str) -> TableBlock:
    sums = causes.groupby("cause")["exposed_ns"].sum().sort_values(ascending=False, kind="stable")
    shown = pd.DataFrame(
        {
            "cause": sums.index,
            "exposed_ns": sums.to_numpy() / len(table),
            "of_exposed": sums.to_numpy() / sums.sum(),
            "of_step": sums.to_numpy() / table["span_ns"].sum(),
            "meaning": [findings.CAUSE_MEANINGS[Cause(str(cause))] for cause in sums.index],
        }
    )
    return TableBlock(key="causes_table", caption=f"By cause, the mean over {over}", frame=shown, columns=_CAUSES)


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
    shown = table.merge(late[["index", "held_ns"]], on="index", how="left")
    shown["held_ns"] = shown["held_ns"].fillna(0)
    shown["last_parameter"] = [last_gradient(row) for row in shown.to_dict("records")]
    shown["gap_ns"] = [analyses.last_gap_ns(times) for times in shown["gradient_ready_ns"]]
    rows = TableBlock(
        key="buckets_table",
        caption="Per bucket, times from the step's start",
        frame=shown,
        columns=_BUCKETS,
        wide=_BUCKETS_WIDE,
        notes=findings.bucket_notes(table),
    )
    where = findings.window_name(table) or "the whole recording"
    return Section(
        title="Buckets",
        lead=findings.buckets_lead(table, late),
        shows=f"When each bucket's gradients arrived, when it was sent, and what of that showed: {where}.",
        blocks=[*blocks, rows],
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
    begins the blocks' keys then.
    """
    if table.empty:
        return None
    first = {name: table[name].iloc[0] for name in ("rank", "step")}
    scatters, steps, held = *(analyses.rows_of(one, first) for one in (scatters, steps)), analyses.gathered_bytes(table)
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
            TableBlock(
                key=f"{prefix}gathers_table",
                caption="Per gather, times from the step's start",
                frame=table.assign(unit=[shorten(str(unit), 80) for unit in table["unit"]]),
                columns=_GATHERS,
                notes=findings.schedule_notes(table),
                most=120,
            ),
        ],
        advice=(findings.gathers_advice(table, manifest, span_ns),),
    )


def collectives_section(
    table: pd.DataFrame,
    late: pd.DataFrame,
    link: Link | None,
    note: str | None,
    by_kind: pd.DataFrame | None = None,
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
        ranks = partial(charts.late_ranks, late)
        notes = ["late: after the median arrival of the others"]
        blocks += [
            Chart(key="late_ranks", draw=ranks, note=note, table=as_held(late, "stragglers")),
            TableBlock(key="late_table", caption="Who came last", frame=late, columns=_STRAGGLERS, notes=notes),
        ]
    ordered = _named(rows).sort_values("exposed_ns", ascending=False, kind="stable", na_position="last")
    bound = ["bus bandwidth is a lower bound where the transfer is unknown"] if rows["bus_is_lower_bound"].any() else []
    caption = "Per collective, the most exposed first"
    blocks.append(
        TableBlock(key="collectives_table", caption=caption, frame=ordered, columns=_COLLECTIVES, notes=bound)
    )
    if by_kind is not None:
        shown = _named(by_kind)
        blocks.append(TableBlock(key="by_kind_table", caption="By group and kind", frame=shown, columns=_BY_KIND))
    return Section(
        title="Collectives",
        lead=findings.collectives_lead(table, late),
        blocks=blocks,
        advice=(findings.collectives_advice(late, table),),
    )


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """With the groups' descriptions, or where there are none their names, as `group`."""
    return table.assign(group=table["group_description"].replace("", None).fillna(table["group"]))
