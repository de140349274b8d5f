"""What a rank does in each step, by phase."""

from __future__ import annotations

import numpy as np
import pandas as pd

from overlaplab.events import (
    Run,
    Trace,
    activity,
    empty_table,
    once_per_run,
    rule_of,
    step_windows,
    window_bounds,
)
from overlaplab.evidence.host_work import host_pauses, host_work
from overlaplab.evidence.labels import Label, span_intervals
from overlaplab.evidence.passes import PASSES, pass_labels
from overlaplab.evidence.selection import count_by_step
from overlaplab.intervals import Integers, Intervals, intersect, lengths_within, subtract, union
from overlaplab.vocabulary import Rule

_Phases = dict[tuple[str, str | None], Intervals]
_COLUMNS = {
    **dict.fromkeys(("rank", "step"), "Int64"),
    **dict.fromkeys(("phase", "what"), "object"),
    "took_ns": "int64",
    "number": "float64",
}


def phase_times(trace: Trace) -> dict[tuple[str, str | None], Integers]:
    """How long the rank works in each step, by phase and by the name of what the host does (None where it has none), in
    ns; empty where that is unknown.

    On CPUs, without exposed communication: `before` the first forward pass, `forward`, `backward`, `optimizer`,
    `between` them; unknown where no forward pass is. On GPUs: `kernels`, `copies`, and of the time in which the device
    has nothing to do, by what its host does meanwhile: `loading` (what has a name), `pause` (nothing recorded),
    `launching`. Of other traces it is unknown.
    """
    windows, rule = step_windows(trace), rule_of(trace)
    if not windows or rule not in (Rule.CPU, Rule.GPU):
        return {}
    phases = _host_phases(trace) if rule is Rule.CPU else _device_phases(trace)
    bounds = window_bounds(windows)
    return {key: np.asarray(lengths_within(stretches, *bounds), dtype=np.int64) for key, stretches in phases.items()}


@once_per_run
def step_phases(run: Run) -> pd.DataFrame:
    """What each rank does in each step: one row per rank, step, and phase and name of `phase_times`.

    Columns: `rank`, `step` (both Int64), `phase`, `what`, `took_ns` (int64), `number` (float64: how many passes of this
    phase begin in the step; null of other phases).
    """
    parts = []
    for trace in run.traces:
        windows = step_windows(trace)
        steps = [window.step for window in windows]
        for (phase, what), took_ns in phase_times(trace).items():
            passes = (label for label in pass_labels(trace) if label.word == phase)
            number = count_by_step(windows, passes) if phase in PASSES else np.full(len(steps), np.nan)
            row = {"phase": phase, "what": what, "took_ns": took_ns, "number": number}
            parts.append(pd.DataFrame({"rank": trace.rank, "step": pd.array(steps, dtype="Int64"), **row}))
    return pd.concat(parts, ignore_index=True)[list(_COLUMNS)].astype(_COLUMNS) if parts else empty_table(_COLUMNS)


def _host_phases(trace: Trace) -> _Phases:
    """When a rank on CPUs works in each phase."""
    windows, passes, busy = step_windows(trace), pass_labels(trace), activity(trace)
    forwards = np.array([label.start_ns for label in passes if label.word == "forward"], dtype=np.int64)
    if not len(forwards):
        return {}
    starts, ends = window_bounds(windows)
    steps = left = union(starts, ends)
    phases: _Phases = {}
    for word in PASSES:
        phases[word, None] = intersect(left, span_intervals(label for label in passes if label.word == word))
        left = subtract(left, phases[word, None])
    after = np.searchsorted(forwards, starts)
    first = np.append(forwards, ends[-1])[after]
    before = union(starts, np.minimum(first, ends))
    for phase, region in (("before", before), ("between", subtract(steps, before))):
        phases |= _split_by_name(trace, phase, phase, intersect(left, region))
    exposed = busy.exposed_communication
    return {key: subtract(stretches, exposed) for key, stretches in phases.items()}


def _device_phases(trace: Trace) -> _Phases:
    """When a device works, or has nothing to do."""
    busy = activity(trace)
    steps = union(*window_bounds(step_windows(trace)))
    left = subtract(steps, union(*np.concatenate((busy.compute, busy.communication)).T))
    phases: _Phases = {("kernels", None): intersect(steps, busy.compute)}
    phases["copies", None] = intersect(left, busy.memory)
    phases |= _split_by_name(trace, "loading", "left", subtract(left, busy.memory))
    left = phases.pop(("left", None))
    phases["pause", None] = intersect(left, host_pauses(trace))
    phases["launching", None] = subtract(left, host_pauses(trace))
    return phases


def _split_by_name(trace: Trace, phase: str, unnamed: str, stretches: Intervals) -> _Phases:
    """These stretches by the name of what the host does meanwhile; the phase `unnamed` has what is left."""
    phases: _Phases = {}
    by_name: dict[str, list[Label]] = {}
    for label in host_work(trace):
        by_name.setdefault(label.fields["name"], []).append(label)
    for name, labels in by_name.items():
        named = span_intervals(labels)
        phases[phase, name] = intersect(stretches, named)
        stretches = subtract(stretches, named)
    return phases | {(unnamed, None): stretches}
