"""Charts of the analyses' tables: pure functions to `altair.Chart`, light or dark, each with its finding as a
title.
"""

from overlaplab.charts.breakdown import summary
from overlaplab.charts.comparison import compare
from overlaplab.charts.lanes import timeline, timeline_rows
from overlaplab.charts.readiness import buckets
from overlaplab.charts.words import late_sentences, note, verdict

__all__ = [
    "buckets",
    "compare",
    "late_sentences",
    "note",
    "summary",
    "timeline",
    "timeline_rows",
    "verdict",
]
