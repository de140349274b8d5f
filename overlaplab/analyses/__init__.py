"""Analyses: pure functions from a run to tables."""

from overlaplab.analyses.across_runs.baseline import baseline, recordings_before, stored_baseline
from overlaplab.analyses.across_runs.batches import largest_batches
from overlaplab.analyses.across_runs.compare import compare
from overlaplab.analyses.across_runs.regression import judged, parse_condition
from overlaplab.analyses.across_runs.settings import is_sweep, same_but_batch, same_but_cap, work_differs
from overlaplab.analyses.across_runs.sweep import sweep, sweep_links
from overlaplab.analyses.blocking import blocking
from overlaplab.analyses.buckets import averages_by_hand, buckets, sends_halves
from overlaplab.analyses.collectives import collectives, each_collective
from overlaplab.analyses.communication import communication_by
from overlaplab.analyses.delays import delays
from overlaplab.analyses.exposed import exposed, exposed_moments
from overlaplab.analyses.idle import host_role, idle, loads_in_workers
from overlaplab.analyses.late import last_gap_ns, late_buckets, launched_after_backward
from overlaplab.analyses.late_rank import late_rank_names, late_rank_phases, late_steps, latest_rank
from overlaplab.analyses.memory import memory, peaks
from overlaplab.analyses.phases import step_phases
from overlaplab.analyses.ranks import load_ranks
from overlaplab.analyses.scalars import Scalars, scalars
from overlaplab.analyses.sharding.gathered import HeldLimit, gathered_bytes, held_limit, kept_units, schedule_steps
from overlaplab.analyses.sharding.scatters import scatter_steps, scatters
from overlaplab.analyses.sharding.schedule import schedule
from overlaplab.analyses.slowdown import slowdowns
from overlaplab.analyses.stragglers import stragglers, stragglers_of
from overlaplab.analyses.summary import PARTS, summary, totals
from overlaplab.analyses.systems.label_tables import chunks_after_hops, copies, hops, recomputation, staleness
from overlaplab.analyses.systems.pipeline import pipeline, pipeline_held, pipeline_ranks, pipeline_steps
from overlaplab.analyses.systems.pipeline_waits import pipeline_waits
from overlaplab.analyses.systems.plan import plan_over_ranks
from overlaplab.analyses.transfer_lines import collective_times, transfer_lines
from overlaplab.analyses.volume import volume, volume_theory
from overlaplab.analyses.watched.changes import watched_changes
from overlaplab.analyses.watched.dumped import dumped_collectives, dumped_stopped
from overlaplab.analyses.watched.kinds import watched_kinds, watched_step_times
from overlaplab.analyses.watched.late import watched_late
from overlaplab.analyses.watched.ranks import watched_ranks
from overlaplab.analyses.watched.scalars import step_scalars
from overlaplab.analyses.watched.series import watched_series, watched_strip
from overlaplab.analyses.watched.steps import watched_bursts, watched_steps
from overlaplab.analyses.watched.stopped import watched_stopped
from overlaplab.analyses.worst import rows_of, worst_step
from overlaplab.costs import Theory
