"""The least time that a step can take: its recorded computation and its link's T, simulated in launch order.

[Note: what is played]
Computation is one queue, the link another. Computation counts by its duration, without idle time. A collective starts
once the computation before its launch is done and the previous collective has left the link, and ends T later:
start = max(ready, previous end). Computation waits for a bucket or a gathered unit where the engine did
(`engine::bucket_done`, `engine::gather_wait`). It waits for a reduce-scatter where the engine did
(`engine::scatter_done`), but not before the end of the backward pass, since the number in flight is the engine's
choice. Collectives of flags and norms are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pandas as pd

from overlaplab.costs import transfer_ns
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, Trace, Window, Work, activity, counting_as, launchers, main_stream, rule_of
from overlaplab.evidence.labels import Label, labels_of
from overlaplab.evidence.selection import launched_in, rows_by_rank
from overlaplab.intervals import clip, total
from overlaplab.manifest import Link, traits_of
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.vocabulary import Rule

_NUMBERS = ("span_ns", "compute_ns", "transfer_ns", "bound_ns")
_SENDERS = {"bucket_launch": "all_reduce", "gather_launch": "all_gather", "scatter_launch": "reduce_scatter"}
_WAITERS = ("bucket_done", "gather_wait", "scatter_done")


@dataclass(frozen=True, slots=True)
class Compute:
    """Computation of a given length."""

    ns: int


@dataclass(frozen=True, slots=True)
class Launch:
    """A collective that may start once the computation has reached it, and then occupies the link for T."""

    transfer_ns: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Computation continues once the collective with this launch number, from 0, has ended."""

    number: int


Move = Compute | Launch | Wait


def finish_ns(moves: Iterable[Move]) -> int:
    """When the last computation of the moves ends, in ns from the start of the first move.

    Raises IndexError for a wait before its launch.
    """
    now = free = 0
    ends: list[int] = []
    for move in moves:
        match move:
            case Compute(ns):
                now += ns
            case Launch(ns):
                free = max(now, free) + ns
                ends.append(free)
            case Wait(number):
                now = max(now, ends[number])
    return now


def bound(run: Run, selection: Selection = EVERYTHING, *, link: Link | None = None) -> pd.DataFrame:
    """One row per rank and step, from the engine's labels; see [Note: what is played].

    Columns: `rank`, `step` (Int64), `span_ns` (as measured), `compute_ns` (how long it computed), `transfer_ns` (T of
    all collectives played), `bound_ns` (int64). The link is the run's own, unless another is given. Each rank is
    simulated alone, so bounds include no waiting for other ranks. Empty for runs without labels of buckets or gathers,
    and where updated parameters are gathered, which reaches into the next step. Raises `OverlaplabError` without a
    link, and for an unknown rank or step.
    """
    link = link or (run.manifest.link if run.manifest else None)
    if link is None:
        raise OverlaplabError("no link to reckon with", path=run.path, remedy="Give one, or record with --link.")
    traits = traits_of(run.manifest)
    across_steps = traits is not None and traits.gathers == "updated_parameters"
    rows = [] if across_steps else rows_by_rank(run, selection, partial(_of_trace, link))
    table = pd.DataFrame(rows, columns=["rank", "step", *_NUMBERS])
    return table.astype({"rank": "Int64", "step": "Int64"} | dict.fromkeys(_NUMBERS, "int64"))


def _of_trace(link: Link, trace: Trace, steps: Sequence[Window]) -> Iterator[dict[str, Any]]:
    for step in steps:
        points = _points(launched_in(labels_of(trace), step), link)
        if not points:
            continue
        moves = list(_moves(points, _progress(trace, step), step.host_end_ns))
        yield {
            "step": step.step,
            "span_ns": step.end_ns - step.start_ns,
            "compute_ns": sum(move.ns for move in moves if isinstance(move, Compute)),
            "transfer_ns": sum(move.transfer_ns for move in moves if isinstance(move, Launch)),
            "bound_ns": finish_ns(moves),
        }


def _moves(points: Sequence[tuple[int, Launch | Wait]], done_by: Callable[[int], int], end_ns: int) -> Iterator[Move]:
    """The given launches and waits, and the computation issued between them."""
    done = 0
    for host_ns, move in points:
        yield Compute(done_by(host_ns) - done)
        yield move
        done = done_by(host_ns)
    yield Compute(done_by(end_ns) - done)


def _points(labels: Sequence[Label], link: Link) -> list[tuple[int, Launch | Wait]]:
    """Launches and waits from one step's labels, which must be in order of time; each with its host time."""
    sizes = {label.fields["bucket"]: label.fields["bytes"] for label in labels if label.word == "bucket_ready"}
    due_ns = max((label.end_ns for label in labels if label.word == "backward"), default=0)
    points: list[tuple[int, Launch | Wait]] = []
    launched: dict[tuple[str | None, ...], int] = {}
    numbers = count()
    for label in labels:
        size = label.fields.get("bytes") or sizes.get(label.fields.get("bucket", ""))
        if label.word in _SENDERS and size is not None:
            launched[_of(label)] = next(numbers)
            points.append((label.start_ns, Launch(transfer_ns(_SENDERS[label.word], int(size), link))))
        elif label.word in _WAITERS and _of(label) in launched:
            at_ns = max(label.start_ns, due_ns) if label.word == "scatter_done" else label.start_ns
            points.append((at_ns, Wait(launched[_of(label)])))
    return sorted(points, key=lambda point: point[0])


def _of(label: Label) -> tuple[str | None, ...]:
    """The fields that a launch and the wait for it share."""
    return tuple(label.fields.get(key) for key in ("bucket", "unit", "microbatch", "phase"))


def _progress(trace: Trace, step: Window) -> Callable[[int], int]:
    """A function that gives the step's computation issued before a host time, in ns."""
    if rule_of(trace) is not Rule.GPU:
        computed = clip(activity(trace).compute, step.start_ns, step.end_ns)
        return lambda host_ns: total(clip(computed, step.start_ns, host_ns))
    events, calls = trace.events, launchers(trace)
    works = counting_as(trace, Work.COMPUTE) | counting_as(trace, Work.MEMORY)
    own = np.flatnonzero(works & (events["stream"] == main_stream(trace)).to_numpy() & (calls >= 0))
    hosts = events["ts_ns"].to_numpy()[calls[own]]
    own, hosts = (of[(step.host_start_ns <= hosts) & (hosts < step.host_end_ns)] for of in (own, hosts))
    order = np.lexsort((events["ts_ns"].to_numpy()[own], hosts))
    own, hosts = own[order], hosts[order]
    starts = events["ts_ns"].to_numpy()[own]
    ends = starts + events["dur_ns"].to_numpy()[own]
    reached = np.maximum.accumulate(ends)
    earlier = np.concatenate((starts[:1], reached[:-1]))
    worked = np.concatenate(([0], np.cumsum(np.maximum(ends - np.maximum(starts, earlier), 0))))
    return lambda host_ns: int(worked[np.searchsorted(hosts, host_ns)])
