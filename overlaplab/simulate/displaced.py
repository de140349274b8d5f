"""What carrying collectives takes from the computation on the same cores.

[Note: meanwhile]: docs/design/plays.md, Another strategy's programs, Displacement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from math import inf

from overlaplab.costs import fit_line
from overlaplab.events import Run, step_windows
from overlaplab.events.preempted import processor_counts
from overlaplab.manifest import Manifest
from overlaplab.simulate.player import Launch, Mark, Move, Program, Wait, Work, change_duration

Displaced = Callable[[str, int], int]
"""ns of computation displaced by a collective of this kind and so many bytes; 0 where that was not measured."""
_MAX_DISPLACED_SHARE = 0.9
"""The largest share of the time that is displaced: computation goes on all the same."""
_MAX_SLOWDOWN = 3
"""The largest ratio of displaced to used time; longer waits for a core have another cause."""
_MIN_SHARE = 0.01
"""Collectives that use a smaller share of the passes do not tell how much more they displace."""


def calibrated_use(manifest: Manifest | None) -> Displaced:
    """What a collective uses of the cores on the idle machine: a line by its size; 0 on a sleeping device."""
    points: dict[str, tuple[list[int], list[int]]] = {}
    if manifest and manifest.calibration and not manifest.hides_host:
        for row in manifest.calibration.collectives:
            sizes, used = points.setdefault(row.kind, ([], []))
            sizes += [row.bytes] * len(row.used_ns)
            used += row.used_ns
    lines = {kind: fit_line(sizes, used) for kind, (sizes, used) in points.items() if used}

    def used_ns(kind: str, num_bytes: int) -> int:
        each_ns, ns_per_byte = lines.get(kind, (0, 0))
        return round(each_ns + ns_per_byte * num_bytes)

    return used_ns


def displaced_over_used(run: Run, programs: Sequence[Program]) -> float:
    """Ratio of the computation that collectives displaced to what they use, which is `displaced_ns` in `programs`."""
    if not any(isinstance(move, Launch) and move.displaced_ns for program in programs for move in program):
        return 0.0
    took_ns = sum(map(_pass_work_ns, programs))
    used_ns = took_ns - sum(_pass_work_ns(without_displaced(program)) for program in programs)
    if used_ns <= _MIN_SHARE * took_ns:
        return 1.0
    delayed_ns = 0
    for trace in run.traces:
        windows, counts = step_windows(trace), processor_counts(trace)
        inside = (windows[0].start_ns <= counts["start_ns"]) & (counts["end_ns"] <= windows[-1].end_ns)
        delayed_ns += int(counts.loc[inside & (counts["phase"] != ""), "delayed_ns"].sum())
    return min(delayed_ns / used_ns, _MAX_SLOWDOWN)


def _pass_work_ns(program: Program) -> int:
    """Work of forward and backward passes."""
    inside, work_ns = False, 0
    for move in program:
        if isinstance(move, Mark) and move.word in ("forward", "backward_end", "kept_end"):
            inside = move.word == "forward"
        elif isinstance(move, Work) and inside:
            work_ns += move.ns
    return work_ns


def without_displaced(program: Program) -> Program:
    """A program with the work that its collectives displaced taken out; see [Note: meanwhile]."""
    return _retime_work(program, _LinkClock.computed_ns)


def with_displaced(program: Program) -> Program:
    """A program whose work takes longer by what its collectives displace; see [Note: meanwhile]."""
    return _retime_work(program, _LinkClock.duration_ns)


def _retime_work(program: Program, times: Callable[[_LinkClock, int], int]) -> Program:
    if not any(isinstance(move, Launch) and move.displaced_ns for move in program):
        return program
    link = _LinkClock()
    return [
        change_duration(move, times(link, move.ns)) if isinstance(move, Work) else link.pass_move(move)
        for move in program
    ]


class _LinkClock:
    """One rank's link and clock, as its program goes on."""

    def __init__(self) -> None:
        self._now = self._free = 0.0
        self._busy: deque[tuple[float, float, float]] = deque()  # from, until, the displaced part of that
        self._ends: dict[Hashable, float] = {}

    def pass_move(self, move: Move) -> Move:
        """Advance past a move that is no work, and return it."""
        if isinstance(move, Launch):
            begin = max(self._now, self._free)
            self._free = self._ends[move.key] = begin + move.transfer_ns
            if move.displaced_ns and move.transfer_ns:
                self._busy.append((begin, self._free, min(move.displaced_ns / move.transfer_ns, _MAX_DISPLACED_SHARE)))
        elif isinstance(move, Wait):
            self._now = max(self._now, self._ends.pop(move.key, 0))
        return move

    def computed_ns(self, ns: int) -> int:
        """How much was computed in the next `ns`."""
        done, until = 0.0, self._now + ns
        while self._now < until:
            border, part = self._border()
            border = min(border, until)
            done += (border - self._now) * (1 - part)
            self._now = border
        return round(done)

    def duration_ns(self, ns: int) -> int:
        """How long it takes to compute for `ns` from now on."""
        begun, left = self._now, float(ns)
        while left > 0:
            border, part = self._border()
            done = min((border - self._now) * (1 - part), left)
            self._now = border if done < left else self._now + left / (1 - part)
            left -= done
        return round(self._now - begun)

    def _border(self) -> tuple[float, float]:
        """When the displaced share changes next, and the share until then."""
        while self._busy and self._busy[0][1] <= self._now:
            self._busy.popleft()
        if not self._busy:
            return inf, 0.0
        begin, end, part = self._busy[0]
        return (begin, 0.0) if begin > self._now else (end, part)
