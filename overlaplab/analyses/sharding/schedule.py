"""The schedule of sharded parameters: when each unit was gathered, used and freed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd

from overlaplab.events import Run, Trace, Window, table_of
from overlaplab.evidence.executions import Executions, executions, map_moment
from overlaplab.evidence.fsdp2 import BackwardPasses, fsdp2_gathers, fsdp2_ranges, unit_sizes
from overlaplab.evidence.gathers import Gather, engine_gathers
from overlaplab.evidence.labels import Span, engine_labels
from overlaplab.evidence.selection import launched_in, rows_by_rank
from overlaplab.manifest import Manifest
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.vocabulary import layer_number

_TIMES = (
    *("gather_launch_ns", "gather_start_ns", "gather_end_ns", "first_use_ns", "last_use_ns"),
    *("backward_first_use_ns", "backward_last_use_ns", "free_ns"),
)
_COLUMNS = (
    *("rank", "step", "unit", "layer", "microbatch", "phase"),
    *(*_TIMES, "free_phase", "resharded_bytes", "resharded_until_ns", "wait_ns", "bytes", "held_ns", "source"),
)
_TEXTS = ("unit", "phase", "free_phase", "source")


def schedule(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per gather of a unit's parameters, in launch order; times in ns from the step window's start.

    Columns: `rank`, `step`, `unit`, `layer` (the number at the end of the unit's name), `microbatch`, `phase`
    (`forward` or `backward`: what it was gathered for), `gather_launch_ns` (host time: on a GPU it may precede the
    window), `gather_start_ns`, `gather_end_ns` (of the collective), `first_use_ns`, `last_use_ns` (of its phase),
    `backward_first_use_ns`, `backward_last_use_ns` (of a forward gather that stays until the backward pass),
    `free_ns`, `free_phase`, `resharded_bytes` (what stays held then, as the unit was resharded to fewer ranks; null
    where this, or when the unit was freed, cannot be told), `resharded_until_ns` (until when: the next gather),
    `wait_ns` (how long the rank was ready to use the unit before the gather ended), `bytes`
    (as gathered), `held_ns` (from when on the bytes count as held: on CPU the launch, on a GPU when the compute stream
    had reached the launch), `source` (`engine`, or `fsdp2`: FSDP2's own ranges). Numbers are Int64, null where unknown.

    Gathers come from the engine's labels, or without them from FSDP2's ranges in any trace. There, bytes come from the
    collective or the manifest. Empty if nothing is gathered, or device activity was not recorded.
    Raises `OverlaplabError` for an unknown rank or step.
    """
    rows = rows_by_rank(run, selection, partial(_trace_rows, run.manifest))
    return table_of(rows, {name: None if name in _TEXTS else "Int64" for name in _COLUMNS})


def _trace_rows(manifest: Manifest | None, trace: Trace, steps: Sequence[Window]) -> Iterator[dict[str, Any]]:
    labels, ran = engine_labels(trace), executions(trace)
    if any(label.word == "gather_launch" for label in labels):
        for step in steps:
            for gather in engine_gathers(launched_in(labels, step)):
                yield _row(gather, step, ran) | {"resharded_bytes": 0, "source": "engine"}
    elif ranges := fsdp2_ranges(trace):
        gathers, passes, size_of = fsdp2_gathers(ranges, ran), BackwardPasses(ranges), unit_sizes(manifest, ranges)
        launched = [gather.launch.start_ns for gather in gathers]
        for step in steps:
            earlier = passes.count_ended(step.host_start_ns)
            for gather in gathers[bisect_left(launched, step.host_start_ns) : bisect_left(launched, step.host_end_ns)]:
                row = _row(gather, step, ran)
                row["microbatch"] -= earlier  # numbered from the trace's start
                row["bytes"] = size_of(gather.unit) if gather.bytes is None else gather.bytes
                row["resharded_bytes"] = _resharded_bytes(gather, row["bytes"], manifest)
                yield row | {"source": "fsdp2"}


def _resharded_bytes(gather: Gather, num_bytes: int | None, manifest: Manifest | None) -> int | None:
    """What stays held of a unit of so many bytes once it is freed; the engine's loop reshards to all ranks or none."""
    by_engine = manifest is not None and not manifest.by_recorder
    if gather.shards is None:
        return 0 if by_engine and gather.free_ns is not None else None
    if gather.shards == 0:
        return 0
    return None if num_bytes is None else num_bytes // gather.shards


def _row(gather: Gather, step: Window, ran: Executions) -> dict[str, Any]:
    start, end = ran.communication_span(gather.launch) or (None, None)
    times = {
        "gather_launch_ns": gather.launch.start_ns,
        "gather_start_ns": start,
        "gather_end_ns": end,
        "first_use_ns": map_moment(gather.first_use_ns, ran.first_begin_ns),
        "last_use_ns": map_moment(gather.last_use_ns, ran.done_ns),
        "backward_first_use_ns": map_moment(gather.backward_first_use_ns, ran.first_begin_ns),
        "backward_last_use_ns": map_moment(gather.backward_last_use_ns, ran.done_ns),
        "free_ns": map_moment(gather.free_ns, ran.done_ns),
        "resharded_until_ns": _resharded_until_ns(gather, ran),
        "held_ns": _held_ns(gather.launch, ran),
    }
    return {
        "step": step.step,
        "unit": gather.unit,
        "layer": layer_number(gather.unit),
        "microbatch": gather.microbatch,
        "phase": gather.phase,
        **{name: None if at is None else at - step.start_ns for name, at in times.items()},
        "free_phase": gather.free_phase,
        "wait_ns": ran.waited_ns(gather.blocked, end),
        "bytes": gather.bytes,
    }


def _resharded_until_ns(gather: Gather, ran: Executions) -> int | None:
    """When the part that stayed is given up: at the next gather, but not before the free, which a GPU may reach
    later.
    """
    if gather.regathered is None or gather.free_ns is None:
        return None
    return max(_held_ns(gather.regathered, ran), ran.done_ns(gather.free_ns))


def _held_ns(launch: Span, ran: Executions) -> int:
    """From when on a gather's bytes count as held: a separate stream may start it before the main one is there."""
    reached, bounds = ran.done_ns(launch.start_ns), ran.communication_span(launch)
    return reached if bounds is None else min(reached, bounds[0])
