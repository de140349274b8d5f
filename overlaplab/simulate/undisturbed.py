"""Recorded steps that settings are compared by: those that nothing disturbed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from overlaplab.analyses.summary import summary
from overlaplab.analyses.worst import outlier_steps
from overlaplab.costs import attained_steps
from overlaplab.events import Run, Trace, activity, once_per_run, rule_of, step_windows
from overlaplab.evidence.step_kinds import kind_period, step_kinds
from overlaplab.manifest import Manifest
from overlaplab.vocabulary import Rule

TIE = 0.01
"""Settings that differ by no larger share of a step are taken for equally fast."""

_MIN_STEPS = 4
"""With fewer steps the last one counts, too, though it may be cut short."""
_MAX_LAG_SHARE = 0.02
"""A host that is done with a step later than its device, by a larger share of the step, is not ahead."""


@once_per_run
def undisturbed_steps(run: Run) -> npt.NDArray[np.bool_]:
    """The first trace's steps that neither a busy machine nor a late link disturbed, none of the traces has damaged or
    cut short, and are not the only one of `outlier_steps` of their kind: how often that comes is not known. Of a kind
    of which none is left, those that the machine alone disturbed, else all.
    """
    numbers = [window.step for window in step_windows(run.traces[0])]
    damaged = {step.step for trace in run.traces for step in step_windows(trace) if step.damaged}
    worse = _late_steps(run.manifest) | damaged | (set(map(_cut_short, run.traces)) - {None})
    bad = worse | disturbed_steps(run.manifest)
    outliers, kind_of_step = outlier_steps(summary(run)), step_kinds(run)
    of_kind = Counter(kind_of_step.get(step) for step in outliers)
    unlike = {step for step in outliers if of_kind[kind_of_step.get(step)] == 1}
    usual = np.array([number not in bad | unlike for number in numbers], dtype=np.bool_)
    left = usual if usual.any() else np.array([number not in bad for number in numbers], dtype=np.bool_)
    kinds = _kinds(run)
    left |= ~np.isin(kinds, kinds[left]) & np.array([number not in worse for number in numbers], dtype=np.bool_)
    return left | ~np.isin(kinds, kinds[left])


def _cut_short(trace: Trace) -> int | None:
    """The last step on a GPU, if its host was not ahead: what that would have done next is not recorded."""
    windows = step_windows(trace)
    if rule_of(trace) is not Rule.GPU or len(windows) < _MIN_STEPS:
        return None
    last = windows[-1]
    lag_ns = last.host_end_ns - activity(trace).extent[1]
    return last.step if lag_ns > _MAX_LAG_SHARE * (last.end_ns - last.start_ns) else None


def mean_step_ns(run: Run, spans_ns: npt.NDArray[np.int64]) -> float:
    """How long a step of a training takes, of times of shape (ranks, steps): the mean over the ranks and the
    undisturbed steps, each kind of steps as often as it comes.
    """
    return mean_over_steps(run, spans_ns.mean(axis=0))


def mean_step_after_ns(run: Run, spans_ns: npt.NDArray[np.int64], *, into_the_next: bool) -> float:
    """`mean_step_ns` of an edited run; where time moves into the next step, all steps together tell what is gained."""
    if not into_the_next:
        return mean_step_ns(run, spans_ns)
    recorded_ns = recorded_spans_ns(run)
    return mean_step_ns(run, recorded_ns) - float(recorded_ns.mean() - spans_ns.mean())


def mean_over_steps(run: Run, by_step: npt.NDArray[np.float64]) -> float:
    """The mean of a figure of each step, in the weights of `mean_step_ns`."""
    return float(np.average(by_step, weights=step_weights(run)))


@once_per_run
def step_weights(run: Run) -> npt.NDArray[np.float64]:
    """How much each step of the first trace counts in the mean; 0 where it is disturbed."""
    kinds, left = _kinds(run), undisturbed_steps(run)
    places = range(len(kinds))
    shares: dict[int, float] = {}
    for kind in set(kinds.tolist()):
        steps = np.flatnonzero(kinds == kind).tolist()
        period = kind_period(steps, places) if len(steps) < len(kinds) else None
        shares[kind] = 1 / period if period else len(steps) / len(kinds)
    weights = np.array([shares[kind] / (left & (kinds == kind)).sum() for kind in kinds.tolist()])
    return np.where(left, weights, 0.0)


def _kinds(run: Run) -> npt.NDArray[np.int64]:
    """The kind of each step of the first trace."""
    kind_of_step = step_kinds(run)
    return np.array([kind_of_step.get(window.step or 0, 0) for window in step_windows(run.traces[0])], dtype=np.int64)


def recorded_spans_ns(run: Run) -> npt.NDArray[np.int64]:
    """How long all recorded steps took, of shape (ranks, steps)."""
    spans = [[window.end_ns - window.start_ns for window in step_windows(trace)] for trace in run.traces]
    return np.array(spans, dtype=np.int64)


def undisturbed_spans_ns(run: Run) -> npt.NDArray[np.int64]:
    """How long `undisturbed_steps` took, of shape (ranks, steps)."""
    return recorded_spans_ns(run)[:, undisturbed_steps(run)]


def disturbed_steps(manifest: Manifest | None) -> set[int]:
    """The numbers of the steps in which the machine was busy, or the emulated link not attained."""
    busy = manifest.machine if manifest else None
    return _late_steps(manifest) | {row.step for row in busy or () if row.busy}


def _late_steps(manifest: Manifest | None) -> set[int]:
    """The numbers of the steps in which the emulated link was not attained."""
    return {step.step for step in (attained_steps(manifest) if manifest else ()) if not step.attained}
