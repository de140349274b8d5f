"""The sections of one run's part of a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from overlaplab import analyses, charts, findings
from overlaplab.analyses.exposed import Cause
from overlaplab.columns import columns
from overlaplab.events import Run
from overlaplab.report.blocks import Block, Lines, Section, drawn
from overlaplab.report.cells import MOST_ROWS, Cells, cells, sentences
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.timeline.timeline import timeline_events, timeline_view
from overlaplab.words import last_gradient

__all__ = ["Reported", "sections"]

_PARTS = (
    *("rank", "step", "span_ns", "compute_only_ns", "overlapped_ns", "exposed_comm_ns", "exposed_wait_ns"),
    *("exposed_transfer_ns", "memory_only_ns", "idle_ns", "overlap_ratio"),
)
_BUCKETS = columns(
    "buckets",
    *("index", "bytes", "last_parameter", "ready_ns", "launch_ns", "start_ns", "end_ns", "exposed_ns", "held_ns"),
)
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
_WINDOW = columns("window", "rank", "span_ns", "compute_ns", "comm_ns", "overlapped_ns", "exposed_comm_ns")

_MOST_RANKS = 8
"""More ranks' lanes are no picture that anybody reads."""


@dataclass(frozen=True)
class Reported:
    """A run and what of it is reported."""

    run: Run
    selection: Selection = EVERYTHING

    @cached_property
    def summary(self) -> pd.DataFrame:
        """`overlaplab.summary` of what is selected."""
        return analyses.summary(self.run, self.selection)

    @cached_property
    def worst(self) -> dict[str, Any]:
        """The row of `summary` of a median step of the rank most exposed, which the other sections show, too."""
        return analyses.worst_step(self.summary)

    @cached_property
    def exposed(self) -> pd.DataFrame:
        """`overlaplab.exposed` of what is selected."""
        return analyses.exposed(self.run, self.selection)

    @cached_property
    def idle(self) -> pd.DataFrame:
        """`analyses.idle` of what is selected."""
        return analyses.idle(self.run, self.selection)

    @property
    def note(self) -> str | None:
        """The line about the run that stands under its name."""
        return findings.note(self.run.manifest)

    @property
    def link(self) -> str | None:
        """The emulated link, which stands at every chart."""
        return findings.link_note(self.run.manifest)


def sections(reported: Reported) -> Iterator[Section]:
    """What there is to tell of a run, in the order in which one asks."""
    for section in (_summary, _exposed, _timeline, _buckets, _gathers, _collectives):
        found = section(reported)
        if found is not None:
            yield found


def _summary(reported: Reported) -> Section | None:
    table = reported.summary
    if table.empty:
        return None
    blocks: list[Block] = [drawn(charts.summary(table, note=reported.link), reported.link)]
    if len(table) <= MOST_ROWS:
        blocks.append(cells(table, columns("summary", *_PARTS), "Per rank and step"))
    else:
        per_rank = analyses.totals(reported.run, reported.selection)
        parts = columns("totals", *(name for name in _PARTS if name != "step"))
        blocks.append(cells(per_rank, parts, "Per rank, all steps together"))
    return Section(
        title="Where the step time went",
        shows="Each rank's step time, split into compute, communication hidden and exposed, memory and idle:"
        " each moment is counted once.",
        blocks=blocks,
        advice=findings.summary_advice(table),
    )


def _exposed(reported: Reported) -> Section | None:
    table, causes = reported.summary, reported.exposed
    if causes.empty:
        return None
    window = reported.worst
    rows = analyses.rows_of(causes, window)
    worst = findings.rank_and_step(window)
    blocks: list[Block] = [_by_cause(table, causes)]
    if len(rows):
        blocks.insert(0, _spots(rows, f"{worst[0].upper()}{worst[1:]}, each cause and collective, the dearest first"))
    return Section(
        title="Where the exposed time went",
        shows=findings.exposed_lead(rows, window),
        blocks=blocks,
        advice=findings.exposed_advice(table, causes, reported.idle),
    )


def _spots(rows: pd.DataFrame, caption: str) -> Cells:
    """Rows of `overlaplab.exposed` of one rank and step."""
    records = rows.to_dict("records")
    shown = rows.assign(
        cause=[findings.cause_label(row) for row in records],
        moved=[findings.collective_label(row) for row in records],
        of_exposed=rows["exposed_ns"] / max(int(rows["exposed_ns"].sum()), 1),
    )
    spots = columns("exposed", "cause", "moved", "exposed_ns", "of_exposed", "start_ns", "end_ns")
    return cells(shown, spots, caption, most=15, note="From, to: since the run's zero, as on the timeline.")


def _by_cause(table: pd.DataFrame, causes: pd.DataFrame) -> Cells:
    """All ranks and steps together."""
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
    by_cause = columns("exposed", "cause", "exposed_ns", "of_exposed", "of_step", "meaning")
    return cells(shown, by_cause, "By cause, the mean over all ranks and steps")


def _timeline(reported: Reported) -> Section | None:
    timeline = timeline_events(reported.run)
    if not (timeline.lanes["kind"] == "stream").any():
        return None
    known = [trace.rank for trace in reported.run.traces if trace.rank is not None]
    ranks = [rank for rank in known if reported.selection.ranks is None or rank in reported.selection.ranks]
    steps = timeline.steps[timeline.steps["rank"].isin(ranks)] if ranks else timeline.steps
    numbers = sorted(int(step) for step in steps["step"].dropna().unique())
    start, end, where = *timeline.extent, "the whole recording"
    if numbers:
        worst = reported.worst["step"] if len(reported.summary) else None
        step = int(worst) if worst in numbers else numbers[-1]
        own = steps[(steps["step"] == step).fillna(False)]
        start, end, where = int(own["start_ns"].min()), int(own["end_ns"].max()), f"step {step}"
    shown = frozenset(ranks[:_MOST_RANKS]) if ranks else None
    view = timeline_view(timeline, start_ns=start, end_ns=end, ranks=shown)
    return Section(
        title="Timeline",
        shows=findings.timeline_lead(view, where, len(ranks)),
        blocks=[
            drawn(charts.timeline(view, note=reported.link), reported.link),
            cells(view.totals, _WINDOW, "The same window in figures, from the raw events"),
        ],
        advice=findings.timeline_advice(view),
    )


def _buckets(reported: Reported) -> Section | None:
    every = analyses.buckets(reported.run, reported.selection)
    if every.empty:
        return None
    table, where = _one_window(every, reported)
    late = analyses.late_buckets(table)
    blocks: list[Block] = []
    if len(late) and not analyses.launched_after_backward(table):
        lines = tuple(findings.late_sentences(late))
        blocks.append(Lines(heading="Which parameter held each late bucket", lines=lines))
    blocks.append(drawn(charts.buckets(table, note=reported.link), reported.link))
    shown = table.merge(late[["index", "held_ns"]], on="index", how="left")
    shown["last_parameter"] = [last_gradient(row) for row in shown.to_dict("records")]
    shown["held_ns"] = shown["held_ns"].fillna(0)
    notes = sentences(findings.bucket_notes(table))
    blocks.append(cells(shown, _BUCKETS, "Per bucket, times from the step's start", note=notes))
    return Section(
        title="Buckets",
        shows=f"When each bucket's gradients arrived, when it was sent, and what of that showed: {where}.",
        blocks=blocks,
        advice=findings.buckets_advice(table, late),
    )


def _gathers(reported: Reported) -> Section | None:
    every = analyses.schedule(reported.run, reported.selection)
    if every.empty:
        return None
    table, where = _one_window(every, reported)
    manifest = reported.run.manifest
    scatters = _alike(analyses.scatters(reported.run, reported.selection), table)
    window = charts.schedule_window(table, scatters)
    curve = charts.gathered(analyses.gathered_bytes(table), window_ns=window, note=reported.link)
    prefetch = manifest.prefetch if manifest else None
    rows = charts.schedule(table, scatters, prefetch=prefetch, window_ns=window, note=reported.link)
    step = _alike(reported.summary, table)
    notes = sentences(findings.schedule_notes(table))
    return Section(
        title="Gathered parameters (ZeRO-3, FSDP)",
        shows=findings.gathers_lead(table, where),
        blocks=[
            drawn(curve, reported.link),
            drawn(rows, reported.link),
            cells(table, _GATHERS, "Per gather, times from the step's start", most=2 * MOST_ROWS, note=notes),
        ],
        advice=findings.gathers_advice(table, manifest, int(step["span_ns"].iloc[0]) if len(step) else None),
    )


def _collectives(reported: Reported) -> Section | None:
    table = analyses.collectives(reported.run, reported.selection)
    if table.empty:
        return None
    late = analyses.stragglers(reported.run, reported.selection)
    by_kind = _named(analyses.communication_by(reported.run, reported.selection))
    rows, link = analyses.each_collective(table), reported.run.manifest.link if reported.run.manifest else None
    blocks: list[Block] = []
    if ((rows["bus_gb_per_s"] > 0) & (rows["bytes"] > 0)).any():
        blocks.append(drawn(charts.bus_bandwidth(rows, link=link, note=reported.link), reported.link))
    if rows["wait_ns"].notna().any():
        blocks.append(drawn(charts.waits(rows, note=reported.link), reported.link))
    if late["last"].any():
        blocks.append(drawn(charts.late_ranks(late, note=reported.link), reported.link))
        blocks.append(cells(late, _STRAGGLERS, "Who came last", note="Late: after the median arrival of the others."))
    blocks += [_per_collective(rows), cells(by_kind, _BY_KIND, "By group and kind")]
    return Section(
        title="Collectives",
        shows=findings.collectives_lead(table, late),
        blocks=blocks,
        advice=findings.collectives_advice(late, table),
    )


def _per_collective(rows: pd.DataFrame) -> Cells:
    """One row per collective, the most exposed first."""
    ordered = _named(rows).sort_values("exposed_ns", ascending=False, kind="stable", na_position="last")
    bound = "Bus bandwidth is a lower bound where the transfer is unknown." if rows["bus_is_lower_bound"].any() else ""
    return cells(ordered, _COLLECTIVES, "Per collective, the most exposed first", note=bound)


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """With the groups' descriptions, or where there are none their names, as `group`."""
    return table.assign(group=table["group_description"].replace("", None).fillna(table["group"]))


def _one_window(table: pd.DataFrame, reported: Reported) -> tuple[pd.DataFrame, str]:
    """The rows of the worst rank and step, else of the lowest rank and the last step; and which these are."""
    worst = reported.worst if len(reported.summary) else {}
    for column, place in (("rank", 0), ("step", -1)):
        known = sorted(int(value) for value in table[column].dropna().unique())
        if known:
            chosen = worst.get(column) if worst.get(column) in known else known[place]
            table = table[(table[column] == chosen).fillna(False)]
    return table, findings.window_name(table) or "the whole recording"


def _alike(table: pd.DataFrame, like: pd.DataFrame) -> pd.DataFrame:
    """The rows of the rank and step that the other table's rows are of."""
    for column in ("rank", "step"):
        value = like[column].iloc[0]
        table = table[table[column].isna() if pd.isna(value) else (table[column] == value).fillna(False)]
    return table
