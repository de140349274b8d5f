"""A recorded run as programs, one per rank: what each did between its launches and waits, and how long.

From the engine's labels on a CPU. Work is the main thread's time without what it was blocked for communication, so idle
time, overhead and pauses stay in it. T is what each collective really occupied the link for. So the programs, played
as they are, give the recorded steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import pandas as pd

from overlaplab.events import Run, Trace, activity, once_per_run, rule_of, step_windows
from overlaplab.evidence.clocks import corrections
from overlaplab.evidence.labels import Label, fsdp2_ranges_of, labels_of
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.evidence.waits import numbered
from overlaplab.intervals import Intervals, clip, subtract
from overlaplab.simulate.player import End, Launch, Mark, Move, Wait, Work
from overlaplab.vocabulary import Rule, label_list

__all__ = ["Recorded", "recorded_programs"]

_ROLES = {
    "bucket_launch": "bucket",
    "scatter_launch": "scatter",
    "gather_launch": "gather",
    "param_gather_launch": "parameters",
}
_WAITS = {"wait": None, "gather_wait": "gather", "param_gather_wait": "parameters"}
_DONE = {"bucket_done": "bucket", "scatter_done": "scatter"}
_PAUSE = 0.01
"""Of a step: where the rank computes nothing for longer at a stretch, and waits for nothing, the host pauses."""
_MOST_RANKS = 64
"""Runs of more ranks are not played: their tables would all have to be in one process."""
_GRAIN_NS = 20_000
"""A wait may seem to end so much before what it waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The programs of a run's recorded steps."""

    programs: tuple[tuple[Move, ...], ...]
    """One per trace, over all its steps."""
    gradients: dict[str, tuple[int, int]]
    """Bytes of each gradient sent in a bucket, by the parameter's name: its own, and with what is sent beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launched:
    """A launch, and when the collective had ended on all ranks."""

    at_ns: int
    ended_ns: int
    launch: Launch


@dataclass(slots=True)
class _Blocked:
    """A range in which the main thread waited for collectives."""

    start_ns: int
    end_ns: int
    keys: list[Hashable] = field(default_factory=list)


@once_per_run
def recorded_programs(run: Run) -> Recorded | None:
    """The programs; None where the traces do not tell them: on a GPU, without the engine's labels or some ranks."""
    if not 0 < len(run.traces) <= _MOST_RANKS or any(rule_of(trace) is not Rule.CPU for trace in run.traces):
        return None
    rows = numbered(run)
    rows = rows[rows["start_ns"] != UNKNOWN_NS]
    if not len(rows) or (rows["last_ns"] == UNKNOWN_NS).any() or (rows["launch_ns"] == UNKNOWN_NS).any():
        return None
    if not all(any(label.word == "forward" for label in labels_of(trace)) for trace in run.traces):
        return None
    if any(fsdp2_ranges_of(trace) for trace in run.traces):
        return None
    if len({len(step_windows(trace)) for trace in run.traces}) != 1:
        return None
    rows = _timed(rows)
    if not _in_order(rows):
        return None
    zero = min(
        step_windows(trace)[0].start_ns - int(offset)
        for trace, offset in zip(run.traces, corrections(run), strict=True)
    )
    gradients: dict[str, tuple[int, int]] = {}
    programs: list[tuple[Move, ...]] = []
    for place, trace in enumerate(run.traces):
        labels, launches = _of_trace(trace, rows[rows["trace"] == place], int(corrections(run)[place]))
        programs.append(tuple(_moves(trace, labels, launches, int(corrections(run)[place]) + zero)))
        gradients |= dict(_gradients(run, labels, launches))
    return Recorded(programs=tuple(programs), gradients=gradients)


def _timed(rows: pd.DataFrame) -> pd.DataFrame:
    """With `ended_ns`, when the collective had ended on all ranks, and `transfer_ns`, how long it took on the link."""
    by = rows.groupby("match")
    rows = rows.assign(ended_ns=by["end_ns"].transform("max"), asked_ns=by["launch_ns"].transform("max"))
    once = rows.drop_duplicates("match").sort_values("ended_ns", kind="stable")
    free_ns = once["ended_ns"].shift(fill_value=UNKNOWN_NS)
    took = once["ended_ns"] - np.maximum(once["asked_ns"], free_ns)
    return rows.assign(transfer_ns=rows["match"].map(dict(zip(once["match"], took, strict=True))))


def _in_order(rows: pd.DataFrame) -> bool:
    """Whether collectives ended in the order of their launches on every rank, as on a link that takes one at a time."""
    launched = rows.sort_values(["trace", "launch_ns"], kind="stable")
    return bool((launched.groupby("trace")["ended_ns"].diff().fillna(0) >= 0).all())


def _of_trace(trace: Trace, rows: pd.DataFrame, offset: int) -> tuple[list[Label], list[_Launched]]:
    """The labels in its steps, and the launches with their times by its own clock, both in order."""
    windows = step_windows(trace)
    begin, end = windows[0].start_ns, windows[-1].end_ns
    labels = [label for label in labels_of(trace) if begin <= label.start_ns < end]
    rows = rows.assign(launch_ns=rows["launch_ns"] + offset, ended_ns=rows["ended_ns"] + offset)
    rows = rows[(begin <= rows["launch_ns"]) & (rows["launch_ns"] < end)].sort_values("launch_ns", kind="stable")
    return labels, list(_launches(rows, labels))


def _moves(trace: Trace, labels: Sequence[Label], launches: Sequence[_Launched], zero: int) -> Iterator[Move]:
    """One rank's program; `zero` is its start, by the rank's own clock."""
    windows, compute = step_windows(trace), activity(trace).compute
    pause_ns = int(_PAUSE * np.median([window.end_ns - window.start_ns for window in windows]))
    ended = {own.launch.key: own.ended_ns for own in launches}
    points: list[tuple[int, int, Move | _Blocked]] = [(own.at_ns, 1, own.launch) for own in launches]
    points += [(at, 2, mark) for at, mark in _marks(labels)]
    points += [(wait.start_ns, 3, wait) for wait in _blocked(labels, launches, compute)]
    points += [(at, 0, End()) for at in (*(window.start_ns for window in windows), windows[-1].end_ns)]
    now = zero
    for at, _, point in sorted(points, key=lambda point: point[:2]):
        if at > now:
            idle = np.diff(subtract(np.array([[now, at]], dtype=np.int64), clip(compute, now, at)))
            yield Work(at - now, int(idle[idle > pause_ns].sum()))
            now = at
        if isinstance(point, _Blocked):
            keys = sorted(point.keys, key=lambda key: ended[key])
            until = ended[keys[-1]] if keys else now
            wake_ns = max(point.end_ns - until, 0) if until > now else 0
            yield from (Wait(key) for key in keys[:-1])
            yield from (Wait(key, wake_ns) for key in keys[-1:])
            if until > now:
                now = max(now, point.end_ns)
        else:
            yield point


def _launches(rows: pd.DataFrame, labels: Sequence[Label]) -> Iterator[_Launched]:
    senders = [label for label in labels if label.word in _ROLES]
    starts = [label.start_ns for label in senders]
    for row in rows.to_dict("records"):
        place = int(np.searchsorted(starts, row["launch_ns"], side="right")) - 1
        own = senders[place] if place >= 0 and row["launch_ns"] <= senders[place].end_ns else None
        launch = Launch(
            row["match"],
            row["transfer_ns"],
            row["kind"],
            max(row["bytes"], 0),
            role=_ROLES[own.word] if own else "",
            what=_name(own) if own else None,
            host_ns=own.end_ns - own.start_ns if own else 0,
        )
        yield _Launched(at_ns=row["launch_ns"], ended_ns=row["ended_ns"], launch=launch)


def _name(label: Label) -> str:
    """What a launch, a wait and an instant at the end of the same collective have in common."""
    return " ".join(label.fields[key] for key in ("bucket", "unit", "microbatch", "phase") if key in label.fields)


def _gradients(
    run: Run, labels: Sequence[Label], launches: Sequence[_Launched]
) -> Iterator[tuple[str, tuple[int, int]]]:
    """The bytes of each gradient, alone and as it is sent in its bucket, with its flag."""
    elements = {parameter.name: prod(parameter.shape) for parameter in run.manifest.parameters} if run.manifest else {}
    sent = {own.launch.what: own.launch.bytes for own in launches if own.launch.role == "bucket"}
    for label in labels:
        names = label_list(label.fields["parameters"]) if label.word == "bucket_ready" else []
        whole = sent.get(label.fields.get("bucket", ""))
        if whole is None or not names or any(name not in elements for name in names):
            continue
        size = int(label.fields["bytes"])
        flag = max(whole - size, 0) // len(names)
        for name in names:
            own = size * elements[name] // max(sum(elements[other] for other in names), 1)
            yield name, (own, own + flag)


def _marks(labels: Sequence[Label]) -> Iterator[tuple[int, Mark]]:
    sends = [label for label in labels if label.word == "backward" and label.fields["sync"] == "1"]
    for label in labels:
        if label.word == "gradient_ready":
            if any(own.start_ns <= label.start_ns < own.end_ns for own in sends):
                for name in label_list(label.fields["parameter"]):
                    yield label.start_ns, Mark("gradient", name)
        elif label.word == "first_use":
            yield label.start_ns, Mark("use", _name(label))
        elif label in sends:
            yield label.end_ns, Mark("backward_end")


def _blocked(labels: Sequence[Label], launches: Sequence[_Launched], compute: Intervals) -> list[_Blocked]:
    """Where the main thread waited, and for which collectives."""
    flying: dict[tuple[str, str], _Launched] = {}
    unnamed: list[_Launched] = []  # and not waited for yet
    missing: list[_Launched] = []  # done, and no label says where they were waited for
    waits: list[_Blocked] = []
    general: _Blocked | None = None  # the last `engine::wait`
    pending = deque(launches)
    for label in labels:
        while pending and pending[0].at_ns < label.start_ns:
            own = pending.popleft()
            if own.launch.what is None:
                unnamed.append(own)
            else:
                flying[own.launch.role, own.launch.what] = own
        if label.word in _WAITS:
            wait = _Blocked(label.start_ns, label.end_ns)
            waits.append(wait)
            if label.word == "wait":
                general = wait
                known = [own for own in unnamed if own.ended_ns - _GRAIN_NS <= label.end_ns]
                wait.keys += [own.launch.key for own in known]
                unnamed = [own for own in unnamed if own not in known]
            elif (asked := flying.pop((str(_WAITS[label.word]), _name(label)), None)) is not None:
                wait.keys.append(asked.launch.key)
        elif label.word in _DONE and (done := flying.pop((_DONE[label.word], _name(label)), None)) is not None:
            if general is not None and general.start_ns >= done.at_ns:
                general.keys.append(done.launch.key)
            else:
                missing.append(done)
    for wait in waits:  # of a hook, for instance, whose collective is only labelled as done at the end of the pass
        if not wait.keys:
            wait.keys += [
                own.launch.key
                for own in launches
                if own.at_ns < wait.start_ns < own.ended_ns <= wait.end_ns + _GRAIN_NS
            ]
    for label in labels:
        if label.word == "backward" and label.fields["sync"] == "1":
            inside = [own for own in missing if label.start_ns <= own.at_ns < label.end_ns]
            if inside:
                waits += _at_the_end(label, inside, compute)
    return waits


def _at_the_end(backward: Label, inside: Sequence[_Launched], compute: Intervals) -> Iterator[_Blocked]:
    """DDP waits for its buckets in turn at the end of the backward pass, inside it, and may copy each."""
    begun_ns = max(own.at_ns for own in inside)
    last_ns = min(max(own.ended_ns for own in inside), backward.end_ns)
    pending = deque(sorted(inside, key=lambda own: own.ended_ns))
    for start, end in subtract(np.array([[begun_ns, max(begun_ns, last_ns)]], dtype=np.int64), compute).tolist():
        wait = _Blocked(start, end)
        while pending and pending[0].ended_ns - _GRAIN_NS <= end:
            wait.keys.append(pending.popleft().launch.key)
        if wait.keys:
            yield wait
    if pending:
        yield _Blocked(last_ns, last_ns, [own.launch.key for own in pending])
