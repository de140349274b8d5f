"""The event table of a run, what each event counts as, and where steps begin and end."""

from overlaplab.events.activity import Activity, activity, classify, counting_as, longest_names, rule_of
from overlaplab.events.doubts import early_kernels, only_ends_recorded, said_to_communicate, unknown_communication
from overlaplab.events.launching import launchers, runtime_calls
from overlaplab.events.matching import matching, thread_numbers
from overlaplab.events.preempted import processor_counts
from overlaplab.events.rules import Work
from overlaplab.events.run import (
    COLLECTIVE_COLUMNS,
    EVENT_COLUMNS,
    INPUT_COLUMNS,
    Group,
    Run,
    Tables,
    Trace,
    empty_table,
    extent,
    known_of,
    once_per_run,
    once_per_trace,
    table_of,
)
from overlaplab.events.windows import (
    NEXT_STEP,
    Window,
    found_windows,
    host_steps,
    main_stream,
    recording_start,
    step_windows,
    window_warnings,
    windows,
)

__all__ = [
    "COLLECTIVE_COLUMNS",
    "EVENT_COLUMNS",
    "INPUT_COLUMNS",
    "NEXT_STEP",
    "Activity",
    "Group",
    "Run",
    "Tables",
    "Trace",
    "Window",
    "Work",
    "activity",
    "classify",
    "counting_as",
    "early_kernels",
    "empty_table",
    "extent",
    "found_windows",
    "host_steps",
    "known_of",
    "launchers",
    "longest_names",
    "main_stream",
    "matching",
    "once_per_run",
    "once_per_trace",
    "only_ends_recorded",
    "processor_counts",
    "recording_start",
    "rule_of",
    "runtime_calls",
    "said_to_communicate",
    "step_windows",
    "table_of",
    "thread_numbers",
    "unknown_communication",
    "window_warnings",
    "windows",
]
