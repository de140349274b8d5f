"""The event table: what a run holds, what each event counts as, and where steps begin and end."""

from overlaplab.events.activity import Activity, Kind, activity, classify, lanes, matching, rule_of, runtime_calls
from overlaplab.events.run import EVENT_COLUMNS, Bucket, Held, Link, Manifest, Model, Parameter, Run, Trace, Unit
from overlaplab.events.windows import Window, main_stream, step_windows, window_warnings, windows

__all__ = [
    "EVENT_COLUMNS",
    "Activity",
    "Bucket",
    "Held",
    "Kind",
    "Link",
    "Manifest",
    "Model",
    "Parameter",
    "Run",
    "Trace",
    "Unit",
    "Window",
    "activity",
    "classify",
    "lanes",
    "main_stream",
    "matching",
    "rule_of",
    "runtime_calls",
    "step_windows",
    "window_warnings",
    "windows",
]
