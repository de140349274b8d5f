"""A recorded run as programs, one per rank: what each did between its launches and waits, and how long.

docs/design/plays.md, What a remedy gains.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from math import prod
from typing import TypeAlias, cast

import numpy as np
import pandas as pd
from msgspec import Struct
from msgspec.structs import replace

from overlaplab.events import Run, Trace, activity, missing_ranks, once_per_run, rule_of, step_windows
from overlaplab.evidence.by_hand import hand_gradients
from overlaplab.evidence.clocks import corrections
from overlaplab.evidence.fsdp2 import fsdp2_ranges
from overlaplab.evidence.host_work import host_work
from overlaplab.evidence.labels import Label, Ordered, engine_labels
from overlaplab.evidence.passes import PASSES, bucket_labels, ddp_gradients, pass_labels, update_labels
from overlaplab.evidence.purposes import BUFFERS, LOOP_GRADIENTS, Role, purposes
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.manifest import strategy_traits
from overlaplab.simulate.blocked import Blocked, Launched, collective_name, find_fsdp2_waits, find_launched, find_waits
from overlaplab.simulate.displaced import Displaced, calibrated_use, displaced_over_used
from overlaplab.simulate.fill_buckets import share_bytes
from overlaplab.simulate.player import End, Mark, Move, Wait, Work, change_launches
from overlaplab.simulate.recorded_collectives import (
    carried_collectives,
    end_in_order,
    have_all_arrived,
    with_seen_ends,
    with_times,
)
from overlaplab.vocabulary import Rule, label_list

_PAUSE_SHARE = 0.01
"""The host pauses where the rank computes nothing, and waits for nothing, for longer than this share of a step."""
_GAP_NS = 1_000_000
"""Longer stretches without computation are works of their own."""
MOST_RANKS = 64
"""Runs of more ranks are not played: their tables would all have to be in one process."""


ComputeTimes: TypeAlias = tuple[tuple[list[int], list[int]], int]
"""When a rank begins to compute and ends, and how long a pause is at least."""


class Recorded(Struct, frozen=True, kw_only=True):
    """The programs of a run's recorded steps."""

    programs: tuple[tuple[Move, ...], ...]
    """One per trace, over all its steps."""
    gradients: dict[str, tuple[int, int]]
    """Bytes of each gradient sent in a bucket, by the parameter's name: its own, and with what is sent beside it."""
    displaced: Displaced
    """What a collective displaces, recorded or not."""


def plain_programs(run: Run) -> Recorded | None:
    """`editable_programs`, but None where buckets are averaged by messages: edits of collectives do not fit these."""
    traits = strategy_traits(run.manifest)
    return None if traits is not None and traits.averages_by_messages else editable_programs(run)


def editable_programs(run: Run) -> Recorded | None:
    """`recorded_programs`, also of a ring or a tree, but None with a parameter server or a mesh of several axes."""
    traits, manifest = strategy_traits(run.manifest), run.manifest
    served = traits is not None and traits.gradients == "server"
    return None if served or (manifest and not manifest.axes.is_one_axis) else recorded_programs(run)


@once_per_run
def recorded_programs(run: Run) -> Recorded | None:
    """The programs; None where the traces do not tell them, as on a GPU.

    Where buckets are averaged by hand, the hops of each are one collective. Also None of an asynchronous server, and of
    pipelines (`recorded_shapes`). Where passes are not known, the programs have no marks of them. Where ranks are
    missing (`missing_ranks`), T is what collectives took on those that are there, waiting for the others included.
    """
    if not 0 < len(run.traces) <= MOST_RANKS or any(rule_of(trace) is not Rule.CPU for trace in run.traces):
        return None
    if run.manifest is not None and (run.manifest.asynchronous or run.manifest.pipeline is not None):
        return None
    rows = carried_collectives(run)
    if not len(rows) or not (missing_ranks(run) or have_all_arrived(rows)) or (rows["launch_ns"] == UNKNOWN_NS).any():
        return None
    counts = {len(step_windows(trace)) for trace in run.traces}
    if len(counts) != 1 or 0 in counts:
        return None
    link, traits = run.manifest.link if run.manifest else None, strategy_traits(run.manifest)
    by_hand = traits is not None and traits.hops is not None
    rows = with_times(rows if link or by_hand else with_seen_ends(run, rows))
    queues = end_in_order(rows)  # else several are carried at once: T is from the last launch to the end
    if not queues and (link is not None or rows["lane"].notna().any()):
        return None
    if not queues:
        rows = rows.assign(transfer_ns=rows["ended_ns"] - rows["asked_ns"])
    rows = rows.assign(queues=queues)
    offsets = corrections(run)
    starts = [step_windows(trace)[0].start_ns - int(offset) for trace, offset in zip(run.traces, offsets, strict=True)]
    gradients: dict[str, tuple[int, int]] = {}
    programs: list[tuple[Move, ...]] = []
    for place, trace in enumerate(run.traces):
        own_rows, offset, computing = rows[rows["trace"] == place], int(offsets[place]), _compute_times(trace)
        labels, launches = _labels_and_launches(run, trace, own_rows, offset, computing)
        programs.append(tuple(_moves(trace, labels, launches, offset + min(starts), computing)))
        gradients |= dict(_gradients(run, trace, launches))
    used = calibrated_use(run.manifest)
    factor = displaced_over_used(run, [_with_displaced_ns(program, used) for program in programs])

    def displaced_ns(kind: str, num_bytes: int) -> int:
        return round(factor * used(kind, num_bytes))

    displacing = tuple(_with_displaced_ns(program, displaced_ns) for program in programs)
    return Recorded(programs=displacing, gradients=gradients, displaced=displaced_ns)


def _with_displaced_ns(program: Sequence[Move], displaced: Displaced) -> tuple[Move, ...]:
    return change_launches(program, lambda launch: replace(launch, displaced_ns=displaced(launch.kind, launch.bytes)))


def _labels_and_launches(
    run: Run, trace: Trace, rows: pd.DataFrame, offset: int, computing: ComputeTimes
) -> tuple[list[Label], list[Launched]]:
    """The labels in its steps, and the launches with their times by its own clock (the run's + `offset`), in order."""
    windows = step_windows(trace)
    begin, end = windows[0].start_ns, windows[-1].end_ns
    others = (label for label in (*engine_labels(trace), *bucket_labels(trace)) if label.word not in PASSES)
    passes = pass_labels(trace) or update_labels(trace)
    ranges = sorted((*passes, *others, *fsdp2_ranges(trace), *host_work(trace)), key=lambda label: label.start_ns)
    labels = [label for label in ranges if begin <= label.start_ns < end]
    rows = rows.assign(**{name: rows[name] + offset for name in ("launch_ns", "end_ns", "ended_ns")})
    rows = rows[(begin <= rows["launch_ns"]) & (rows["launch_ns"] < end)].sort_values("launch_ns", kind="stable")
    hidden = run.manifest is not None and run.manifest.hides_host
    roles = enumerate(purposes(trace)["role"])
    moved = {row: str(role) for row, role in roles if role in (Role.PARAMETERS, Role.ACTIVATIONS)}
    for what in (BUFFERS, LOOP_GRADIENTS):
        moved |= dict.fromkeys(np.flatnonzero(purposes(trace)["what"] == what).tolist(), what)

    def worked_ns(start_ns: int, end_ns: int) -> int:
        return sum(work.ns - work.paused_ns for work in _works(start_ns, end_ns, *computing))

    return labels, list(find_launched(rows, labels, moved, worked_ns, hidden=hidden))


def _compute_times(trace: Trace) -> ComputeTimes:
    pause_ns = _PAUSE_SHARE * np.median([window.end_ns - window.start_ns for window in step_windows(trace)])
    return cast(tuple[list[int], list[int]], tuple(activity(trace).compute.T.tolist())), int(pause_ns)


def _moves(
    trace: Trace, labels: Sequence[Label], launches: Sequence[Launched], zero: int, computing: ComputeTimes
) -> Iterator[Move]:
    """One rank's program, from `zero` on: when the earliest rank's first step begins, by this rank's own clock."""
    windows, compute = step_windows(trace), activity(trace).compute
    ended = {launched.launch.key: launched.ended_ns for launched in launches}
    # The number orders what is at one time: ends of steps, launches, marks, waits.
    points: list[tuple[int, int, Move | Blocked]] = [(launched.at_ns, 1, launched.launch) for launched in launches]
    points += [(at, 2, mark) for at, mark in _marks(labels)]
    waits = find_fsdp2_waits(trace, launches, compute) if fsdp2_ranges(trace) else find_waits(labels, launches, compute)
    points += [(wait.start_ns, 3, wait) for wait in waits]
    points += [(at, 0, End()) for at in (*(window.start_ns for window in windows), windows[-1].end_ns)]
    now = zero
    for at, _, point in sorted(points, key=lambda point: point[:2]):
        if at > now:
            yield from _works(now, at, *computing)
            now = at
        if isinstance(point, Blocked):
            keys = sorted(point.keys, key=lambda key: ended[key])
            last_end = ended[keys[-1]] if keys else now
            had_to_wait = last_end > now
            wake_ns = max(point.end_ns - last_end, 0) if had_to_wait else 0
            yield from (Wait(key) for key in keys[:-1])
            yield from (Wait(key, wake_ns) for key in keys[-1:])
            if had_to_wait:  # else the range's time is work
                now = max(now, point.end_ns)
        else:
            yield point


def _works(start_ns: int, end_ns: int, starts_and_ends: tuple[list[int], list[int]], pause_ns: int) -> Iterator[Work]:
    """The time between two points; longer gaps in the computation are works of their own, in their place."""
    starts, ends = starts_and_ends
    begun, idle_ns, paused_ns = start_ns, 0, 0  # of the time since the last cut
    place, at = bisect_right(ends, start_ns), start_ns
    while at < end_ns:
        gap_end = min(starts[place], end_ns) if place < len(starts) else end_ns
        gap_ns = max(gap_end - at, 0)
        gap_paused_ns = gap_ns if gap_ns > pause_ns else 0
        if gap_ns > _GAP_NS:
            if at > begun:
                yield Work(at - begun, paused_ns, idle_ns)
            yield Work(gap_ns, gap_paused_ns, gap_ns)
            begun, idle_ns, paused_ns = gap_end, 0, 0
        else:
            idle_ns, paused_ns = idle_ns + gap_ns, paused_ns + gap_paused_ns
        at = ends[place] if place < len(ends) else end_ns
        place += 1
    if end_ns > begun:
        yield Work(end_ns - begun, paused_ns, idle_ns)


def _gradients(run: Run, trace: Trace, launches: Sequence[Launched]) -> Iterator[tuple[str, tuple[int, int]]]:
    """The bytes of each gradient, alone and with its share of what its bucket sends beside gradients."""
    named = run.manifest.parameters if run.manifest else ()
    elements = {parameter.name: prod(parameter.shape) for parameter in named} or ddp_gradients(trace)
    elements = elements | hand_gradients(trace)  # a new one: what is known of a trace is not to be changed
    for launch in (launched.launch for launched in launches):
        names, size = launch.parameters, launch.gradient_bytes
        if not names or any(name not in elements for name in names):
            continue
        beside = max(launch.bytes - size, 0) // len(names)
        for name, alone in zip(names, share_bytes(size, [elements[name] for name in names]), strict=True):
            yield name, (alone, alone + beside)


def _marks(labels: Sequence[Label]) -> Iterator[tuple[int, Mark]]:
    """Borders of passes, units and updates, and gradients; `kept_…` in passes that do not send theirs."""
    passes = Ordered((label for label in labels if label.word == "backward"), lambda label: label.word)
    ready = [label.start_ns for label in labels if label.word == "bucket_ready" and label.fields["parameters"]]

    def sends(backward: Label) -> bool:
        is_in_it = bisect_left(ready, backward.start_ns) < bisect_right(ready, backward.end_ns)
        return backward.fields["sync"] == "1" and (is_in_it or not ready)

    for label in labels:
        match label.word:
            case "gradient_ready":
                backward = passes.range_around("backward", label.start_ns)
                if backward is not None and label.start_ns < backward.end_ns:
                    word = "gradient" if sends(backward) else "kept_gradient"
                    yield from ((label.start_ns, Mark(word, name)) for name in label_list(label.fields["parameter"]))
            case "first_use" | "last_use":
                yield label.start_ns, Mark(label.word.replace("first_", ""), collective_name(label))
            case "forward":
                yield label.start_ns, Mark("forward", collective_name(label))
                yield label.end_ns, Mark("forward_end")
            case "backward":
                yield label.start_ns, Mark("backward", collective_name(label))
                yield label.end_ns, Mark("backward_end" if sends(label) else "kept_end")
            case "optimizer" | "update" | "host":
                name = label.fields.get("unit", label.fields.get("name", ""))
                yield label.start_ns, Mark(label.word, name)
                yield label.end_ns, Mark(f"{label.word}_end", name)
