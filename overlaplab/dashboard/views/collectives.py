"""The Collectives page: how fast each moved its data, how long ranks waited in it, and for whom."""

from __future__ import annotations

from overlaplab import findings
from overlaplab.analyses import stragglers_of
from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.pickers import pick_step
from overlaplab.dashboard.spots import show_collective
from overlaplab.dashboard.widgets import chosen_rows, nothing_to_show, open_page, show_page
from overlaplab.sections.blocks import Section
from overlaplab.sections.run import collectives_section


def _section(opened: Opened, step: int | None) -> Section | None:
    """The section about this step, None for all."""
    table, manifest = chosen_rows(opened.collectives, None, step), opened.manifest
    link = manifest.link if manifest else None
    diagnosis, hops = opened.find_diagnosis(step=step), chosen_rows(opened.hops, None, step)
    late, lines = stragglers_of(table), opened.transfer_lines if len(table) else None
    stale, exposed = (chosen_rows(of, None, step) for of in (opened.staleness, opened.exposed))
    more = {"stale": stale, "hops": hops, "lines": lines, "exposed": exposed}
    return collectives_section(table, late, link, findings.note(manifest), diagnosis, **more)


def page() -> None:
    """Draw the page."""
    opened = open_page(
        "Collectives",
        "How fast each collective moved its data, how long ranks waited in it for the last one, and who that was.",
    )
    step = pick_step(opened.collectives) if len(opened.collectives) else None
    section = opened.get_or_make(("collectives", step), lambda: _section(opened, step))
    if section is None:
        nothing_to_show(opened, findings.NO_COLLECTIVES)
        return
    row = show_page(opened, section, choose="collectives_table")
    if row is not None:
        show_collective(opened, row)


page()
