"""The Collectives page: how fast each moved its data, how long ranks waited in it, and for whom."""

from __future__ import annotations

from overlaplab import findings
from overlaplab.analyses import stragglers_of
from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.head import open_page
from overlaplab.dashboard.pickers import pick_step, shown_diagnosis
from overlaplab.dashboard.spots import show_collective
from overlaplab.dashboard.widgets import show_page
from overlaplab.findings import Diagnosis
from overlaplab.sections.blocks import Section
from overlaplab.sections.run import collectives_section


def _section(opened: Opened, step: int | None, diagnosis: Diagnosis | None) -> Section | None:
    """The section about this step, None for all, with the diagnosis of the page's head."""
    tables = (opened.collectives, opened.hops, opened.staleness, opened.exposed, opened.summary)
    manifest = opened.manifest
    table, hops, stale, exposed, summary = (of if step is None else of[of["step"] == step] for of in tables)
    link = manifest.link if manifest else None
    late, lines = stragglers_of(table), opened.transfer_lines if len(table) else None
    more = {"stale": stale, "hops": hops, "lines": lines, "exposed": exposed, "summary": summary}
    return collectives_section(table, late, link, findings.note(manifest), diagnosis, **more)


def page() -> None:
    head = open_page("Collectives")
    opened = head.opened
    step = pick_step(opened.collectives) if len(opened.collectives) else None
    diagnosis = shown_diagnosis(opened)
    about = None if diagnosis is None else (diagnosis.rank, diagnosis.step, diagnosis.chosen)
    section = opened.get_or_make(("collectives", step, about), lambda: _section(opened, step, diagnosis))
    row = show_page(head, section, diagnosis, "collectives_table", findings.NO_COLLECTIVES)
    if row is not None:
        show_collective(opened, row)


page()
