"""Pipelines in a trace: each stage's actions, by labels or without, and how long a rank must wait by its schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from msgspec import Struct

from overlaplab.costs.pipeline import PER_RANK, StageAction, order, ranks_of_stages, starts
from overlaplab.events import Run, Trace, Window, once_per_run, step_windows
from overlaplab.evidence.labels import Label
from overlaplab.evidence.selection import launched_in
from overlaplab.evidence.stages import stage_labels
from overlaplab.evidence.waits import arrivals
from overlaplab.manifest import Pipeline, Stage


class IdleBySchedule(Struct, frozen=True):
    """How long a rank must be idle in a step, if it works in its order and sending takes no time."""

    bubble_ns: int
    """If all stages were equally fast."""
    imbalance_ns: int
    """Beyond it, as some stages are slower."""


def _actions_in(trace: Trace, step: Window, place: int) -> list[tuple[StageAction, Label]]:
    """A step's actions in their order, each with its range; the rank's place is its stage where labels name none."""
    return [(_action(label, place), label) for label in launched_in(stage_labels(trace), step)]


@once_per_run
def pipelines(run: Run) -> list[list[int]]:
    """The traces of each pipeline, by their indices in `run.traces`, in order of rank; empty where there is none.

    Ranks whose places on the mesh differ along `pp` alone are one pipeline. Without such a mesh those are that send
    each other messages, unless a stage is missing; where nobody does, all ranks.
    """
    places = [place for place, trace in enumerate(run.traces) if stage_labels(trace)]
    if not places:
        return []
    mesh = run.manifest.axes if run.manifest else None
    if mesh is not None and mesh.axes["pp"] > 1:
        by_place: dict[tuple[int, ...], list[int]] = {}
        for place in places:
            at = mesh.coordinates(run.traces[place].rank or 0)
            by_place.setdefault(tuple(coordinate for axis, coordinate in at.items() if axis != "pp"), []).append(place)
        return list(by_place.values())
    linked = {place: {place} for place in places}
    messages = arrivals(run)
    ends = messages[messages["message"]].groupby("match")["trace"].agg(["min", "max"]).drop_duplicates()
    for pair in ends.to_numpy().tolist():
        together = set().union(*(linked.get(end, set()) for end in pair))
        linked |= dict.fromkeys(together, together)
    components = {min(each): sorted(each) for each in linked.values()}
    if 1 < len(components) == len(places):
        components = {places[0]: places}
    return [components[first] for first in sorted(components) if _is_whole(run, components[first])]


def _is_whole(run: Run, places: Sequence[int]) -> bool:
    """Whether all stages are there, as far as unlabelled actions tell: the first and the last have one neighbour."""
    neighbours = [stage_labels(run.traces[place])[0].fields.get("neighbours") for place in places]
    return neighbours[0] is None or neighbours == ["1", *["2"] * (len(places) - 2), "1"]


@once_per_run
def find_plan(run: Run) -> Pipeline | None:
    """What run.json says of the pipeline, or the schedule whose order the first whole step has; None without one.

    Of the second the units of each stage are unknown.
    """
    if run.manifest is not None and run.manifest.pipeline is not None:
        return run.manifest.pipeline
    places = next(iter(pipelines(run)), [])
    whole = next((ranks for _, ranks in actions_by_step(run, places) if all(ranks)), [])
    recorded = [[action for action, _ in actions] for actions in whole]
    every = [action for actions in recorded for action in actions]
    microbatches, stages = (len({getattr(action, name) for action in every}) for name in ("microbatch", "stage"))
    for schedule in PER_RANK if microbatches else ():
        if stages % len(places) == 0 and order(schedule, len(places), microbatches, stages) == recorded:
            holders = ranks_of_stages(schedule, len(places), stages)
            of_ranks = tuple(Stage(rank=rank, units=()) for rank in holders)
            return Pipeline(schedule=schedule, microbatches=microbatches, stages=of_ranks)
    return None


@once_per_run
def idle_by_schedule(run: Run) -> Mapping[tuple[int, int | None], IdleBySchedule]:
    """Idle times by the trace's index in `run.traces` and the step's number; only where all stages are there."""
    idle_by_step: dict[tuple[int, int | None], IdleBySchedule] = {}
    planned = run.manifest.pipeline if run.manifest else None
    for places in pipelines(run):
        for step, ranks in actions_by_step(run, places):
            recorded = {action.stage for rank_actions in ranks for action, _ in rank_actions}
            if planned is not None and len(recorded) < len(planned.stages):
                continue  # the last stages' traces are missing
            for place, idle in zip(places, _idle_by_rank(ranks), strict=False):
                idle_by_step[place, step] = idle
    return idle_by_step


def actions_by_step(
    run: Run, places: Sequence[int]
) -> Iterator[tuple[int | None, list[list[tuple[StageAction, Label]]]]]:
    """The number of each step of a pipeline that all ranks have, and its actions, by rank; in their order, each with
    its range. No rank has any where one has none: what the others sent in such a step was perhaps no training.
    """
    of_ranks = [{window.step: window for window in step_windows(run.traces[place])} for place in places]
    for step in of_ranks[0] if of_ranks else ():
        if all(step in windows for windows in of_ranks):
            ranks = zip(places, of_ranks, strict=True)
            actions = [
                _actions_in(run.traces[place], windows[step], stage) for stage, (place, windows) in enumerate(ranks)
            ]
            yield step, actions if all(actions) else [[] for _ in places]


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


def _action(label: Label, place: int) -> StageAction:
    kind = label.word.removeprefix("stage_")
    return StageAction(kind, int(label.fields.get("stage", place)), int(label.fields["microbatch"]))
