"""The Collectives page: how fast each moved its data, how long ranks waited in it, and for whom."""

from __future__ import annotations

from overlaplab import findings
from overlaplab.analyses import stragglers_of
from overlaplab.dashboard.spots import show_collective
from overlaplab.dashboard.widgets import chosen_rows, nothing_to_show, open_page, pick_step, show_page
from overlaplab.sections.run import collectives_section


def page() -> None:
    """Draw the page."""
    opened = open_page(
        "Collectives",
        "How fast each collective moved its data, how long ranks waited in it for the last one, and who that was.",
    )
    table, manifest = opened.collectives, opened.manifest
    found, hops = opened.diagnosis, opened.hops
    if len(table):
        step = pick_step(table)
        table, found = chosen_rows(table, None, step), opened.diagnosis_of(step=step)
        hops = chosen_rows(hops, None, step)
    link = manifest.link if manifest else None
    section = collectives_section(table, stragglers_of(table), link, findings.note(manifest), found, hops=hops)
    if section is None:
        nothing_to_show(opened, findings.NO_COLLECTIVES)
        return
    row = show_page(opened, section, choose="collectives_table")
    if row is not None:
        show_collective(opened, row)


page()
