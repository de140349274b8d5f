"""Where did my communication time go, and what would hide it?

Load a run with `load_run`; every analysis takes it and returns a pandas table; `overlaplab.charts` draws the tables.
"""

from overlaplab.analyses import (
    buckets,
    collectives,
    communication_by,
    compare,
    exposed,
    memory,
    schedule,
    stragglers,
    summary,
    sweep,
    totals,
    volume,
)
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run
from overlaplab.evidence.clocks import clocks
from overlaplab.load import load_run, load_sweep
from overlaplab.selection import Selection

__all__ = [
    "OverlaplabError",
    "Run",
    "Selection",
    "buckets",
    "clocks",
    "collectives",
    "communication_by",
    "compare",
    "exposed",
    "load_run",
    "load_sweep",
    "memory",
    "schedule",
    "stragglers",
    "summary",
    "sweep",
    "totals",
    "volume",
]
