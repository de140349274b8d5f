"""What the host launched and where it waited, in a recorded run on a CPU."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from math import inf
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from msgspec import Struct

from overlaplab.events import Trace
from overlaplab.evidence.executions import executions
from overlaplab.evidence.fsdp2 import fsdp2_gathers, fsdp2_ranges
from overlaplab.evidence.labels import Label, Span
from overlaplab.evidence.moments import GRAIN_NS, STALL_NS
from overlaplab.evidence.purposes import LOOP_GRADIENTS
from overlaplab.intervals import Intervals, clip, subtract
from overlaplab.simulate.player import Launch
from overlaplab.vocabulary import DONE_WORDS, LAUNCH_WORDS, WAIT_WORDS, label_list

_WAIT_ROLE = {"wait": None} | {word: role for role, word in WAIT_WORDS.items()}
_DONE_ROLE = {word: role for role, word in DONE_WORDS.items()}
_WAIT_PER_STALL = 4
"""A rank that waited for long may go on late after the collective's end: by its wait divided by this."""
_IN_TURN = ("activations", "replicas")
"""Roles whose collectives are waited for in the order of their launches, each alone, while no label names them."""


_LAUNCH_ROLE = {word: role for role, word in LAUNCH_WORDS.items()}
_LAUNCH_ROLE |= {"all_gather": "gather", "post_backward_reduce": "scatter"}
_CARRIES = {"reduce_scatter": LOOP_GRADIENTS}
"""What collectives without a label or another sign move, by kind."""
Row: TypeAlias = dict[Hashable, Any]


class Launched(Struct, frozen=True, kw_only=True):
    """A launch, and when its collective had ended."""

    at_ns: int
    ended_ns: int
    """On all ranks."""
    own_ended_ns: int
    """On this rank."""
    blocks: bool
    """Whether the host waits for it in the range in which it launches it, as FSDP2 does."""
    launch: Launch


class Blocked(Struct):
    """A range in which the main thread waited for collectives."""

    start_ns: int
    end_ns: int
    keys: list[Hashable] = []
    alone: bool = False
    """Whether it is known to be for its one collective alone, so that no others are looked for."""


def collective_name(label: Label) -> str:
    """What a launch, a wait and an instant at the end of the same collective have in common."""
    keys = ("bucket", "unit", "module", "microbatch", "phase")
    return " ".join(label.fields[key] for key in keys if key in label.fields)


def find_launched(
    rows: pd.DataFrame,
    labels: Sequence[Label],
    carried: Mapping[int, str],
    worked_ns: Callable[[int, int], int],
    *,
    hidden: bool,
) -> Iterator[Launched]:
    """The launches, in the order of rows.

    `carried`: what collectives without a label move, by row; `worked_ns`: how long the host worked between two times,
    its pauses left out; `hidden`: launching made no step longer.
    """
    senders: list[Label] = []
    buckets: list[dict[str, str]] = []  # by sender, of the bucket that was ready last under its index
    ready: dict[str, dict[str, str]] = {}
    for label in labels:
        if label.word == "bucket_ready":
            ready[label.fields["bucket"]] = label.fields
        elif label.word in _LAUNCH_ROLE:
            senders.append(label)
            buckets.append(ready.get(label.fields["bucket"], {}) if label.word == "bucket_launch" else {})
    starts = [label.start_ns for label in senders]
    sent: list[tuple[Row, int, Label | None]] = []
    for row in rows.to_dict("records"):
        place = bisect_right(starts, row["launch_ns"]) - 1
        sent.append((row, place, senders[place] if place >= 0 and row["launch_ns"] <= senders[place].end_ns else None))
    blocking = _blocking_words(labels, sent)
    over_ns: dict[int, int] = {}  # when what a range launched before, and waited for, was over
    for row, place, sender in sent:
        role = _LAUNCH_ROLE[sender.word] if sender else ""
        if role == "scatter" and row["kind"] == "all_reduce":  # FSDP2 launches both in one range
            role = "replicas"
        bucket, blocks = buckets[place] if sender else {}, bool(sender and sender.word in blocking)
        host_until_ns = row["launch_ns"] if blocks else sender.end_ns if sender else 0
        host_from_ns = over_ns.get(place, sender.start_ns) if sender else 0
        if blocks:
            over_ns[place] = row["end_ns"]
        launch = Launch(
            row["match"],
            row["transfer_ns"],
            row["kind"],
            max(row["bytes"], 0),
            role=role,
            what=collective_name(sender) if sender else None,
            host_ns=worked_ns(host_from_ns, host_until_ns) if sender and not hidden else 0,
            parameters=label_list(bucket.get("parameters", "")),
            gradient_bytes=int(bucket.get("bytes", 0)),
            hops=row["hops"],
            group=row["members"],
            lane=row["lane"],
            carries="" if sender else carried.get(row.get("row", -1), _CARRIES.get(row["kind"], "")),
            queues=row["queues"],
        )
        at_ns, ended_ns, own_ended_ns = (row[name] for name in ("launch_ns", "ended_ns", "end_ns"))
        yield Launched(at_ns=at_ns, ended_ns=ended_ns, own_ended_ns=own_ended_ns, blocks=blocks, launch=launch)


def _blocking_words(labels: Sequence[Label], sent: Sequence[tuple[Row, int, Label | None]]) -> set[str]:
    """In which ranges the host waits for what it launches: those within which all their collectives end.

    FSDP2's gathers do on CPUs, unless they are asynchronous, and DDP's communication hooks that wait. FSDP2's
    reductions always do. The engine's waits for buckets have labels of their own.
    """
    words = {sender.word for _, _, sender in sent if sender} & {"all_gather", "bucket_launch"}
    words -= {sender.word for row, _, sender in sent if sender and row["end_ns"] > sender.end_ns}
    if any(label.word == "bucket_done" for label in labels):
        words.discard("bucket_launch")
    return words | {"post_backward_reduce"}


_at_ns, _ended_ns = attrgetter("at_ns"), attrgetter("ended_ns")


def find_waits(labels: Sequence[Label], launches: Sequence[Launched], compute: Intervals) -> list[Blocked]:
    """Where the main thread waited, and for which collectives."""
    flying: dict[tuple[str, str], Launched] = {}
    unnamed: list[Launched] = []
    missing: list[Launched] = []  # done, and no label says where they were waited for
    waits: list[Blocked] = []
    general_waits: list[Blocked] = []  # those by `engine::wait`
    pending = deque(launches)

    def launch_until(at_ns: float) -> None:
        while pending and pending[0].at_ns < at_ns:
            launched = pending.popleft()
            launch = launched.launch
            if launched.blocks:
                waits.append(Blocked(launched.at_ns, launched.own_ended_ns, [launch.key]))
            elif launch.what is None or launch.role in _IN_TURN or launch.lane is not None:
                unnamed.append(launched)
            else:
                earlier = flying.get((launch.role, launch.what))
                if earlier is not None and launch.role == "bucket":
                    missing.append(earlier)  # DDP's, which the Recorder does not label as done
                flying[launch.role, launch.what] = launched

    for label in labels:
        launch_until(label.start_ns)
        if label.word in _WAIT_ROLE:
            wait = Blocked(label.start_ns, label.end_ns)
            waits.append(wait)
            if label.word == "wait":
                general_waits.append(wait)
            elif (gather := flying.pop((str(_WAIT_ROLE[label.word]), collective_name(label)), None)) is not None:
                wait.keys.append(gather.launch.key)
        elif label.word in _DONE_ROLE and (done := flying.pop((_DONE_ROLE[label.word], collective_name(label)), None)):
            if general_waits and general_waits[-1].start_ns >= done.at_ns:
                general_waits[-1].keys.append(done.launch.key)
                general_waits[-1].alone = label.start_ns >= general_waits[-1].end_ns
            else:
                missing.append(done)
    launch_until(inf)
    missing += (launched for (role, _), launched in flying.items() if role == "bucket")
    _name_general_waits(general_waits, unnamed)
    if all(label.fields.get("by") == "hand" for label in labels if label.word == "wait"):  # a loop that labels no waits
        waits += _while_nothing_computes(unnamed, [launched.at_ns for launched in launches], compute)
    by_end = sorted(launches, key=_ended_ns)
    for wait in waits:
        if not wait.keys:  # one that no label explains, as in a hook, was for what was launched before and ended in it
            first, last = (bisect_right(by_end, ns, key=_ended_ns) for ns in (wait.start_ns, wait.end_ns + GRAIN_NS))
            ended = sorted(by_end[first:last], key=_at_ns)
            wait.keys += [launched.launch.key for launched in ended if launched.at_ns < wait.start_ns]
    missing.sort(key=_at_ns)
    for label in labels:
        if label.word == "backward" and label.fields["sync"] == "1":
            first, last = (bisect_left(missing, ns, key=_at_ns) for ns in (label.start_ns, label.end_ns))
            waits += _waits_at_pass_end(label, missing[first:last], compute) if first < last else ()
    return waits


def _name_general_waits(general_waits: Sequence[Blocked], unnamed: Sequence[Launched]) -> None:
    """Add to each `engine::wait` the launches that it was for: by role in their order, else by when they ended."""
    free = deque(wait for wait in general_waits if not wait.alone and not wait.keys)
    over_by = np.maximum.accumulate([wait.end_ns for wait in general_waits] or [0]).tolist()
    for launched in unnamed:
        if launched.launch.role in _IN_TURN:
            while free and free[0].start_ns < launched.at_ns:
                free.popleft()
            if free:
                free[0].alone = True
                free.popleft().keys.append(launched.launch.key)
        elif (wait := _find_wait(launched, general_waits, bisect_right(over_by, launched.at_ns))) is not None:
            wait.keys.append(launched.launch.key)
            wait.start_ns = max(wait.start_ns, launched.at_ns)  # it may be launched within the range


def _find_wait(launched: Launched, general_waits: Sequence[Blocked], first: int) -> Blocked | None:
    """The wait from place `first` on in which it ended; else the first that ends later, or up to `STALL_NS` earlier."""
    near: Blocked | None = None
    for place in range(first, len(general_waits)):
        wait = general_waits[place]
        if near is not None and wait.start_ns >= launched.own_ended_ns:
            break
        if wait.alone or wait.end_ns <= launched.at_ns:
            continue
        if wait.start_ns < launched.own_ended_ns <= wait.end_ns + GRAIN_NS:
            return wait
        if near is None and launched.own_ended_ns <= wait.end_ns + STALL_NS:
            near = wait
    return near


def _while_nothing_computes(
    unnamed: Sequence[Launched], launches_ns: Sequence[int], compute: Intervals
) -> Iterator[Blocked]:
    """A wait for each collective at whose end the rank computed nothing, if it computed or launched soon after."""
    starts, ends = compute[:, 0], compute[:, 1]
    for launched in unnamed:
        place = int(np.searchsorted(starts, launched.own_ended_ns))
        following = bisect_left(launches_ns, launched.own_ended_ns)
        since_ns = max(int(ends[place - 1]) if place else launched.at_ns, launches_ns[following - 1])
        until_ns = int(starts[place]) if place < len(starts) else launched.own_ended_ns
        until_ns = min([until_ns, *launches_ns[following : following + 1]])
        stalls_ns = max(STALL_NS, (launched.own_ended_ns - since_ns) // _WAIT_PER_STALL)
        if since_ns < launched.own_ended_ns and until_ns <= launched.own_ended_ns + stalls_ns:
            yield Blocked(since_ns, until_ns, [launched.launch.key])


def _waits_at_pass_end(backward: Label, inside: Sequence[Launched], compute: Intervals) -> Iterator[Blocked]:
    """DDP waits for its buckets in turn at the end of the backward pass, inside it, and may copy each."""
    begun_ns = max(launched.at_ns for launched in inside)
    last_ns = min(max(max(launched.ended_ns, launched.own_ended_ns) for launched in inside), backward.end_ns)
    pending = deque(sorted(inside, key=lambda launched: launched.own_ended_ns))
    last = max(begun_ns, last_ns)
    whole = np.array([[begun_ns, last]], dtype=np.int64)
    for start, end in subtract(whole, clip(compute, begun_ns, last)).tolist():
        wait = Blocked(start, end)
        while pending and pending[0].own_ended_ns - GRAIN_NS <= end:
            wait.keys.append(pending.popleft().launch.key)
        if wait.keys:
            yield wait
    if pending:
        yield Blocked(last_ns, last_ns, [launched.launch.key for launched in pending])


def find_fsdp2_waits(trace: Trace, launches: Sequence[Launched], compute: Intervals) -> Iterator[Blocked]:
    """Where FSDP2 waited: in turn where it launches what blocks, else for a gather before it copies it out; and where
    nothing computed until what the loop launched beside it had ended.
    """
    ranges, moments = fsdp2_ranges(trace), [launched.at_ns for launched in launches]

    def launched_in(span: Span) -> Sequence[Launched]:
        return launches[bisect_left(moments, span.start_ns) : bisect_left(moments, span.end_ns)]

    for gather in fsdp2_gathers(ranges, executions(trace)):
        for launched in launched_in(gather.launch) if gather.blocked else ():
            start_ns = launched.at_ns if launched.blocks else gather.blocked[-1].start_ns
            yield _wait_until_copied(launched, start_ns, gather.blocked[-1].end_ns, compute)
    for label in ranges:
        if label.word != "post_backward_reduce":
            continue
        inside = launched_in(label)  # after the last whole step nothing
        for launched, end_ns in zip(inside, [*(other.at_ns for other in inside[1:]), label.end_ns], strict=False):
            yield _wait_until_copied(launched, launched.at_ns, end_ns, compute)
    yield from _while_nothing_computes([each for each in launches if not each.launch.role], moments, compute)


def _wait_until_copied(launched: Launched, start_ns: int, end_ns: int, compute: Intervals) -> Blocked:
    """The wait from `start_ns` until the host copies what has come, at the latest until `end_ns`."""
    copying = clip(compute, max(start_ns, min(launched.ended_ns, end_ns)), end_ns)
    return Blocked(start_ns, int(copying[0, 0]) if len(copying) else end_ns, [launched.launch.key])
