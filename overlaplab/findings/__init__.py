"""Every sentence that says what was measured, why, or what to do: plain text, neither Markdown nor HTML.

Each subject has a `…_lead`, which opens a page's section; a `…_title` for its chart, and `…_remarks` on what the chart
does not show; `…_notes`, which a reader of the figures must know; and `…_advice`: what to do. All take the tables that
the page shows, so that no sentence says more than what was measured.
"""

from overlaplab.findings.buckets import (
    bucket_notes,
    buckets_advice,
    buckets_lead,
    buckets_remarks,
    buckets_title,
    late_sentences,
)
from overlaplab.findings.causes import (
    CAUSE_MEANINGS,
    cause_label,
    collective_label,
    exposed_advice,
    exposed_finding,
    exposed_lead,
    rank_and_step,
)
from overlaplab.findings.collectives import (
    bandwidth_remarks,
    bandwidth_title,
    collectives_advice,
    collectives_lead,
    late_ranks_title,
    waits_title,
)
from overlaplab.findings.comparison import compare_advice, compare_title, no_fastest, run_labels, short_names
from overlaplab.findings.costs import (
    COSTS_ADVICE,
    costs_title,
    held_lead,
    held_notes,
    sent_lead,
    sent_notes,
    unknown_sizes,
)
from overlaplab.findings.events import event_facts
from overlaplab.findings.gathers import (
    GatherCost,
    gathered_peak,
    gathered_title,
    gathers_advice,
    gathers_lead,
    prefetch_gain,
    schedule_line,
    schedule_notes,
    schedule_remarks,
    schedule_title,
    turn_label,
)
from overlaplab.findings.runs import (
    describe_link,
    describe_ranks,
    describe_settings,
    link_missed,
    link_note,
    links_note,
    note,
    run_title,
)
from overlaplab.findings.summary import summary_advice, summary_scope, summary_title
from overlaplab.findings.sweeps import sweep_advice, sweep_finding, sweep_notes, sweep_subject, sweep_title
from overlaplab.findings.unseen import OTHER_RANKS, Unseen, unseen
from overlaplab.findings.verdict import other_problem, verdict
from overlaplab.findings.warnings import not_recorded, run_warnings, unmatched_notes
from overlaplab.findings.windows import (
    clocks_note,
    timeline_advice,
    timeline_lead,
    timeline_title,
    window_advice,
    window_lead,
    window_name,
    window_size,
)

__all__ = [
    "CAUSE_MEANINGS",
    "COSTS_ADVICE",
    "OTHER_RANKS",
    "GatherCost",
    "Unseen",
    "bandwidth_remarks",
    "bandwidth_title",
    "bucket_notes",
    "buckets_advice",
    "buckets_lead",
    "buckets_remarks",
    "buckets_title",
    "cause_label",
    "clocks_note",
    "collective_label",
    "collectives_advice",
    "collectives_lead",
    "compare_advice",
    "compare_title",
    "costs_title",
    "describe_link",
    "describe_ranks",
    "describe_settings",
    "event_facts",
    "exposed_advice",
    "exposed_finding",
    "exposed_lead",
    "gathered_peak",
    "gathered_title",
    "gathers_advice",
    "gathers_lead",
    "held_lead",
    "held_notes",
    "late_ranks_title",
    "late_sentences",
    "link_missed",
    "link_note",
    "links_note",
    "no_fastest",
    "not_recorded",
    "note",
    "other_problem",
    "prefetch_gain",
    "rank_and_step",
    "run_labels",
    "run_title",
    "run_warnings",
    "schedule_line",
    "schedule_notes",
    "schedule_remarks",
    "schedule_title",
    "sent_lead",
    "sent_notes",
    "short_names",
    "summary_advice",
    "summary_scope",
    "summary_title",
    "sweep_advice",
    "sweep_finding",
    "sweep_notes",
    "sweep_subject",
    "sweep_title",
    "timeline_advice",
    "timeline_lead",
    "timeline_title",
    "turn_label",
    "unknown_sizes",
    "unmatched_notes",
    "unseen",
    "verdict",
    "waits_title",
    "window_advice",
    "window_lead",
    "window_name",
    "window_size",
]
