"""The event table: what a run holds, what each event counts as, and where steps begin and end."""

from overlaplab.events.activity import Activity, activity, classify, lanes, matching, of_kind, rule_of
from overlaplab.events.launching import launchers, runtime_calls
from overlaplab.events.rules import Kind
from overlaplab.events.run import (
    COLLECTIVE_COLUMNS,
    EVENT_COLUMNS,
    INPUT_COLUMNS,
    Group,
    Run,
    Trace,
    empty_table,
    once_per_run,
    once_per_trace,
)
from overlaplab.events.windows import NEXT_STEP, Window, main_stream, step_windows, window_warnings, windows

__all__ = [
    "COLLECTIVE_COLUMNS",
    "EVENT_COLUMNS",
    "INPUT_COLUMNS",
    "NEXT_STEP",
    "Activity",
    "Group",
    "Kind",
    "Run",
    "Trace",
    "Window",
    "activity",
    "classify",
    "empty_table",
    "lanes",
    "launchers",
    "main_stream",
    "matching",
    "of_kind",
    "once_per_run",
    "once_per_trace",
    "rule_of",
    "runtime_calls",
    "step_windows",
    "window_warnings",
    "windows",
]
