"""What another schedule, more microbatches or another split of the layers would gain in a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

import pandas as pd
from msgspec.structs import replace

from overlaplab.costs.pipeline import held_counts, order
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, once_per_run
from overlaplab.simulate.pipelines.moves import play_pipeline, step_ns
from overlaplab.simulate.pipelines.recorded import recorded_shapes
from overlaplab.simulate.pipelines.shape import UPDATE, Shape, actions_ns
from overlaplab.simulate.predictions.error import gain_half_ns, prediction_interval
from overlaplab.simulate.undisturbed import mean_step_ns, recorded_spans_ns

_MICROBATCH_FACTORS = (2, 4)
"""Times as many microbatches."""
_OF_ONE_STAGE = ("gpipe", "1f1b")
"""Schedules with a stage on each rank: others are not advised, nor what helps them."""
_COLUMNS = ("remedy", "setting", "bubble", "held", "step_ns", "recorded_ns", "gain_ns")


@once_per_run
def pipeline_remedies(run: Run) -> pd.DataFrame:
    """One row per setting that was played, the one that gains most first; empty where none can be.

    Columns: `remedy` (`microbatches`, `schedule`, `split`), `setting` (the number, the schedule's name, the layers of
    each stage), `bubble` (its share of the stages' time), `held` (the most microbatches that a stage holds),
    `recorded_ns` (the mean step of a training, see `undisturbed.mean_step_ns`), `gain_ns` (of a play with the setting
    over one as recorded), `step_ns` (`recorded_ns` less the gain).
    """
    try:
        recorded = tuple(replace(shape, buckets=()) for shape in recorded_shapes(run)[0])
    except OverlaplabError:
        return pd.DataFrame(columns=list(_COLUMNS))
    if recorded[0].schedule not in _OF_ONE_STAGE:
        return pd.DataFrame(columns=list(_COLUMNS))
    before, recorded_ns = step_ns(recorded), round(mean_step_ns(run, recorded_spans_ns(run)))
    rows = []
    for remedy, setting, changed in _changed_shapes(recorded):
        after, first = step_ns(changed), changed[0]
        orders = order(first.schedule, len(first.took_ns), first.microbatches)
        most = max(max(held_counts(rank_order)) for rank_order in orders)
        gain_ns = before - after
        rows.append((remedy, setting, _bubble(changed, after), most, recorded_ns - gain_ns, recorded_ns, gain_ns))
    table = pd.DataFrame(rows, columns=list(_COLUMNS))
    return table.sort_values("gain_ns", ascending=False, kind="stable", ignore_index=True)


def pipeline_gain_half_ns(run: Run) -> int:
    """Half of the 95 % interval of a pipeline's gain, see `gain_half_ns`. Raises `OverlaplabError` without one."""
    recorded = recorded_shapes(run)[0]
    spans_ns = play_pipeline((recorded[0], *recorded)).all_spans_ns()[:, 1:].mean(axis=0)  # the first fills it
    mean_ns = mean_step_ns(run, recorded_spans_ns(run))
    return gain_half_ns(mean_ns, mean_ns, prediction_interval(run, mean_ns, spans_ns.tolist()))


def _changed_shapes(recorded: tuple[Shape, ...]) -> Iterator[tuple[str, str, tuple[Shape, ...]]]:
    """Each remedy's name, its setting, and the shapes of its steps."""
    first = recorded[0]
    for times in _MICROBATCH_FACTORS:
        number = first.microbatches * times
        yield "microbatches", str(number), tuple(shape.with_microbatches(number) for shape in recorded)
    for other in _OF_ONE_STAGE:
        if other != first.schedule and (other == "gpipe" or first.microbatches >= len(first.took_ns)):
            yield "schedule", other, tuple(replace(shape, schedule=other) for shape in recorded)
    if first.layers and (even := first.even_layers) != first.layers:
        yield "split", ",".join(map(str, even)), tuple(shape.with_layers(even) for shape in recorded)


def _bubble(shapes: tuple[Shape, ...], whole_ns: int) -> float:
    """The share of a step in which stages do no action, without what is done around the actions."""
    busy = fmean(shape.microbatches * actions_ns(took) for shape in shapes for took in shape.took_ns)
    stages = [stage for shape in shapes for stage in zip(shape.around_ns, shape.took_ns, strict=True)]
    around = fmean(sum(edges) + took[UPDATE] for edges, took in stages)
    return 1 - busy / max(whole_ns - around, 1)
