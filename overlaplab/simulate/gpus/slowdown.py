"""How long kernels of a run on GPUs take once they run beside more, or less, communication than was recorded.

Each kernel's own slowdown counts, as measured within the run (`analyses.slowdowns`): beside communication it gets on
1 ÷ (1 + slowdown) as fast as alone. Kernels that did not run both ways, or not slower, keep what they took.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from overlaplab.analyses.slowdown import slowdowns
from overlaplab.events import Run, Trace, classify, once_per_run
from overlaplab.events import WorkKind as Counts
from overlaplab.evidence.dependencies import device_events
from overlaplab.intervals import Intervals, clip, total, union
from overlaplab.simulate.gpus.streams import DevicePrograms, device_programs, noted_times
from overlaplab.simulate.player import Move, Note, Played, Work, play

_MAX_ROUNDS = 20
"""Rounds of playing and adjusting: what a kernel takes changes what it runs beside."""


def with_slowdowns(run: Run, edited: DevicePrograms) -> DevicePrograms:
    """Edited programs, with every kernel as long as beside what it runs then. Raises `StuckError`."""
    if edited is device_programs(run) or not any(kernels := _slowed_kernels(run)):
        return edited
    took_ns = [{place: kernel.took_ns for place, kernel in rank_kernels.items()} for rank_kernels in kernels]
    for _ in range(_MAX_ROUNDS):
        played = play(edited.programs)
        played_ns = [_times_beside(_Device(run, edited, played, rank), each) for rank, each in enumerate(kernels)]
        if played_ns == took_ns:
            break
        took_ns = played_ns
        edited = _with_kernel_times(edited, took_ns)
    return edited


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernel:
    """A kernel that communication slows down."""

    factor: float
    """How many times as long it takes beside communication."""
    took_ns: int
    alone_ns: float
    """What it would take alone."""


@once_per_run
def _slowed_kernels(run: Run) -> tuple[dict[int, _Kernel], ...]:
    """The kernels of each rank, by place."""
    table, programs = slowdowns(run), device_programs(run)
    factors = {name: 1 + slow for name, slow in zip(table["name"], table["slowdown"], strict=True) if slow > 0}
    if programs is None or not factors:
        return ()
    recorded = play(programs.programs)
    ran = [_Device(run, programs, recorded, rank) for rank in range(len(run.traces))]
    return tuple(dict(_kernels(*each, factors)) for each in zip(run.traces, ran, strict=True))


def _kernels(trace: Trace, device: _Device, factors: Mapping[str, float]) -> Iterator[tuple[int, _Kernel]]:
    names, works = trace.events["name"].tolist(), classify(trace)
    for place, event in enumerate(device_events(trace)):
        if works[event.row] is Counts.COMPUTE and names[event.row] in factors:
            factor = factors[names[event.row]]
            took = device.noted["done", place] - device.noted["begun", place]
            beside = device.beside_ns(place)
            yield place, _Kernel(factor=factor, took_ns=took, alone_ns=took - beside + beside / factor)


class _Device:
    """When one rank's device worked and communicated."""

    def __init__(self, run: Run, programs: DevicePrograms, played: Played, rank: int) -> None:
        self.noted = noted_times(programs, played, rank)
        events = device_events(run.traces[rank])
        begun = (place for word, place in self.noted if word == "begun")
        communicates = [place for place in begun if place >= len(events) or events[place].communicates]
        begins, ends = ([self.noted[word, place] for place in communicates] for word in ("begun", "done"))
        self.busy: Intervals = union(begins, ends)

    def beside_ns(self, place: int) -> int:
        """How long an event ran beside communication."""
        return total(clip(self.busy, self.noted["begun", place], self.noted["done", place]))


def _times_beside(device: _Device, kernels: Mapping[int, _Kernel]) -> dict[int, int]:
    """By place what a kernel takes beside what the device communicates then."""
    starts, ends = device.busy[:, 0].tolist(), device.busy[:, 1].tolist()
    return {
        place: round(_duration_beside(device.noted["begun", place], kernel.alone_ns, kernel.factor, starts, ends))
        for place, kernel in kernels.items()
    }


def _duration_beside(start_ns: int, alone_ns: float, factor: float, starts: list[int], ends: list[int]) -> float:
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


def _with_kernel_times(programs: DevicePrograms, took_ns: Sequence[Mapping[int, int]]) -> DevicePrograms:
    """With kernels that take so long."""

    def change(program: Sequence[Move]) -> list[Move]:
        moves: list[Move] = []
        for move in program:
            last = moves[-1] if moves else None
            if isinstance(move, Work) and isinstance(last, Note) and isinstance(last.key, tuple):
                rank, word, place = last.key
                if word == "begun" and place in took_ns[rank]:
                    move = Work(took_ns[rank][place])
            moves.append(move)
        return moves

    return replace(programs, programs=tuple(map(change, programs.programs)))
