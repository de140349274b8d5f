"""Pipelines in a trace: each stage's actions, by labels or without, and how long a rank must wait by its schedule."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import pandas as pd

from overlaplab.costs.pipeline import (
    BACKWARD,
    FORWARD,
    INPUT,
    PER_RANK,
    WEIGHT,
    StageAction,
    order,
    ranks_of_stages,
    starts,
)
from overlaplab.events import Run, Trace, Window, once_per_run, once_per_trace, step_windows
from overlaplab.events.rows import host_ranges
from overlaplab.evidence.ddp import autograd_functions, optimizer_steps
from overlaplab.evidence.executions import executions
from overlaplab.evidence.labels import Label, Span, engine_labels
from overlaplab.evidence.launches import event_spans
from overlaplab.evidence.recorded import recorded_collectives
from overlaplab.evidence.selection import is_inside, launched_in
from overlaplab.evidence.waits import arrivals
from overlaplab.intervals import Integers, Intervals
from overlaplab.manifest import Pipeline, Stage
from overlaplab.vocabulary import STAGE_WORDS


@dataclass(frozen=True, slots=True)
class IdleBySchedule:
    """How long a rank must be idle in a step, if it works in its order and sending takes no time."""

    bubble_ns: int
    """Were all stages equally fast."""
    imbalance_ns: int
    """Beyond it, as some stages are slower."""


_ACTION = re.compile(r"PP:(?P<stage>\d+)(?P<kind>[FBIW])(?P<microbatch>\d+)")
"""A range in torch/distributed/pipelining/schedules.py, of schedules with several stages on each rank."""
_KINDS = {"F": FORWARD, "B": BACKWARD, "I": INPUT, "W": WEIGHT}
_LITTLE = 0.01
"""This share of what is computed between two messages may stand apart from the pass at either end."""


@once_per_trace
def stage_labels(trace: Trace) -> tuple[Label, ...]:
    """The labels of actions, in order of start: the engine's, by torch's ranges, or by the messages between them.

    The last name no stage; a rank has one.
    """
    labels = tuple(label for label in engine_labels(trace) if label.word in STAGE_WORDS)
    if labels or not (recorded_collectives(trace)["kind"] == "send_recv").any():
        return labels
    return tuple(_named_actions(trace)) or tuple(_actions_by_messages(trace))


def _named_actions(trace: Trace) -> Iterator[Label]:
    """Each from what it computes first to what it computes last: its range begins with waiting for its input."""
    spans = event_spans(trace, host_ranges(trace.events, _ACTION.fullmatch)).sort_values("start_ns")
    computed = executions(trace).host_compute()
    for start_ns, end_ns, thread, event in spans.to_numpy().tolist():
        named = _ACTION.fullmatch(str(trace.events["name"].iloc[event]))
        inside = computed[np.searchsorted(computed[:, 0], start_ns) : np.searchsorted(computed[:, 0], end_ns)]
        if named is not None and len(inside):
            fields = {name: named[name] for name in ("stage", "microbatch")}
            span = Span(start_ns=int(inside[0, 0]), end_ns=int(inside[-1, 1]) + 1, thread=thread)
            yield Label.make(span, f"stage_{_KINDS[named['kind']]}", fields)


def _actions_by_messages(trace: Trace) -> list[Label]:
    """The actions of a rank with one stage, as in torch's GPipe and 1F1B, in order of start.

    Between two messages it computes one pass or two; where autograd evaluates functions, a backward pass. Empty unless
    each step has `_backward_passes`.
    """
    table = recorded_collectives(trace)
    table = table[table["kind"] == "send_recv"].sort_values("host_ns", kind="stable")
    called, ways = table["host_ns"].to_numpy(np.int64), [*_ways(table)]
    functions, updates, computed = autograd_functions(trace), optimizer_steps(trace), executions(trace).host_compute()
    labels: list[Label] = []
    for step in step_windows(trace):
        begin, over = (
            step.host_start_ns,
            min([step.host_end_ns, *(each.start_ns for each in launched_in(updates, step))]),
        )
        first, last = np.searchsorted(called, (begin, step.host_end_ns))
        evaluated = functions[(begin <= functions["start_ns"]) & (functions["end_ns"] <= over)]
        backwards = _backward_passes(evaluated, called[first:last], ways[first:last])
        if not backwards:
            return []
        inside = (begin <= computed[:, 0]) & (computed[:, 1] <= over)
        forwards = _forward_passes(computed[inside], called[first:last], backwards)
        for number, (backward, (start_ns, end_ns)) in enumerate(zip(backwards, forwards, strict=False)):
            microbatch = {"microbatch": str(number)}
            labels.append(Label.make(backward, f"stage_{FORWARD}", microbatch, start_ns, end_ns + 1))
            labels.append(Label.make(backward, f"stage_{BACKWARD}", microbatch))
    return sorted(labels, key=lambda label: label.start_ns)


def _backward_passes(functions: pd.DataFrame, called: Integers, ways: Sequence[tuple[str, str]]) -> list[Span]:
    """A step's backward passes, between whose functions no message was called.

    Empty unless as many messages go to a neighbour as come back, and as there are backward passes; unless none comes
    back before the one that the first of these needs.
    """
    by = functions.groupby(np.searchsorted(called, functions["start_ns"]))
    passes = by.agg({"start_ns": "min", "end_ns": "max", "thread": "first"})
    numbers, before = Counter(ways), set(ways[: max(min(passes.index, default=0) - 1, 0)])
    if {numbers[way[::-1]] for way in numbers} != {len(passes)} or any(way[::-1] in before for way in before):
        return []
    return [Span(start_ns=start, end_ns=end, thread=thread) for start, end, thread in passes.to_numpy().tolist()]


def _forward_passes(computed: Intervals, called: Integers, backwards: Sequence[Span]) -> list[list[int]]:
    """Start and end of as many forward passes: of what else is computed between messages the longest.

    Each without the little that is computed before and after it, perhaps a wait apart.
    """
    computed = computed[[not is_inside(backwards, at_ns) for at_ns in computed[:, 0].tolist()]]
    borders = np.sort([*called.tolist(), *(each.start_ns for each in backwards)])
    pieces = pd.DataFrame(computed, columns=["start_ns", "end_ns"])
    pieces["weight"] = (pieces["end_ns"] - pieces["start_ns"]).clip(1)
    pieces["stretch"] = np.searchsorted(borders, computed[:, 0])
    by = pieces.groupby("stretch")["weight"]
    done, pieces["whole"] = by.cumsum(), by.transform("sum")
    little = _LITTLE * pieces["whole"]
    pieces = pieces[(done > little) & (done - pieces["weight"] < pieces["whole"] - little)]
    stretches = pieces.groupby("stretch").agg({"start_ns": "min", "end_ns": "max", "whole": "first"})
    return sorted(stretches.nlargest(len(backwards), "whole")[["start_ns", "end_ns"]].to_numpy().tolist())


def _ways(messages: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Each message's sender and receiver, -1 for the rank itself; of gloo by their places in the group."""
    for group, source, destination in zip(messages["group"], messages["source"], messages["destination"], strict=True):
        if source < 0 and destination < 0:
            sender, _, receiver = str(group).rpartition(":")[2].partition("-")
            yield sender, receiver
        else:
            yield str(source), str(destination)


def actions_in(trace: Trace, step: Window, place: int) -> list[tuple[StageAction, Label]]:
    """A step's actions in their order, each with its range; the rank's place is its stage where labels name none."""
    return [(_action(label, place), label) for label in launched_in(stage_labels(trace), step)]


@once_per_run
def pipelines(run: Run) -> list[list[int]]:
    """The traces of each pipeline, by their indices in `run.traces`, in order of rank; empty where there is none.

    Ranks whose places on the mesh differ along `pp` alone are one pipeline. Without such a mesh those are that send
    each other messages; where nobody does, all ranks.
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
    for _, ends in messages[messages["message"]].groupby("match")["trace"]:
        together = set().union(*(linked.get(end, set()) for end in ends))
        linked |= dict.fromkeys(together, together)
    components = {min(each): sorted(each) for each in linked.values()}
    if 1 < len(components) == len(places):
        return [places]
    return [components[first] for first in sorted(components)]


@once_per_run
def find_plan(run: Run) -> Pipeline | None:
    """What run.json says of the pipeline, or the schedule whose order the first step has; None without one.

    Of the second the units of each stage are unknown.
    """
    if run.manifest is not None and run.manifest.pipeline is not None:
        return run.manifest.pipeline
    places = next(iter(pipelines(run)), [])
    steps = [(run.traces[place], step_windows(run.traces[place])[0], stage) for stage, place in enumerate(places)]
    recorded = [[action for action, _ in actions_in(*of_rank)] for of_rank in steps]
    every = [action for actions in recorded for action in actions]
    microbatches, stages = (len({getattr(action, name) for action in every}) for name in ("microbatch", "stage"))
    for schedule in PER_RANK if places else ():
        if stages % len(places) == 0 and order(schedule, len(places), microbatches, stages) == recorded:
            holders = ranks_of_stages(schedule, len(places), stages)
            of_ranks = tuple(Stage(rank=rank, units=()) for rank in holders)
            return Pipeline(schedule=schedule, microbatches=microbatches, stages=of_ranks)
    return None


@once_per_run
def idle_by_schedule(run: Run) -> Mapping[tuple[int, int], IdleBySchedule]:
    """By the trace's index in `run.traces` and the step's place in `step_windows`; only where all stages are there."""
    idle_by_step: dict[tuple[int, int], IdleBySchedule] = {}
    for places in pipelines(run):
        windows = [step_windows(run.traces[place]) for place in places]
        for step in range(min(map(len, windows))):
            pairs = zip(places, windows, strict=True)
            steps = [
                actions_in(run.traces[place], of_trace[step], stage) for stage, (place, of_trace) in enumerate(pairs)
            ]
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


def _action(label: Label, place: int) -> StageAction:
    kind = label.word.removeprefix("stage_")
    return StageAction(kind, int(label.fields.get("stage", place)), int(label.fields["microbatch"]))
