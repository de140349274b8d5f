"""How long kernels of a run on GPUs take once they run beside more, or less, communication than was recorded.

A kernel runs 1 + slowdown times as long beside communication as alone, by its own slowdown, as measured within the run
(`analyses.slowdowns`). One whose slowdown is not measured, or is not above 0, keeps its recorded time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from overlaplab.analyses.slowdown import slowdowns
from overlaplab.events import Run, Trace, WorkKind, classify, once_per_run
from overlaplab.evidence.dependencies import device_events
from overlaplab.intervals import Intervals, clip, total, union
from overlaplab.simulate.gpus.streams import DevicePrograms, NotePlaces, device_programs, note_places
from overlaplab.simulate.player import Played, Work, play

_MAX_ROUNDS = 20
"""Rounds of playing and adjusting: what a kernel takes changes what it runs beside."""


def with_slowdowns(run: Run, edited: DevicePrograms) -> DevicePrograms:
    """Edited programs, each kernel's time fitted to the communication that it runs beside then. Raises `StuckError`.

    Programs that were not edited return as they are.
    """
    if edited is device_programs(run) or not any(recorded := _slowed_kernels(run)):
        return edited
    notes = [note_places(edited, rank) for rank in range(len(run.traces))]  # in all rounds the same
    kernels = [
        {place: _edit_kernel(kernel, edited, *rank_notes["begun", place]) for place, kernel in rank_kernels.items()}
        for rank_kernels, rank_notes in zip(recorded, notes, strict=True)
    ]
    took_ns = [{place: kernel.took_ns for place, kernel in rank_kernels.items()} for rank_kernels in kernels]
    for _ in range(_MAX_ROUNDS):
        played = play(edited.programs)
        played_ns = [_times_beside(_Device(run, notes[rank], played, rank), each) for rank, each in enumerate(kernels)]
        if played_ns == took_ns:
            break
        took_ns = played_ns
        edited = _with_kernel_times(edited, notes, took_ns)
    return edited


class _Kernel(Struct, frozen=True, kw_only=True):
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
    slowed = table[table["slowdown"] > 0]
    factors = dict(zip(slowed["name"], 1 + slowed["slowdown"], strict=True))
    if programs is None or not factors:
        return ()
    recorded = play(programs.programs)
    ran = [_Device(run, note_places(programs, rank), recorded, rank) for rank in range(len(run.traces))]
    return tuple(dict(_kernels(*each, factors)) for each in zip(run.traces, ran, strict=True))


def _kernels(trace: Trace, device: _Device, factors: Mapping[str, float]) -> Iterator[tuple[int, _Kernel]]:
    names, works = trace.events["name"].tolist(), classify(trace)
    for place, event in enumerate(device_events(trace)):
        if works[event.row] is WorkKind.COMPUTE and names[event.row] in factors:
            factor = factors[names[event.row]]
            begun, done = device.at_ns("begun", place), device.at_ns("done", place)
            took, beside = done - begun, total(clip(device.busy, begun, done))
            yield place, _Kernel(factor=factor, took_ns=took, alone_ns=took - beside + beside / factor)


def _edit_kernel(kernel: _Kernel, edited: DevicePrograms, program: int, number: int) -> _Kernel:
    """The kernel, longer or shorter by as much as an edit made its work, which follows its note `begun`."""
    move = edited.programs[program][number + 1]
    if not isinstance(move, Work) or move.ns == kernel.took_ns:
        return kernel
    return replace(kernel, took_ns=move.ns, alone_ns=kernel.alone_ns * move.ns / max(kernel.took_ns, 1))


class _Device:
    """When one rank's device worked and communicated."""

    def __init__(self, run: Run, notes: NotePlaces, played: Played, rank: int) -> None:
        self._notes, self._over_ns = notes, played.over_ns
        events = device_events(run.traces[rank])
        begun = (place for word, place in notes if word == "begun")
        # Places beyond the recorded events are those of added collectives.
        communicates = [place for place in begun if place >= len(events) or events[place].communicates]
        begins, ends = ([self.at_ns(word, place) for place in communicates] for word in ("begun", "done"))
        self.busy: Intervals = union(begins, ends)

    def at_ns(self, word: str, place: int) -> int:
        """When an event had `begun`, or was `done`."""
        program, number = self._notes[word, place]
        return self._over_ns[program][number]


def _times_beside(device: _Device, kernels: Mapping[int, _Kernel]) -> dict[int, int]:
    """By place what a kernel takes beside what the device communicates then."""
    starts, ends = device.busy[:, 0].tolist(), device.busy[:, 1].tolist()
    return {
        place: round(_duration_beside(device.at_ns("begun", place), kernel.alone_ns, kernel.factor, starts, ends))
        for place, kernel in kernels.items()
    }


def _duration_beside(start_ns: int, alone_ns: float, factor: float, starts: list[int], ends: list[int]) -> float:
    """How long a kernel takes that begins then, beside communication from `starts` to `ends`."""
    now, left_ns = float(start_ns), alone_ns  # `left_ns` as it would take alone
    for number in range(max(bisect_right(starts, start_ns) - 1, 0), len(starts)):
        gap_ns = max(starts[number] - now, 0.0)
        if left_ns <= gap_ns:
            break
        left_ns, now = left_ns - gap_ns, now + gap_ns
        beside_ns = max(ends[number] - now, 0.0)
        if left_ns * factor <= beside_ns:
            return now + left_ns * factor - start_ns
        left_ns, now = left_ns - beside_ns / factor, now + beside_ns
    return now + left_ns - start_ns


def _with_kernel_times(
    edited: DevicePrograms, notes: Sequence[NotePlaces], took_ns: Sequence[Mapping[int, int]]
) -> DevicePrograms:
    """The programs with the kernels' new times: that of the work that follows a kernel's note `begun`."""
    programs = [list(program) for program in edited.programs]
    for rank_notes, rank_took in zip(notes, took_ns, strict=True):
        for place, ns in rank_took.items():
            program, number = rank_notes["begun", place]
            if isinstance(programs[program][number + 1], Work):  # an edit may have taken it away
                programs[program][number + 1] = Work(ns)
    return replace(edited, programs=tuple(programs))
