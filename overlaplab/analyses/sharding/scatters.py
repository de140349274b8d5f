"""Reduce-scatters of sharded units' gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote

import pandas as pd

from overlaplab.events import Run, Trace, Window
from overlaplab.evidence.executions import communication_bounds, executions
from overlaplab.evidence.fsdp2 import BackwardPasses, fsdp2_ranges, fsdp2_scatters, unit_sizes
from overlaplab.evidence.labels import Label, engine_labels
from overlaplab.evidence.launches import total_bytes
from overlaplab.evidence.selection import launched_in, rows_by_rank
from overlaplab.manifest import Manifest
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.vocabulary import layer_number

_COLUMNS = ("rank", "step", "unit", "layer", "microbatch", "launch_ns", "start_ns", "end_ns", "bytes")


def scatters(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per reduce-scatter of a unit's gradients, in launch order; times in ns from the step window's start.

    Columns, numbers in Int64: `rank`, `step`, `unit`, `layer` (null for a unit without a number), `microbatch`,
    `launch_ns` (host time), `start_ns`, `end_ns` (of the collective), `bytes` (of the full gradients); null where
    unknown. They come from the engine's labels, or without them from FSDP2's ranges. Raises `OverlaplabError` for
    an unknown rank or step.
    """
    rows = rows_by_rank(run, selection, partial(_trace_rows, run.manifest))
    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype({name: "Int64" for name in _COLUMNS if name != "unit"})


def scatter_steps(table: pd.DataFrame, exposed: pd.DataFrame) -> pd.DataFrame:
    """One row per rank and step with reduce-scatters that ran: rows of `scatters`, and of `exposed` of the same run.

    Columns, in Int64: `rank`, `step`, `scatters` (how many), `exposed_ns` (of all of them together).
    """
    window = ["rank", "step"]
    ran = table.dropna(subset=["start_ns", "end_ns"]).groupby(window, dropna=False).size().reset_index(name="scatters")
    reduce_scatters = exposed[exposed["kind"] == "reduce_scatter"]
    exposed_sums = reduce_scatters.groupby(window, dropna=False)["exposed_ns"].sum().reset_index()
    steps = ran.merge(exposed_sums, on=window, how="left").fillna({"exposed_ns": 0})
    return steps.astype(dict.fromkeys((*window, "scatters", "exposed_ns"), "Int64"))


def _trace_rows(manifest: Manifest | None, trace: Trace, steps: Sequence[Window]) -> Iterator[dict[str, Any]]:
    ran = executions(trace)
    if launched := [label for label in engine_labels(trace) if label.word == "scatter_launch"]:
        for label, step in _labels_in_steps(launched, steps):
            fields = label.fields
            row = _row(label, unquote(fields["unit"]), step, ran.communication_span(label))
            yield row | {"microbatch": int(fields["microbatch"]), "bytes": int(fields["bytes"])}
    elif ranges := fsdp2_ranges(trace):
        passes, size_of = BackwardPasses(ranges), unit_sizes(manifest, ranges, reduced=True)
        for label, step in _labels_in_steps(fsdp2_scatters(ranges, ran), steps):
            microbatch = passes.count_ended(label.start_ns) - passes.count_ended(step.host_start_ns)
            # With replicated shards the same range then all-reduces the sums between the replicas.
            scattered = [launch for launch in ran.launches_inside(label) if launch.kind != "all_reduce"]
            unit, size = label.fields["unit"], total_bytes(scattered)
            size = size_of(unit) if size is None else size
            yield _row(label, unit, step, communication_bounds(scattered)) | {"microbatch": microbatch, "bytes": size}


def _labels_in_steps(labels: Sequence[Label], steps: Sequence[Window]) -> Iterator[tuple[Label, Window]]:
    for step in steps:
        yield from ((label, step) for label in launched_in(labels, step))


def _row(label: Label, unit: str, step: Window, bounds: tuple[int, int] | None) -> dict[str, Any]:
    start, end = bounds or (None, None)
    times = {"launch_ns": label.start_ns, "start_ns": start, "end_ns": end}
    shown = {name: None if at is None else at - step.start_ns for name, at in times.items()}
    return {"step": step.step, "unit": unit, "layer": layer_number(unit), **shown}
