"""How long kernels of a run on GPUs take once they run beside more, or less, communication than was recorded.

Each kernel's own slowdown counts, as measured within the run (`analyses.slowdowns`): beside communication it gets on
1 ÷ (1 + slowdown) as fast as alone. Kernels that did not run both ways, or not slower, keep what they took.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from overlaplab.analyses.slowdown import slowdowns
from overlaplab.events import Run, classify
from overlaplab.events import Work as Counts
from overlaplab.evidence.dependencies import device_events
from overlaplab.intervals import Intervals, clip, total, union
from overlaplab.simulate.gpus.streams import DevicePrograms, noted_times
from overlaplab.simulate.player import Move, Note, Played, Work, play

__all__ = ["slowed"]

_MOST = 20
"""Rounds of playing and adjusting: what a kernel takes changes what it runs beside."""


def slowed(run: Run, before: DevicePrograms, after: DevicePrograms) -> DevicePrograms:
    """Programs made from those `before`, with every kernel as long as beside what it runs then.

    Raises `StuckError` where they cannot be played.
    """
    table = slowdowns(run)
    factors = {name: 1 + slow for name, slow in zip(table["name"], table["slowdown"], strict=True) if slow > 0}
    kernels = [_kernels(run, rank, factors) for rank in range(len(run.traces))]
    if not any(kernels) or after is before:
        return after
    recorded = play(before.programs)
    alone_ns = [_alone(_Device(run, before, recorded, rank), own) for rank, own in enumerate(kernels)]
    took_ns = [{place: took for place, (took, _) in own.items()} for own in alone_ns]
    for _ in range(_MOST):
        played = play(after.programs)
        found = [
            _beside(_Device(run, after, played, rank), kernels[rank], alone_ns[rank]) for rank in range(len(kernels))
        ]
        if found == took_ns:
            break
        took_ns = found
        after = _taking(after, took_ns)
    return after


class _Device:
    """When one rank's device worked and communicated."""

    def __init__(self, run: Run, programs: DevicePrograms, played: Played, rank: int) -> None:
        self.noted = noted_times(programs, played, rank)
        events = device_events(run.traces[rank])
        communicates = [
            (at_ns, self.noted["done", place])
            for (word, place), at_ns in self.noted.items()
            if word == "begun" and (place >= len(events) or events[place].communicates)
        ]
        self.busy: Intervals = union(*(np.array(each, np.int64) for each in zip(*communicates, strict=True)))

    def beside_ns(self, place: int) -> int:
        """How long an event ran beside communication."""
        return total(clip(self.busy, self.noted["begun", place], self.noted["done", place]))


def _kernels(run: Run, rank: int, factors: Mapping[str, float]) -> dict[int, float]:
    """By place how many times as long each kernel takes beside communication."""
    trace = run.traces[rank]
    names, works = trace.events["name"], classify(trace)
    return {
        place: factors[name]
        for place, own in enumerate(device_events(trace))
        if works[own.row] is Counts.COMPUTE and (name := str(names.iloc[own.row])) in factors
    }


def _alone(device: _Device, kernels: Mapping[int, float]) -> dict[int, tuple[int, float]]:
    """By place what a kernel took, and what it would take alone."""
    found: dict[int, tuple[int, float]] = {}
    for place, factor in kernels.items():
        took, beside = device.noted["done", place] - device.noted["begun", place], device.beside_ns(place)
        found[place] = took, took - beside + beside / factor
    return found


def _beside(device: _Device, kernels: Mapping[int, float], alone_ns: Mapping[int, tuple[int, float]]) -> dict[int, int]:
    """By place what a kernel takes beside what the device communicates then."""
    starts, ends = device.busy[:, 0].tolist(), device.busy[:, 1].tolist()
    return {
        place: round(_lasting(device.noted["begun", place], alone_ns[place][1], factor, starts, ends))
        for place, factor in kernels.items()
    }


def _lasting(start_ns: int, alone_ns: float, factor: float, starts: Sequence[int], ends: Sequence[int]) -> float:
    """How long a kernel takes that begins then, beside communication from `starts` to `ends`."""
    now, left = float(start_ns), alone_ns
    for number in range(max(bisect_right(starts, start_ns) - 1, 0), len(starts)):
        free = max(starts[number] - now, 0.0)
        if left <= free:
            break
        left, now = left - free, now + free
        slow = max(ends[number] - now, 0.0)
        if left * factor <= slow:
            return now + left * factor - start_ns
        left, now = left - slow / factor, now + slow
    return now + left - start_ns


def _taking(programs: DevicePrograms, took_ns: Sequence[Mapping[int, int]]) -> DevicePrograms:
    """With kernels that take so long."""

    def changed(program: Sequence[Move]) -> list[Move]:
        moves: list[Move] = []
        for move in program:
            last = moves[-1] if moves else None
            if isinstance(move, Work) and isinstance(last, Note) and isinstance(last.key, tuple):
                rank, word, place = last.key
                if word == "begun" and place in took_ns[rank]:
                    move = Work(took_ns[rank][place])
            moves.append(move)
        return moves

    return replace(programs, programs=tuple(map(changed, programs.programs)))
