"""Pipelines in a trace: each stage's actions by the engine's labels, and how long a rank must wait by its schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from overlaplab.costs.pipeline import StageAction, starts
from overlaplab.events import Run, Trace, Window, once_per_run, once_per_trace, step_windows
from overlaplab.evidence.labels import Label, engine_labels
from overlaplab.evidence.selection import launched_in
from overlaplab.vocabulary import STAGE_WORDS


@dataclass(frozen=True, slots=True)
class IdleBySchedule:
    """How long a rank must be idle in a step, if it works in its order and sending takes no time."""

    bubble_ns: int
    """Were all stages equally fast."""
    imbalance_ns: int
    """Beyond it, as some stages are slower."""


@once_per_trace
def stage_labels(trace: Trace) -> tuple[Label, ...]:
    """The labels of actions, in order of start."""
    return tuple(label for label in engine_labels(trace) if label.word in STAGE_WORDS)


def actions_in(trace: Trace, step: Window) -> list[tuple[StageAction, Label]]:
    """A step's actions in their order, each with its range."""
    return [(_action(label), label) for label in launched_in(stage_labels(trace), step)]


def pipelines(run: Run) -> list[list[int]]:
    """The traces of each pipeline, by their indices in `run.traces`, in order of rank; empty where there is none.

    Ranks whose places on the mesh differ along `pp` alone are one pipeline; without a mesh all ranks are.
    """
    by_place: dict[tuple[int, ...], list[int]] = {}
    for place, trace in enumerate(run.traces):
        if stage_labels(trace):
            at = run.manifest.axes.coordinates(trace.rank) if run.manifest and trace.rank is not None else {}
            by_place.setdefault(tuple(coordinate for axis, coordinate in at.items() if axis != "pp"), []).append(place)
    return list(by_place.values())


@once_per_run
def idle_by_schedule(run: Run) -> Mapping[tuple[int, int], IdleBySchedule]:
    """By the trace's index in `run.traces` and the step's place in `step_windows`; only where all stages are there."""
    idle_by_step: dict[tuple[int, int], IdleBySchedule] = {}
    for places in pipelines(run):
        windows = [step_windows(run.traces[place]) for place in places]
        for step in range(min(map(len, windows))):
            pairs = zip(places, windows, strict=True)
            steps = [actions_in(run.traces[place], of_trace[step]) for place, of_trace in pairs]
            for place, idle in zip(places, _idle_by_rank(steps), strict=False):
                idle_by_step[place, step] = idle
    return idle_by_step


def _idle_by_rank(ranks: Sequence[Sequence[tuple[StageAction, Label]]]) -> Iterator[IdleBySchedule]:
    """Yield each rank's idle time in one pipeline's step; nothing where a stage is missing."""
    orders = [[action for action, _ in rank_actions] for rank_actions in ranks]
    took = {action: label.end_ns - label.start_ns for rank_actions in ranks for action, label in rank_actions}
    every = {action.stage for action in took}
    if every != set(range(len(every))) or any(len(rank_actions) == 0 for rank_actions in orders):
        return
    try:
        balanced, real = _idle_ns(orders, _balance_stages(took)), _idle_ns(orders, took)
    except ValueError:  # a stage is missing, or a part of the step
        return
    for balanced_ns, real_ns in zip(balanced, real, strict=True):
        yield IdleBySchedule(bubble_ns=balanced_ns, imbalance_ns=max(real_ns - balanced_ns, 0))


def _idle_ns(orders: Sequence[Sequence[StageAction]], took: Mapping[StageAction, int]) -> list[int]:
    """Return each rank's idle time: from the first rank's begin to the last one's end, less what the rank does."""
    done = starts(orders, took)
    over = max(end for _, end in done.values())
    return [over - sum(took[action] for action in rank_actions) for rank_actions in orders]


def _balance_stages(took: Mapping[StageAction, int]) -> dict[StageAction, int]:
    """Give every stage the mean duration of all, kind by kind."""
    kinds = {action.kind for action in took}
    means = {kind: round(fmean(ns for action, ns in took.items() if action.kind == kind)) for kind in kinds}
    return {action: means[action.kind] for action in took}


def _action(label: Label) -> StageAction:
    kind = label.word.removeprefix("stage_")
    return StageAction(kind, int(label.fields["stage"]), int(label.fields["microbatch"]))
