"""Every sentence that says what was measured, why, or what to do: plain text, neither Markdown nor HTML.

Each subject has a `…_lead`, which opens a page's section; a `…_title` for its chart, and `…_remarks` on what the chart
does not show; `…_notes`, which a reader of the figures must know; and `…_advice`: what to do. All take the tables that
the page shows, so that no sentence says more than what was measured.
"""

from overlaplab.findings.across_runs.batches import PUBLISHED_NOTE, batches_advice, batches_finding
from overlaplab.findings.across_runs.comparison import (
    compare_advice,
    compare_finding,
    compare_notes,
    links_refused,
    no_fastest,
    run_labels,
    short_names,
    work_compared,
)
from overlaplab.findings.across_runs.sweeps import (
    sweep_advice,
    sweep_ends,
    sweep_finding,
    sweep_left_out,
    sweep_notes,
    sweep_subject,
)
from overlaplab.findings.actions.ranked import Advised, actions_title, certainty_words
from overlaplab.findings.advice import (
    advice_lines,
    advice_refused,
    advice_sentences,
    choose_setting,
    cutting_limit_ns,
    neighbour,
    option_words,
    record_options,
    verified_finding,
)
from overlaplab.findings.buckets import (
    bucket_cause_words,
    bucket_causes,
    bucket_notes,
    buckets_lead,
    counted_once_note,
    gather_cause_words,
    late_sentences,
)
from overlaplab.findings.collectives import (
    NO_COLLECTIVES,
    bandwidth_remarks,
    bandwidth_title,
    collectives_lead,
    exposed_by_axis,
    waits_title,
)
from overlaplab.findings.costs import COSTS_ADVICE, held_lead, held_notes, sent_lead, sent_notes, unknown_sizes
from overlaplab.findings.diagnosis.bound import split_unhideable
from overlaplab.findings.diagnosis.causes import collective_label, rank_and_step
from overlaplab.findings.diagnosis.diagnose import (
    Diagnosis,
    deeper_prefetch,
    diagnose,
    exposed_lead,
    place_name,
    what_to_do,
    why_and_what_to_do,
    why_chosen,
)
from overlaplab.findings.diagnosis.late_rank import late_reason
from overlaplab.findings.diagnosis.shares import CauseShare
from overlaplab.findings.diagnosis.step_kinds import kinds_finding
from overlaplab.findings.diagnosis.unseen import unseen
from overlaplab.findings.diagnosis.verdict import how_short, verdict, why_no_breakdown
from overlaplab.findings.first_screen import about, causes_title, marks_note, rest_line, step_marks, tiles
from overlaplab.findings.gates import CheckLine, Outcome, check_lines, gate_title
from overlaplab.findings.loops import Loop, loop_of
from overlaplab.findings.marks import event_facts, exposed_name, group_name, mark_name, mark_word
from overlaplab.findings.predictions import (
    extrapolation,
    figure_line,
    find_disturbance,
    gain_finding,
    hops_unknown,
    interval_line,
    microbatches_of,
    not_predicted,
    prediction_lead,
    refuse_to_predict,
)
from overlaplab.findings.runs import describe_prediction, describe_settings, link_note, note, run_title
from overlaplab.findings.sharding import (
    CHOOSE_A_CELL,
    GatherCost,
    gathers_exposed,
    gathers_lead,
    prefetch_gain,
    scatters_exposed,
    schedule_line,
    schedule_notes,
)
from overlaplab.findings.systems.hops import bench_finding, bench_remarks, hops_remark, hops_title
from overlaplab.findings.systems.pipeline import (
    NO_PIPELINE,
    PIPELINE_UNLABELLED,
    pipeline_advice,
    pipeline_lead,
    pipeline_tiles,
    pipeline_title,
    pipeline_waits_lead,
)
from overlaplab.findings.systems.plan import (
    plan_advice,
    plan_lead,
    plan_notes,
    plan_predicted,
    plan_title,
    require_planned,
    require_told,
)
from overlaplab.findings.warnings import busy_note, comparison_note, not_recorded, run_warnings, unmatched_notes
from overlaplab.findings.watched import watched_about, watched_recordings
from overlaplab.findings.what_if import (
    SMALLER_MICROBATCHES,
    depths_advice,
    device_folded,
    not_told,
    question_words,
    setting_words,
    what_if_advice,
    what_if_headline,
    what_if_notes,
)
from overlaplab.findings.windows import (
    OF_VERDICT,
    first_shown,
    table_word,
    timeline_lead,
    window_lead,
    window_name,
    window_size,
    window_title,
    window_word,
)
