"""Analyses: pure functions from a run to tables."""

from overlaplab.analyses.buckets import buckets
from overlaplab.analyses.compare import compare
from overlaplab.analyses.late import last_gap_ns, late_buckets, launched_after_backward
from overlaplab.analyses.link import transfer_ns
from overlaplab.analyses.regression import Condition, parse_condition
from overlaplab.analyses.replay import replay
from overlaplab.analyses.summary import PARTS, summary, totals, warnings_of

__all__ = [
    "PARTS",
    "Condition",
    "buckets",
    "compare",
    "last_gap_ns",
    "late_buckets",
    "launched_after_backward",
    "parse_condition",
    "replay",
    "summary",
    "totals",
    "transfer_ns",
    "warnings_of",
]
