"""Charts of the analyses' tables: pure functions to `altair.Chart`, light or dark, each with its finding as a
title.
"""

from overlaplab.charts.breakdown import summary
from overlaplab.charts.comparison import compare
from overlaplab.charts.costs import memory_compared, sent_compared
from overlaplab.charts.gathers import schedule, schedule_window
from overlaplab.charts.held import gathered
from overlaplab.charts.lanes import timeline, timeline_rows
from overlaplab.charts.readiness import buckets
from overlaplab.charts.words import late_sentences, note, prefetch_of, verdict

__all__ = [
    "buckets",
    "compare",
    "gathered",
    "late_sentences",
    "memory_compared",
    "note",
    "prefetch_of",
    "schedule",
    "schedule_window",
    "sent_compared",
    "summary",
    "timeline",
    "timeline_rows",
    "verdict",
]
