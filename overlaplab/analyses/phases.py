"""What a rank does in each step, by phase, and what rarer kinds of steps do for longer than the most frequent one."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.events import (
    Run,
    Trace,
    activity,
    empty_table,
    once_per_run,
    rule_of,
    step_windows,
    window_bounds,
    windows_at,
)
from overlaplab.evidence.host_work import host_pauses, host_work
from overlaplab.evidence.labels import Label
from overlaplab.evidence.passes import pass_labels
from overlaplab.evidence.step_kinds import step_kinds
from overlaplab.intervals import Intervals, intersect, lengths_within, subtract, union
from overlaplab.vocabulary import Rule

PASSES = ("forward", "backward", "optimizer")
_Phases = dict[tuple[str, str | None], Intervals]
_COLUMNS = {
    "step_kind": "Int64",
    "phase": "object",
    "what": "object",
    "own_ns": "int64",
    "others_ns": "int64",
    "own": "float64",
    "others": "float64",
}


def phase_times(trace: Trace) -> dict[tuple[str, str | None], NDArray[np.int64]]:
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
def kind_phases(run: Run) -> pd.DataFrame:
    """What steps of rarer kinds do, beside the most frequent kind, by phase of `phase_times`; empty where all steps are
    of one kind.

    Columns: `step_kind` (Int64: as in `overlaplab.summary`), `phase`, `what`, `own_ns`, `others_ns` (both int64: in a
    mean step of this kind, and of the most frequent one, and in the mean over ranks), `own`, `others` (float64: how
    many passes of this phase begin in such a step; null of other phases). The largest difference of each kind comes
    first.
    """
    kinds = step_kinds(run)
    if len(set(kinds.values())) < 2:
        return empty_table(_COLUMNS)
    steps = pd.concat([_rows(trace, kinds) for trace in run.traces], ignore_index=True)
    if steps.empty:
        return empty_table(_COLUMNS)
    means = steps.groupby(["step_kind", "phase", "what"], dropna=False, sort=False)[["own_ns", "own"]].mean()
    table = means.round({"own_ns": 0}).reset_index()
    usual = table[table["step_kind"] == 0].rename(columns={"own_ns": "others_ns", "own": "others"})
    table = table[table["step_kind"] > 0].merge(usual.drop(columns="step_kind"), on=["phase", "what"], how="left")
    table["others_ns"] = table["others_ns"].fillna(0)
    table["more_ns"] = table["own_ns"] - table["others_ns"]
    table = table.sort_values(["step_kind", "more_ns"], ascending=[True, False], kind="stable")
    return table[list(_COLUMNS)].astype(_COLUMNS).reset_index(drop=True)


def _rows(trace: Trace, kinds: dict[int, int]) -> pd.DataFrame:
    """One row per step, phase and name: `step_kind`, `phase`, `what`, `own_ns`, `own`."""
    windows = step_windows(trace)
    of_steps = [kinds.get(window.step, -1) if window.step is not None else -1 for window in windows]
    parts = []
    for (phase, what), took_ns in phase_times(trace).items():
        number = _count(trace, phase) if phase in PASSES else np.full(len(windows), np.nan)
        row = {"step_kind": of_steps, "phase": phase, "what": what, "own_ns": took_ns, "own": number}
        parts.append(pd.DataFrame(row))
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["step_kind", "phase", "what"])
    return table[table["step_kind"] >= 0]


def _count(trace: Trace, phase: str) -> NDArray[np.int64]:
    """How many passes begin in each step."""
    windows = step_windows(trace)
    starts = np.array([label.start_ns for label in pass_labels(trace) if label.word == phase], dtype=np.int64)
    places = windows_at(windows, starts)
    return np.bincount(places[places >= 0], minlength=len(windows))


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
        phases[word, None] = intersect(left, _spans([label for label in passes if label.word == word]))
        left = subtract(left, phases[word, None])
    after = np.searchsorted(forwards, starts)
    first = np.append(forwards, ends[-1])[after]
    before = union(starts, np.minimum(first, ends))
    for phase, region in (("before", before), ("between", subtract(steps, before))):
        phases |= _split_by_name(trace, phase, phase, intersect(left, region))
    waits = subtract(busy.communication, busy.compute)
    return {key: subtract(stretches, waits) for key, stretches in phases.items()}


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
    for name in dict.fromkeys(label.fields["name"] for label in host_work(trace)):
        named = _spans([label for label in host_work(trace) if label.fields["name"] == name])
        phases[phase, name] = intersect(stretches, named)
        stretches = subtract(stretches, named)
    return phases | {(unnamed, None): stretches}


def _spans(labels: list[Label]) -> Intervals:
    return union([label.start_ns for label in labels], [label.end_ns for label in labels])
