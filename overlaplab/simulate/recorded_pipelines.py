"""A recorded pipeline as shapes to be played, one for each step: what its actions, its hosts and its messages took."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

import numpy as np
import pandas as pd

from overlaplab.analyses.systems.pipeline import pipeline
from overlaplab.costs.pipeline import BACKWARD, FORWARD
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
from overlaplab.simulate.pipelines import PLAYED, UPDATE, Shape

__all__ = ["is_layer", "recorded_shapes"]


@once_per_run
def recorded_shapes(run: Run) -> tuple[Shape, ...]:
    """The shape of each recorded step of the run's first pipeline.

    Raises `OverlaplabError` where it cannot be played: several stages on a rank, a stage's trace missing, or messages
    whose ends are not known.
    """
    places = next(iter(pipelines(run)), [])
    known = run.manifest.pipeline if run.manifest else None
    if run.manifest is None or known is None:
        raise OverlaplabError("no run.json tells its stages", path=run.path)
    if known.schedule not in PLAYED:
        raise OverlaplabError(f"{known.schedule}, with several stages on each rank, is not predicted", path=run.path)
    if len(known.stages) != len(places):
        raise OverlaplabError(f"the traces of {len(places)} of {len(known.stages)} stages are there", path=run.path)
    table = pipeline(run)
    table = table[table["pipeline"] == 0]
    if table["wait_ns"].isna().any():
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
    ranks = [list(_steps(run, place, table, known, stage)) for stage, place in enumerate(places)]
    counts = tuple(sum(map(is_layer, stage.units)) for stage in known.stages)
    shapes = []
    for steps in zip(*ranks, strict=False):
        took, idle, layers, between, before, after = zip(*steps, strict=True)
        told = all(counts) and all(own is not None for own in layers)
        shapes.append(
            Shape(
                schedule=known.schedule,
                microbatches=known.microbatches,
                took_ns=took,
                idle_ns=idle,
                between_ns=between,
                around_ns=tuple(zip(before, after, strict=True)),
                hop_ns=hop_ns,
                bytes=size,
                link=run.manifest.emulated_link,
                layers=counts if told else (),
                layer_ns=layers if told else (),
            )
        )
    return tuple(shapes)


_Step = tuple[dict[str, int], dict[str, int], dict[str, int] | None, int, int, int]
"""What a stage's actions and updates take, of that without computation, and one of its layers'; of its host what it
takes between two actions, before the first, and beside the updates after the last one."""


def _steps(run: Run, place: int, table: pd.DataFrame, known: Pipeline, stage: int) -> Iterator[_Step]:
    """Of each of a rank's steps in which all actions are there."""
    trace, rows, offset = run.traces[place], arrivals(run), int(corrections(run)[place])
    own = rows[(rows["trace"] == place) & rows["message"] & (rows["start_ns"] != UNKNOWN_NS)]
    blocked = union(own["start_ns"] + offset, own["end_ns"] + offset)
    for window in step_windows(trace):
        step = table[(table["stage"] == stage) & (table["step"] == window.step)].sort_values("start_ns")
        if len(step) != 2 * known.microbatches:
            raise OverlaplabError(
                f"stage {stage} has {len(step)} of {2 * known.microbatches} actions in a step", path=run.path
            )
        starts = step["begun_ns"].to_numpy(np.int64) + run.traces[0].origin_ns + offset
        ends = starts + step["took_ns"].to_numpy(np.int64)
        idle = ends - starts - within(activity(trace).compute, starts, ends)
        of = {kind: (step["action"] == kind).to_numpy(dtype=bool) for kind in (FORWARD, BACKWARD)}
        took = {kind: round((ends - starts)[own].mean()) for kind, own in of.items()}
        updates = sum(label.end_ns - label.start_ns for label in _within(trace, window, "update"))
        between = step["overhead_ns"].iloc[1:].mean() if len(step) > 1 else 0
        before = _free(blocked, window.start_ns, int(starts[0]))
        after = max(_free(blocked, int(ends[-1]), window.end_ns) - updates, 0)
        idles = {kind: round(idle[own].mean()) for kind, own in of.items()}
        yield took | {UPDATE: updates}, idles, _layers(trace, window), round(between), before, after


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
