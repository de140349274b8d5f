"""The least time that a step could take: its recorded computation and T of its collectives, under three freedoms.

[Note: as launched], [Note: any cap], [Note: no communication], [Note: half the bytes]: docs/design/plays.md, Bound of a
step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pandas as pd
from msgspec import Struct

from overlaplab.events import Run, Trace, Window, step_windows
from overlaplab.evidence.executions import executions
from overlaplab.evidence.selection import rows_by_rank, selected_traces, selected_windows
from overlaplab.manifest import Link, strategy_traits
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.simulate.buckets.cutting import best_cutting
from overlaplab.simulate.buckets.search import bucket_search
from overlaplab.simulate.issued import Issued, issued_by_step, progress
from overlaplab.simulate.player import End, Launch, Mark, Move, Played, Program, Wait, Work, play
from overlaplab.simulate.programs.models import named_buckets, sends_unnamed
from overlaplab.simulate.transfers import Transfers, halved_ns, transfers

_NUMBERS = ("span_ns", "compute_ns", "transfer_ns", "bound_ns")
_TYPES = {
    **dict.fromkeys(("rank", "step"), "Int64"),
    **dict.fromkeys(_NUMBERS, "int64"),
    **dict.fromkeys(("any_cap_ns", "half_bound_ns", "half_transfer_ns", "found_ns", "least_ns"), "Int64"),
    **dict.fromkeys(("waits_known", "bytes_explain"), "bool"),
}

TimesBySize = Callable[[str], Callable[[int], int] | None]
"""T of each number of bytes by the kind of collective; None where unknown."""

_BUCKET_COLUMNS = ("rank", "step", "index", "gradients", "bytes", "ready_ns", "start_ns", "end_ns", "last_ns")


def bound(run: Run, selection: Selection = EVERYTHING, *, link: Link | None = None) -> pd.DataFrame:
    """One row per rank and step of a run of the engine, of DDP or of FSDP2.

    Columns: `rank`, `step` (Int64), `span_ns` (as measured), `compute_ns` (see [Note: no communication]), `transfer_ns`
    (T of all collectives played), `bound_ns` (see [Note: as launched]; all int64), `any_cap_ns` (Int64; see [Note: any
    cap]; null unless gradients are averaged by all-reduces, in one backward pass of the step, and their sizes and T of
    any size are known), `half_bound_ns`, `half_transfer_ns` (both Int64: `bound_ns` and `transfer_ns` with [Note: half
    the bytes]; null unless T of any size is known), `found_ns`, `least_ns` (both Int64: how long the step takes with
    the best buckets that were played with all ranks, and at least with any, see `buckets.search` and `buckets.least`;
    null where a run cannot be played so), `waits_known` (bool: else T may include waiting for other ranks, and the
    bounds hold only if it does not), `bytes_explain` (bool: False where waits are not known, and T follows no line).

    T follows from the given link, else from the run's own; without a link it is the measured transfer, and for other
    sizes a line through those measured. Where only one size was measured, `any_cap_ns` and `least_ns` take T from
    `transfers.no_less`. But for `found_ns` and `least_ns` each rank is simulated alone, without waiting for other
    ranks.
    Steps whose collectives are unknown have no row, nor have DDP's steps that also exchange other data than gradients,
    nor runs where updated parameters are gathered, which reaches into the next step, or sent by a server, nor meshes of
    several axes. Raises `OverlaplabError` for an unknown rank or step.
    """
    link = link or (run.manifest.link if run.manifest else None)
    rows = rows_by_rank(run, selection, partial(_bounds_of_trace, run, link)) if _has_bounds(run) else []
    played = _played_bounds(run, link) if rows else {}
    rows = [row | played.get((row["rank"], row["step"]), {}) for row in rows]
    return pd.DataFrame(rows, columns=list(_TYPES)).astype(_TYPES)


def _played_bounds(run: Run, link: Link | None) -> dict[tuple[int | None, int | None], dict[str, int]]:
    """`found_ns` and `least_ns` by rank and step; empty where no buckets were played, or some gradients lack names."""
    search = bucket_search(run, link)
    if search is None or search.best_found is None or sends_unnamed(search.cut.recorded.programs[0]):
        return {}
    played_ns, least = search.best_found.spans_ns, np.minimum(search.best_found.spans_ns, search.least.spans_ns)
    return {
        (trace.rank, window.step): {"found_ns": int(played_ns[place, step]), "least_ns": int(least[place, step])}
        for place, trace in enumerate(run.traces)
        for step, window in enumerate(step_windows(trace))
    }


def best_buckets(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank, step and bucket of the best buckets found, in order of launch, as they were played; else of the
    best cutting for the rank alone (see [Note: any cap]). Empty where neither is known.

    Columns, in Int64: `rank`, `step`, `index`, `gradients` (how many), `bytes`, `ready_ns`, `start_ns`, `end_ns`: from
    the step's start, and so is `last_ns`, when the last gradient is there. Of a rank alone computation is at its
    recorded times until then, and what is sent after that right behind it. Steps with several passes that send
    gradients have no rows. Raises `OverlaplabError` for an unknown rank or step.
    """
    search = bucket_search(run)
    if search is not None and search.best_found is not None:
        rows = _played_rows(run, search.cut.programs(search.best_found.buckets), selection)
    else:
        rows = rows_by_rank(run, selection, partial(_best_of_trace, run)) if _has_bounds(run) else []
    return pd.DataFrame(rows, columns=list(_BUCKET_COLUMNS)).astype("Int64")


def _played_rows(run: Run, programs: Sequence[Program], selection: Selection) -> list[dict[str, Any]]:
    chosen = {
        (trace.rank, window.step)
        for trace in selected_traces(run, selection)
        for window in selected_windows(trace, selection)
    }
    played = play(programs)
    rows: list[dict[str, Any]] = []
    for trace, program, over_ns in zip(run.traces, programs, played.over_ns, strict=True):
        ends = [place for place, move in enumerate(program) if isinstance(move, End)]
        for window, (begin, end) in zip(step_windows(trace), pairwise(ends), strict=True):
            if (trace.rank, window.step) in chosen:
                names = {"rank": trace.rank, "step": window.step}
                rows += (names | row for row in _rows_of_step(program[begin:end], over_ns[begin:end], played))
    return rows


def _rows_of_step(moves: Program, over_ns: Sequence[int], played: Played) -> Iterator[dict[str, int]]:
    """The buckets of one rank's step; none where several of its passes send gradients."""
    marks = [(move, at_ns) for move, at_ns in zip(moves, over_ns, strict=True) if isinstance(move, Mark)]
    if sum(mark.word == "backward_end" for mark, _ in marks) != 1:
        return
    begun, arrived = over_ns[0], {mark.name: at_ns for mark, at_ns in marks if mark.word == "gradient"}
    last_ns = max(arrived.values(), default=begun)
    for index, launch in enumerate(named_buckets(moves)):
        start, end = played.carried[launch.key]
        ready_ns = max((arrived[name] for name in launch.parameters if name in arrived), default=begun)
        times = {"ready_ns": ready_ns, "start_ns": start, "end_ns": end, "last_ns": last_ns}
        row = {"index": index, "gradients": len(launch.parameters), "bytes": launch.bytes}
        yield row | {name: at_ns - begun for name, at_ns in times.items()}


def _has_bounds(run: Run) -> bool:
    """Whether a step stands for itself, and all that it sends is known.

    Not where it waits for updated parameters that are gathered, or that a server sends; nor where collectives are of
    another axis of the mesh, which share the link and whose waits are not labelled.
    """
    if run.manifest is not None and not run.manifest.axes.is_one_axis:
        return False
    traits = strategy_traits(run.manifest)
    return traits is None or (traits.gathers != "updated_parameters" and traits.gradients != "server")


def _best_of_trace(run: Run, trace: Trace, steps: Sequence[Window]) -> Iterator[dict[str, Any]]:
    transfer_times, ran = transfers(run, trace, run.manifest.link if run.manifest else None), executions(trace)
    for step, issued in issued_by_step(trace, steps, run.manifest):
        gradients = _sendable_in_step(issued, progress(trace, step), transfer_times.times_by_size)
        if gradients is None or issued.gradients is None:
            continue
        done_ns, free_ns = np.maximum.accumulate(gradients.ready_ns), 0
        times = [(ran.done_ns(host_ns) or host_ns) - step.start_ns for host_ns, _ in issued.gradients]
        at_ns = np.maximum.accumulate(times)

        def recorded_ns(done: int, done_ns: Any = done_ns, at_ns: Any = at_ns) -> int:
            """The recorded time at which so much was computed."""
            return round(float(np.interp(done, done_ns, at_ns))) + max(done - int(done_ns[-1]), 0)

        counts = best_cutting(gradients.ready_ns, gradients.bytes, gradients.takes)[1]
        for index, (first, last) in enumerate(pairwise(accumulate(counts, initial=0))):
            size, ready_ns = sum(gradients.bytes[first:last]), max(gradients.ready_ns[:last])
            start_ns = max(ready_ns, free_ns)
            free_ns = start_ns + gradients.takes(size)
            computed_ns = {"ready_ns": ready_ns, "start_ns": start_ns, "end_ns": free_ns}
            row = {"step": step.step, "index": index, "gradients": last - first, "bytes": size}
            yield row | {name: recorded_ns(ns) for name, ns in computed_ns.items()} | {"last_ns": int(at_ns[-1])}


def _bounds_of_trace(run: Run, link: Link | None, trace: Trace, steps: Sequence[Window]) -> Iterator[dict[str, Any]]:
    times = transfers(run, trace, link)
    for step, issued in issued_by_step(trace, steps, run.manifest):
        each_ns = [times.launch_ns(sent.launch, sent.kind, sent.bytes) for _, sent in issued.sent]
        known_ns = [ns for ns in each_ns if ns is not None]
        if len(known_ns) < len(each_ns):
            continue
        done_by = progress(trace, step)
        computed_ns = done_by(step.host_end_ns)
        as_launched_ns = _as_launched_ns(issued, known_ns, done_by, computed_ns)
        halves_ns = _halved_times_ns(issued, known_ns, times)
        any_cap_ns = _any_cap_ns(issued, done_by, computed_ns, times)
        waits_known = all(times.knows_waits(sent.launch) for _, sent in issued.sent)
        yield {
            "step": step.step,
            "span_ns": step.end_ns - step.start_ns,
            "compute_ns": computed_ns,
            "transfer_ns": sum(known_ns),
            "bound_ns": as_launched_ns,
            "any_cap_ns": None if any_cap_ns is None else min(any_cap_ns, as_launched_ns),  # it was a cutting, too
            "half_bound_ns": None if halves_ns is None else _as_launched_ns(issued, halves_ns, done_by, computed_ns),
            "half_transfer_ns": None if halves_ns is None else sum(halves_ns),
            "waits_known": waits_known,
            "bytes_explain": waits_known
            or all(times.times_by_size(sent.kind) for _, sent in issued.sent if sent.bytes),
        }


def _as_launched_ns(issued: Issued, each_ns: Sequence[int], done_by: Callable[[int], int], computed_ns: int) -> int:
    """How long the step takes if collective i takes `each_ns[i]`: see [Note: as launched]."""
    launches = [(at_ns, Launch(key, ns)) for key, ((at_ns, _), ns) in enumerate(zip(issued.sent, each_ns, strict=True))]
    waits = [(at_ns, Wait(key)) for at_ns, key in issued.waits]
    points: list[tuple[int, Move]] = [*launches, *waits]
    moves: list[Move] = []
    done = 0
    for host_ns, move in sorted(points, key=lambda point: point[0]):
        moves += [Work(done_by(host_ns) - done), move]
        done = done_by(host_ns)
    return play([[*moves, Work(computed_ns - done)]]).over_ns[0][-1]


def _halved_times_ns(issued: Issued, each_ns: Sequence[int], times: Transfers) -> list[int] | None:
    """T of each collective with half as many bytes, None where T of other sizes is unknown."""
    halves_ns = []
    for (_, sent), ns in zip(issued.sent, each_ns, strict=True):
        takes = times.times_by_size(sent.kind)
        if takes is None or not sent.bytes:
            return None
        halves_ns.append(halved_ns(ns, sent.bytes, takes))
    return halves_ns


def _any_cap_ns(issued: Issued, done_by: Callable[[int], int], computed_ns: int, times: Transfers) -> int | None:
    gradients = _sendable_in_step(issued, done_by, times.least_by_size)
    if gradients is None:
        return None
    end_ns = best_cutting(gradients.ready_ns, gradients.bytes, gradients.takes)[0]
    return max(end_ns - gradients.ready_ns[-1], 0) + computed_ns


class SendableGradients(Struct, frozen=True, kw_only=True):
    """The gradients of one rank's step, in order of arrival, as they could be sent in any buckets."""

    ready_ns: list[int]
    """When each is ready, in computation done."""
    bytes: list[int]
    takes: Callable[[int], int]
    """T of an all-reduce of so many bytes."""
    sent: tuple[int, int]
    """The smallest and the largest number of bytes that a collective of the step sent."""


def sendable_gradients(run: Run, window: Mapping[str, Any]) -> SendableGradients | None:
    """The gradients of the rank and step of a row of `overlaplab.summary`; None where `bound` has no `any_cap_ns`."""
    selection = Selection(
        ranks=None if pd.isna(window["rank"]) else [int(window["rank"])],
        steps=None if pd.isna(window["step"]) else [int(window["step"])],
    )
    if not _has_bounds(run):
        return None
    for trace in selected_traces(run, selection):
        times = transfers(run, trace, run.manifest.link if run.manifest else None)
        for step, issued in issued_by_step(trace, selected_windows(trace, selection), run.manifest):
            return _sendable_in_step(issued, progress(trace, step), times.times_by_size)
    return None


def _sendable_in_step(
    issued: Issued, done_by: Callable[[int], int], times_by_size: TimesBySize
) -> SendableGradients | None:
    takes = times_by_size("all_reduce")
    sent = [each.bytes for _, each in issued.sent if each.bytes]
    if issued.gradients is None or takes is None or not sent:
        return None
    return SendableGradients(
        ready_ns=[done_by(host_ns) for host_ns, _ in issued.gradients],
        bytes=[size for _, size in issued.gradients],
        takes=takes,
        sent=(min(sent), max(sent)),
    )
