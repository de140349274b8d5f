"""What one layer of a recorded pipeline's stage takes."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from overlaplab.costs.pipeline import BACKWARD, FORWARD
from overlaplab.events import Trace, Window
from overlaplab.evidence.executions import executions
from overlaplab.evidence.labels import Label, engine_labels
from overlaplab.manifest import Pipeline
from overlaplab.simulate.pipelines.shape import Labelled
from overlaplab.simulate.pipelines.times import UPDATE


def labelled_layers(
    trace: Trace, window: Window, pipeline: Pipeline, took: Mapping[int, Mapping[str, int]]
) -> Labelled | None:
    """What a layer takes in the mean, by the borders of its uses; None where these are not labelled.

    `took` has the rank's stages. Without backward passes where they are in halves: one half's gradients do not come in
    the layers' order.
    """
    times_ns: dict[str, list[int]] = {FORWARD: [], BACKWARD: [], UPDATE: []}
    used_ns = {FORWARD: 0, BACKWARD: 0}
    begun: dict[tuple[str, str, str], int] = {}
    ran = executions(trace)  # on a GPU in device time, as actions
    for label in labels_within(trace, window, "first_use", "last_use", "update"):
        unit = label.fields["unit"]
        if label.word == "update":
            times_ns[UPDATE] += [label.end_ns - label.start_ns] if is_layer(unit) else []
            continue
        key = (unit, label.fields["phase"], label.fields["microbatch"])
        if label.word == "first_use":
            at = ran.first_begin_ns(label.start_ns)
            begun[key] = label.start_ns if at is None else at
        elif key in begun and key[1] in used_ns:
            own_ns = ran.done_ns(label.start_ns) - begun.pop(key)
            used_ns[key[1]] += own_ns
            times_ns[key[1]] += [own_ns] if is_layer(unit) else []
    if not times_ns[FORWARD]:
        return None
    if pipeline.schedule == "zbv":
        times_ns[BACKWARD].clear()
    beside_ns = {
        kind: max(
            round(fmean(stage_took[kind] for stage_took in took.values()) - used / (pipeline.microbatches * len(took))),
            0,
        )
        for kind, used in used_ns.items()
        if times_ns[kind]
    }
    return Labelled({kind: round(fmean(each_ns)) for kind, each_ns in times_ns.items() if each_ns}, beside_ns)


def labels_within(trace: Trace, window: Window, *words: str) -> list[Label]:
    """The labels of these words that begin in a step."""
    return [
        label
        for label in engine_labels(trace)
        if label.word in words and window.start_ns <= label.start_ns < window.end_ns
    ]


def is_layer(unit: str) -> bool:
    """Whether it is one of the units that are shared out among the stages."""
    return unit.startswith("layers.")
