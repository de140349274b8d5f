"""Analyses: pure functions from a run to tables."""

from overlaplab.analyses.buckets import buckets
from overlaplab.analyses.collectives import collectives, each_collective
from overlaplab.analyses.communication import communication_by
from overlaplab.analyses.compare import compare
from overlaplab.analyses.delays import delays
from overlaplab.analyses.exposed import CAUSES, Cause, exposed
from overlaplab.analyses.gathered import gathered_bytes, schedule_steps
from overlaplab.analyses.idle import idle
from overlaplab.analyses.late import last_gap_ns, late_buckets, launched_after_backward
from overlaplab.analyses.memory import memory, peaks
from overlaplab.analyses.ranks import load_ranks
from overlaplab.analyses.regression import Condition, parse_condition
from overlaplab.analyses.scatters import scatters
from overlaplab.analyses.schedule import schedule
from overlaplab.analyses.settings import is_sweep
from overlaplab.analyses.stragglers import stragglers, stragglers_of
from overlaplab.analyses.summary import PARTS, summary, totals
from overlaplab.analyses.sweep import sweep, sweep_links
from overlaplab.analyses.volume import volume, volume_theory
from overlaplab.analyses.worst import rows_of, worst_step
from overlaplab.costs import Theory

__all__ = [
    "CAUSES",
    "PARTS",
    "Cause",
    "Condition",
    "Theory",
    "buckets",
    "collectives",
    "communication_by",
    "compare",
    "delays",
    "each_collective",
    "exposed",
    "gathered_bytes",
    "idle",
    "is_sweep",
    "last_gap_ns",
    "late_buckets",
    "launched_after_backward",
    "load_ranks",
    "memory",
    "parse_condition",
    "peaks",
    "rows_of",
    "scatters",
    "schedule",
    "schedule_steps",
    "stragglers",
    "stragglers_of",
    "summary",
    "sweep",
    "sweep_links",
    "totals",
    "volume",
    "volume_theory",
    "worst_step",
]
