"""The Collectives page: how fast each moved its data, how long ranks waited in it, and for whom."""

from __future__ import annotations

from overlaplab import findings
from overlaplab.dashboard.head import open_page
from overlaplab.dashboard.pickers import pick_step, shown_diagnosis
from overlaplab.dashboard.spots import show_collective
from overlaplab.dashboard.widgets import show_page
from overlaplab.sections.run import collectives_section


def page() -> None:
    head = open_page("Collectives")
    opened = head.opened
    step = pick_step(opened.collectives) if len(opened.collectives) else None
    diagnosis = shown_diagnosis(opened)
    about = None if diagnosis is None else (diagnosis.rank, diagnosis.step, diagnosis.chosen)
    section = opened.get_or_make(
        ("collectives", step, about),
        lambda: collectives_section(opened, diagnosis, findings.note(opened.manifest), step=step),
    )
    row = show_page(head, section, diagnosis, "collectives_table", findings.NO_COLLECTIVES)
    if row is not None:
        show_collective(opened, row)


page()
