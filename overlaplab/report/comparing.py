"""The part of a report that sets several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from overlaplab import analyses, charts, findings
from overlaplab.charts.comparison import run_labels
from overlaplab.columns import columns
from overlaplab.report.blocks import Block, Section, drawn
from overlaplab.report.cells import cells, sentences
from overlaplab.report.sections import Reported

__all__ = ["compared"]

_CAPS = columns(
    "sweep",
    *("bucket_cap_mb", "runs", "steps", "buckets", "step_ms", "spread_ms", "lowest_ms", "highest_ms"),
    *("compute_only_ms", "hidden_ms", "exposed_ms", "rest_ms", "overlap_ratio"),
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


def compared(reported: Sequence[Reported]) -> tuple[Section, ...]:
    """The sections about all runs; none where fewer than two can be compared."""
    good = [one for one in reported if not one.summary.empty]
    if len(good) < 2:
        return ()
    first = good[0]
    table = analyses.compare([one.run for one in good], first.selection)
    runs = [one.run for one in good]
    first_section = _by_cap(good, first) if analyses.is_sweep(runs) else _step_times(good, table)
    return tuple(section for section in (first_section, _costs(good, table)) if section is not None)


def _by_cap(good: Sequence[Reported], first: Reported) -> Section:
    """A sweep: the step by cap, and when each bucket is on the link."""
    runs, note = [one.run for one in good], _links(good)
    table = analyses.sweep(runs, first.selection)
    links = analyses.sweep_links(runs, first.selection)
    return Section(
        title="Step time by bucket_cap_mb",
        shows=f"Runs that differ in bucket_cap_mb alone. {findings.sweep_finding(table)}.",
        blocks=[
            drawn(charts.caps(table, note=note), note),
            drawn(charts.links(links, note=note), note),
            cells(
                table,
                _CAPS,
                "By bucket_cap_mb, each cap's recordings together",
                note=sentences(findings.sweep_notes(table)),
            ),
        ],
        advice=" ".join(findings.sweep_advice(table)),
    )


def _step_times(good: Sequence[Reported], table: pd.DataFrame) -> Section:
    return Section(
        title="Step time",
        shows="Each run's median step, and what it is made of.",
        blocks=[
            drawn(charts.compare(table, note=_links(good)), _links(good)),
            cells(_labelled(table), _COMPARED, "Medians over all ranks' steps"),
        ],
        advice=findings.compare_advice(table),
    )


def _costs(good: Sequence[Reported], table: pd.DataFrame) -> Section | None:
    """Bytes sent and memory held against theory, where the runs tell them."""
    pairs = ((charts.sent_compared, "sent_bytes"), (charts.memory_compared, "memory_bytes"))
    link = _links(good)
    blocks: list[Block] = [drawn(chart(table, note=link), link) for chart, told in pairs if table[told].notna().any()]
    if not blocks:
        return None
    return Section(
        title="What each strategy costs",
        shows="Bytes that each rank sends per step, and memory that it holds, beside what theory says.",
        blocks=[*blocks, cells(_labelled(table), _COSTS, "Per run")],
        advice=findings.COSTS_ADVICE,
    )


def _labelled(table: pd.DataFrame) -> pd.DataFrame:
    """With the runs' words as charts have them."""
    return table.assign(run=run_labels(table)[1])


def _links(good: Sequence[Reported]) -> str | None:
    """The emulated links among the runs."""
    return findings.links_note([one.run.manifest for one in good])
