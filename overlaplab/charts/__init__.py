"""Charts of the analyses' tables: pure functions that return an `altair.Chart`, light or dark, titled by a finding."""

from overlaplab.charts.breakdown import summary
from overlaplab.charts.collectives import bus_bandwidth, late_ranks, waits
from overlaplab.charts.comparison import compare
from overlaplab.charts.costs import memory_compared, sent_compared
from overlaplab.charts.lanes import timeline, timeline_rows
from overlaplab.charts.marks import step_marks
from overlaplab.charts.notebook import draw_offline
from overlaplab.charts.readiness import buckets
from overlaplab.charts.sharding.gather_waits import gather_waits, scatters_exposed
from overlaplab.charts.sharding.gathers import schedule, schedule_window
from overlaplab.charts.sharding.held import gathered
from overlaplab.charts.sweep import caps, links
from overlaplab.charts.systems.hops import hops
from overlaplab.charts.systems.pipeline import pipeline, pipeline_held
from overlaplab.charts.systems.plan import planned_memory
from overlaplab.charts.systems.staleness import staleness
from overlaplab.charts.watched import watched_late, watched_shares, watched_times
from overlaplab.charts.what_if import (
    caps_predicted,
    depths_predicted,
    held_predicted,
    ranks_predicted,
    step_lanes,
    throughput_predicted,
)

__all__ = [
    "buckets",
    "bus_bandwidth",
    "caps",
    "caps_predicted",
    "compare",
    "depths_predicted",
    "draw_offline",
    "gather_waits",
    "gathered",
    "held_predicted",
    "hops",
    "late_ranks",
    "links",
    "memory_compared",
    "pipeline",
    "pipeline_held",
    "planned_memory",
    "ranks_predicted",
    "scatters_exposed",
    "schedule",
    "schedule_window",
    "sent_compared",
    "staleness",
    "step_lanes",
    "step_marks",
    "summary",
    "throughput_predicted",
    "timeline",
    "timeline_rows",
    "waits",
    "watched_late",
    "watched_shares",
    "watched_times",
]
