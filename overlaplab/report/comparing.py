"""The part of a report that sets several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence

from overlaplab import analyses, findings
from overlaplab.report.blocks import Shown, shown
from overlaplab.report.sections import Reported
from overlaplab.sections.comparison import costs_section, step_times_section, sweep_section

__all__ = ["compared"]


def compared(reported: Sequence[Reported]) -> tuple[Shown, ...]:
    """The sections about all runs; none where fewer than two can be compared."""
    good = [one for one in reported if not one.summary.empty]
    if len(good) < 2:
        return ()
    runs, selection = [one.run for one in good], good[0].selection
    note = "; ".join(sorted({link for run in runs if (link := findings.link_note(run.manifest)) is not None})) or None
    table = analyses.compare(runs, selection)
    if analyses.is_sweep(runs):
        first = sweep_section(analyses.sweep(runs, selection), analyses.sweep_links(runs, selection), note)
    else:
        first = step_times_section(table, note)
    return tuple(shown(section) for section in (first, costs_section(table, note)) if section is not None)
