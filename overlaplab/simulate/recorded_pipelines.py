"""A recorded pipeline as shapes to be played, one for each step: what its actions, its hosts and its messages took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
import pandas as pd

from overlaplab.analyses.systems.pipeline import pipeline
from overlaplab.axes import axis_of
from overlaplab.costs.pipeline import BACKWARD, FORWARD, INPUT, WEIGHT
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, Trace, Window, activity, once_per_run, step_windows
from overlaplab.evidence.clocks import corrections
from overlaplab.evidence.executions import executions
from overlaplab.evidence.labels import Label, labels_of
from overlaplab.evidence.pipelines import pipelines
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.evidence.waits import arrivals
from overlaplab.intervals import Intervals, clip, subtract, total, union, within
from overlaplab.manifest import Pipeline
from overlaplab.simulate.pipelines import PLAYED, UPDATE, Bucket, Shape

__all__ = ["is_layer", "recorded_shapes"]


@once_per_run
def recorded_shapes(run: Run) -> tuple[tuple[Shape, ...], ...]:
    """Of each of the run's pipelines, the shape of each recorded step.

    Raises `OverlaplabError` where it cannot be played: a stage's trace missing, or messages whose ends are not known.
    """
    known = run.manifest.pipeline if run.manifest else None
    if run.manifest is None or known is None:
        raise OverlaplabError("no run.json tells its stages", path=run.path)
    if known.schedule not in PLAYED:
        raise OverlaplabError(f"{known.schedule} is not predicted", path=run.path)
    ranks = 1 + max(stage.rank for stage in known.stages)
    found = pipelines(run)
    for places in found or [[]]:
        if len(places) != ranks:
            of, what = (len(known.stages), "stages") if len(known.stages) == ranks else (ranks, "ranks")
            raise OverlaplabError(f"the traces of {len(places)} of {of} {what} are there", path=run.path)
    if pipeline(run)["wait_ns"].isna().any():
        raise OverlaplabError(
            "its traces do not tell when messages were on their way",
            path=run.path,
            remedy="Record it behind an emulated link (--link 1Gbps,200us)",
        )
    rows = arrivals(run)
    hops = rows[rows["message"] & (rows["wait_ns"] != UNKNOWN_NS) & (rows["start_ns"] != UNKNOWN_NS)]
    if hops.empty:
        raise OverlaplabError("its traces hold no messages", path=run.path)
    hop_ns, size = round(float((hops["end_ns"] - hops["last_ns"]).mean())), int(hops["bytes"].max())
    link, replicas = run.manifest.emulated_link, len(found)
    averages = _averages(run, found) if replicas > 1 else ()
    counts = tuple(sum(map(is_layer, stage.units)) for stage in known.stages)
    shapes = []
    for number, places in enumerate(found):
        table = pipeline(run)
        table = table[table["pipeline"] == number]
        every = [list(_steps(run, place, table, known, rank)) for rank, place in enumerate(places)]
        shapes.append(
            tuple(
                replace(
                    _shape(known, steps, counts),
                    hop_ns=hop_ns,
                    bytes=size,
                    link=link and replace(link, world_size=replicas),
                    buckets=averages,
                )
                for steps in zip(*every, strict=False)
            )
        )
    return tuple(shapes)


@dataclass(frozen=True, slots=True)
class _Step:
    """One rank's step."""

    took_ns: dict[int, dict[str, int]]
    """Of each of its stages what its actions and updates take."""
    idle_ns: dict[int, dict[str, int]]
    """What of the actions is without computation."""
    layer_ns: dict[str, int] | None
    """What one of its layers takes."""
    between_ns: int
    """What its host takes between two actions."""
    around_ns: tuple[int, int]
    """Before the first, and beside updates and averages after the last one."""


def _shape(known: Pipeline, steps: Sequence[_Step], counts: tuple[int, ...]) -> Shape:
    """Of one step, without its messages."""
    holders = [steps[stage.rank] for stage in known.stages]
    layers = [own.layer_ns for own in holders]
    told = all(counts) and all(own is not None for own in layers)
    return Shape(
        schedule=known.schedule,
        microbatches=known.microbatches,
        took_ns=tuple(own.took_ns[stage] for stage, own in enumerate(holders)),
        idle_ns=tuple(own.idle_ns[stage] for stage, own in enumerate(holders)),
        between_ns=tuple(own.between_ns for own in steps),
        around_ns=tuple(own.around_ns for own in steps),
        hop_ns=0,
        bytes=0,
        layers=counts if told else (),
        layer_ns=tuple(own for own in layers if own is not None) if told else (),
    )


def _averages(run: Run, found: Sequence[Sequence[int]]) -> tuple[tuple[Bucket, ...], ...]:
    """Of each rank along the pipeline the buckets that it averages with its replicas, in order of launch."""
    rows = arrivals(run)
    axes = rows["group_description"].map({text: axis_of(text) for text in rows["group_description"].unique()})
    own = rows[(axes == "dp") & (rows["kind"] == "all_reduce") & (rows["last_ns"] != UNKNOWN_NS)]
    buckets = []
    for members in zip(*found, strict=True):
        by_step = [
            launched[["bytes", "took_ns"]].to_numpy()
            for place in members
            for window in step_windows(run.traces[place])
            if len(launched := _launched(own, place, window, int(corrections(run)[place])))
        ]
        if not by_step or len({len(each) for each in by_step}) > 1:
            raise OverlaplabError("its traces do not tell all averages of its replicas", path=run.path)
        buckets.append(tuple(Bucket(round(size), round(ns)) for size, ns in np.mean(by_step, axis=0)))
    return tuple(buckets)


def _launched(rows: pd.DataFrame, place: int, window: Window, offset: int) -> pd.DataFrame:
    """The rows of a trace that began in a step, with `took_ns`."""
    begun = rows["start_ns"] + offset
    own = rows[(rows["trace"] == place) & (begun >= window.start_ns) & (begun < window.end_ns)]
    return own.assign(took_ns=own["end_ns"] - own["last_ns"]).sort_values("start_ns")


def _steps(run: Run, place: int, table: pd.DataFrame, known: Pipeline, rank: int) -> Iterator[_Step]:
    """Of each of a rank's steps in which all actions are there."""
    trace, rows, offset = run.traces[place], arrivals(run), int(corrections(run)[place])
    own = rows[(rows["trace"] == place) & rows["message"] & (rows["start_ns"] != UNKNOWN_NS)]
    averaging = [label for label in labels_of(trace) if label.word == "wait"] if len(pipelines(run)) > 1 else []
    blocked = union(
        [*(own["start_ns"] + offset), *(label.start_ns for label in averaging)],
        [*(own["end_ns"] + offset), *(label.end_ns for label in averaging)],
    )
    stages = [number for number, stage in enumerate(known.stages) if stage.rank == rank]
    unit_of = {unit: number for number in stages for unit in known.stages[number].units}
    kinds = (FORWARD, INPUT, WEIGHT) if known.schedule == "zbv" else (FORWARD, BACKWARD)
    for window in step_windows(trace):
        step = table[table["stage"].isin(stages) & (table["step"] == window.step)].sort_values("start_ns")
        starts = step["begun_ns"].to_numpy(np.int64) + run.traces[0].origin_ns + offset
        ends = starts + step["took_ns"].to_numpy(np.int64)
        idle = ends - starts - within(activity(trace).compute, starts, ends)
        took: dict[int, dict[str, int]] = {}
        idles: dict[int, dict[str, int]] = {}
        for stage in stages:
            at = (step["stage"] == stage).to_numpy(dtype=bool)
            if at.sum() != len(kinds) * known.microbatches:
                raise OverlaplabError(
                    f"stage {stage} has {at.sum()} of {len(kinds) * known.microbatches} actions in a step",
                    path=run.path,
                )
            of = {kind: at & (step["action"] == kind).to_numpy(dtype=bool) for kind in kinds}
            took[stage] = {kind: round((ends - starts)[own].mean()) for kind, own in of.items()} | {UPDATE: 0}
            idles[stage] = {kind: round(idle[own].mean()) for kind, own in of.items()}
        updates = _within(trace, window, "update")
        for label in updates:
            took[unit_of.get(label.fields["unit"], stages[0])][UPDATE] += label.end_ns - label.start_ns
        updated_ns = sum(label.end_ns - label.start_ns for label in updates)
        between = step["overhead_ns"].iloc[1:].mean() if len(step) > 1 else 0
        before = _free(blocked, window.start_ns, int(starts[0]))
        after = max(_free(blocked, int(ends[-1]), window.end_ns) - updated_ns, 0)
        layers = None if known.schedule == "zbv" else _layers(trace, window)  # whose backward passes are in halves
        yield _Step(took, idles, layers, round(between), (before, after))


def _free(blocked: Intervals, start_ns: int, end_ns: int) -> int:
    """How long the host was not blocked by messages."""
    return total(subtract(union([start_ns], [max(start_ns, end_ns)]), clip(blocked, start_ns, max(start_ns, end_ns))))


def _layers(trace: Trace, window: Window) -> dict[str, int] | None:
    """What a layer takes in the mean, by the borders of its uses; None where these are not labelled."""
    found: dict[str, list[int]] = {FORWARD: [], BACKWARD: [], UPDATE: []}
    begun: dict[tuple[str, str, str], int] = {}
    ran = executions(trace)  # on a GPU in device time, as actions
    for label in _within(trace, window, "first_use", "last_use", "update"):
        if not is_layer(label.fields["unit"]):
            continue
        if label.word == "update":
            found[UPDATE].append(label.end_ns - label.start_ns)
            continue
        key = (label.fields["unit"], label.fields["phase"], label.fields["microbatch"])
        if label.word == "first_use":
            at = ran.begun(label.start_ns)
            begun[key] = label.start_ns if at is None else at
        elif key in begun and key[1] in found:
            found[key[1]].append(ran.reached(label.start_ns) - begun.pop(key))
    if not found[FORWARD] or not found[BACKWARD]:
        return None
    return {kind: round(fmean(took)) if took else 0 for kind, took in found.items()}


def _within(trace: Trace, window: Window, *words: str) -> list[Label]:
    return [
        label for label in labels_of(trace) if label.word in words and window.start_ns <= label.start_ns < window.end_ns
    ]


def is_layer(unit: str) -> bool:
    """Whether it is one of the units that are shared out among the stages."""
    return unit.startswith("layers.")
