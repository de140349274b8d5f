"""What no buckets make shorter: the least time of a recorded run's steps, whatever its gradients are sent in.

Best found and least: docs/design/plays.md.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from overlaplab.simulate.buckets.cutting import best_cutting, best_cuttings, transfer_table
from overlaplab.simulate.player import End, Launch, Mark, Move, Played, Program, StuckError, Wait, Work, play
from overlaplab.simulate.programs.buckets import Buckets, Recutting

Times = npt.NDArray[np.int64]


class BackwardPass(Struct, frozen=True, kw_only=True):
    """A backward pass that sends gradients, played without buckets; times in ns since the run's beginning."""

    step: int
    """Its place among the steps."""
    ready_ns: Times
    """When the last rank has each gradient, in their order."""
    ended_ns: Times
    """When each rank has ended its backward pass."""
    resumed_ns: Times
    """When each rank goes on at the earliest, whatever the buckets."""


class Least(Struct, frozen=True, kw_only=True):
    """A run's steps at their least."""

    cut: Recutting
    took_ns: Times
    """T of gradients in one bucket: see `transfer_table`."""
    passes: tuple[BackwardPass, ...]
    spans_ns: Times
    """How long each step takes at least, of shape (ranks, steps)."""

    def spans_with_ns(self, buckets: Buckets) -> Times:
        """How long each step takes at least with these buckets: the mean over the ranks, of shape (steps,)."""
        ends = np.cumsum([len(names) for names in buckets])
        ready = np.maximum.accumulate([each.ready_ns for each in self.passes], axis=1) + self.cut.host_ns
        free_ns = np.zeros(len(self.passes), dtype=np.int64)
        launch_ns, first = 2 * self.cut.host_ns, 0  # a bucket goes out halfway through its launch
        for number, end in enumerate(ends.tolist()):
            free_ns = np.maximum(free_ns, ready[:, end - 1] + number * launch_ns) + self.took_ns[first, end]
            first = end
        spans: Times = self.spans_ns.mean(axis=0)
        for each, end_ns in zip(self.passes, free_ns.tolist(), strict=True):
            resumed = _resume_ns(each.ended_ns, len(buckets), end_ns, self.cut)
            spans[each.step] += (resumed - each.resumed_ns).mean()
        return spans


def launch_cuttings(cut: Recutting, ready_ns: Times, took_ns: Times) -> Iterator[tuple[int, tuple[int, ...]]]:
    """When the last of one, two, … buckets ends at the earliest, and how many gradients each holds: `best_cuttings`.

    That delays bucket k by k whole launches; but it goes out halfway through its own, so by half a launch less.
    """
    return best_cuttings((ready_ns - cut.host_ns).tolist(), took_ns, 2 * cut.host_ns)


def least_steps(cut: Recutting) -> Least | None:
    """A run's steps at their least; None where numbers of backward passes differ, or programs cannot be played."""
    parts = [_split_at_backward_ends(each.moves) for each in cut.alone]
    if len({len(each) for each in parts}) > 1:
        return None
    sent = [cut.sent[name] for name in cut.order]
    took_ns = transfer_table(sent, cut.takes)
    # A lower limit of T, which differs where T was measured of one size only.
    least_took_ns = took_ns if cut.takes_least is cut.takes else transfer_table(sent, cut.takes_least)
    at_ns = np.zeros(len(parts), dtype=np.int64)
    ends: list[list[int]] = [[] for _ in parts]
    passes: list[BackwardPass] = []
    steps = sum(isinstance(move, End) for move in cut.alone[0].moves) - 1  # the first `End` begins the first
    for part in zip(*parts, strict=True):
        begun = int(at_ns.min())
        moves = [
            [Work(int(at) - begun), *closed] for at, closed in zip(at_ns, _without_open_collectives(part), strict=True)
        ]
        try:
            played = play(moves)
        except StuckError:
            return None
        for rank, ended_ns in enumerate(played.ends_ns):
            ends[rank] += [begun + at for at in ended_ns]
        at_ns = begun + np.array([over_ns[-1] for over_ns in played.over_ns], dtype=np.int64)
        last = moves[0][-1]
        if isinstance(last, Mark) and last.word == "backward_end" and len(ends[0]) <= steps:
            ready = begun + _ready_ns(cut, moves, played)
            at_ns, ended = _earliest_ns(cut, least_took_ns, ready, at_ns), at_ns
            step = len(ends[0]) - 1
            passes.append(BackwardPass(step=step, ready_ns=ready, ended_ns=ended, resumed_ns=at_ns))
    times = np.array(ends, dtype=np.int64)
    return Least(cut=cut, took_ns=took_ns, passes=tuple(passes), spans_ns=np.diff(times))


def _split_at_backward_ends(program: Program) -> list[list[Move]]:
    """The moves up to the end of each backward pass that sends gradients, and what follows the last."""
    parts: list[list[Move]] = [[]]
    for move in program:
        parts[-1].append(move)
        if isinstance(move, Mark) and move.word == "backward_end":
            parts.append([])
    return parts


def _without_open_collectives(parts: Sequence[Sequence[Move]]) -> list[list[Move]]:
    """The ranks' moves without collectives that not all of them launch, and without waits for such."""
    launched = [{move.key for move in part if isinstance(move, Launch)} for part in parts]
    inside: set[Hashable] = set.intersection(*launched)
    return [[move for move in part if not isinstance(move, Launch | Wait) or move.key in inside] for part in parts]


def _ready_ns(cut: Recutting, moves: Sequence[Program], played: Played) -> Times:
    """When the last rank has each gradient; one that does not arrive is there from the beginning."""
    place_of = {name: place for place, name in enumerate(cut.order)}
    ready = np.zeros(len(place_of), dtype=np.int64)
    for program, times in zip(moves, played.over_ns, strict=True):
        for move, time in zip(program, times, strict=True):
            if isinstance(move, Mark) and move.word == "gradient":
                ready[place_of[move.name]] = max(ready[place_of[move.name]], time)
    return ready


def _earliest_ns(cut: Recutting, least_took_ns: Times, ready_ns: Times, ended_ns: Times) -> Times:
    """When each rank goes on at the earliest after a backward pass: the least over all numbers of buckets."""
    begun = int(ready_ns.min())
    ready, ended = ready_ns - begun, ended_ns - begun
    sent = [cut.sent[name] for name in cut.order]
    if not cut.host_ns:
        return np.asarray(begun + _resume_ns(ended, 0, best_cutting(ready.tolist(), sent, cut.takes_least)[0], cut))
    earliest: Times = np.full(len(ended), np.iinfo(np.int64).max)
    number = 0
    for number, (end_ns, _) in enumerate(launch_cuttings(cut, ready, least_took_ns), start=1):
        earliest = np.minimum(earliest, _resume_ns(ended, number, end_ns, cut))
        if (ended + 2 * (number + 1) * cut.host_ns >= earliest).all():
            return np.asarray(begun + earliest)
    if number < len(sent):  # more buckets than `best_cuttings` tries: at least one launch more
        end_ns = best_cutting(ready.tolist(), sent, cut.takes_least)[0]
        earliest = np.minimum(earliest, _resume_ns(ended, number + 1, end_ns, cut))
    return np.asarray(begun + earliest)


def _resume_ns(ended_ns: Times, launches: int, end_ns: int, cut: Recutting) -> Times:
    """When each rank goes on after so many launches in its backward pass, of which the last bucket ends at `end_ns`."""
    alone = ended_ns + 2 * launches * cut.host_ns
    # Without `wake_ns`: a rank that has nothing left to wait for does not wake up.
    resumed: Times = np.maximum(alone, end_ns)
    return resumed
