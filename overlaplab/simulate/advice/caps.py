"""Every `bucket_cap_mb` that makes a difference, and what each would have given in a recorded run.

A bucket closes once it holds its cap, so between two sums of gradients that arrived one after the other all caps give
the same buckets. At such a sum the step time jumps: a cap that is a little larger may leave two buckets fewer. So each
range of caps is played once, and none between is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import floor, log10
from statistics import median
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from overlaplab.costs import attained_steps
from overlaplab.events import Run, once_per_run, step_windows
from overlaplab.manifest import Manifest, traits_of
from overlaplab.simulate.changes import Bucket, assign, launch_ns, recut
from overlaplab.simulate.cutting import best_launched, last_end
from overlaplab.simulate.displaced import with_displaced, without_displaced
from overlaplab.simulate.player import Launch, Mark, Program, StuckError, Wait, Work, play
from overlaplab.simulate.recorded import Recorded, plain_programs
from overlaplab.simulate.transfers import beyond, transfers

__all__ = [
    "TIE",
    "CapPlayed",
    "CapRange",
    "Recutting",
    "best_buckets_played",
    "best_cap",
    "cap_for",
    "cap_ranges",
    "caps_played",
    "closing_caps",
    "disturbed",
    "first_caps_played",
    "recutting",
    "undisturbed_spans_ns",
    "undisturbed_steps",
]

MIB = 1 << 20
TIE = 0.01
"""Of a step: settings that differ by no more are taken for equally fast."""
_PASSES = 3
"""Backward passes whose best buckets are tried on all steps."""
_MOST_MOVES = 3_000_000
"""So many moves are played in about 3 s. Where all caps need more, only those are played that an estimate favours."""

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapRange(Generic[Name]):
    """Caps that all give the same buckets."""

    cap_mb: float
    """The one with the fewest digits, in MiB."""
    buckets: tuple[tuple[Name, ...], ...]


def cap_ranges(order: Sequence[Name], sizes: Mapping[Name, int]) -> Iterator[CapRange[Name]]:
    """All ranges, the smallest caps first: from one bucket per gradient to one for all.

    Takes the gradients in their order of arrival and their bytes.
    """
    cap = 1
    while order:
        buckets = assign(order, sizes, [cap])
        full = [sum(sizes[name] for name in bucket) for bucket in buckets[:-1]]
        upto = min(full, default=2 * cap)  # of one bucket for all every larger cap
        yield CapRange(cap_mb=cap_for(cap, upto), buckets=tuple(map(tuple, buckets)))
        if not full:
            return
        cap = upto + 1


def cap_for(least: int, most: int) -> float:
    """The cap in MiB with the fewest digits of those from `least` to `most` bytes; of several the largest."""
    for digits in range(1, 17):
        unit = 10.0 ** (floor(log10(most / MIB)) - digits + 1)
        cap = float(f"{floor(most / MIB / unit) * unit:.{digits}g}")
        if least <= int(cap * MIB) <= most:
            return cap
    return most / MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Recutting:
    """A recorded run whose gradients can be sent in other buckets."""

    recorded: Recorded
    alone: tuple[Program, ...]
    """Its programs, as if collectives displaced nothing."""
    order: tuple[str, ...]
    """The gradients as they first arrived on the first rank, which is the order of DDP's and the engine's buckets."""
    sizes: Mapping[str, int]
    """Their bytes."""
    sent: Mapping[str, int]
    """The same with what is sent beside each."""
    takes: Callable[[int], int]
    """T of an all-reduce of so many bytes."""
    measured: tuple[int, int] | None
    """The smallest and the largest of the recorded all-reduces in bytes, where T is a line through these."""
    host_ns: int
    """What launching a bucket costs the host."""
    displaces: Callable[[int], int]
    """How much computation an all-reduce of so many bytes displaces."""
    wake_ns: int
    """What waking up at the end of the backward pass costs it."""

    def cut(self, *caps_mb: float) -> tuple[tuple[str, ...], ...]:
        """The buckets by these caps; the last one applies to all further buckets."""
        return tuple(map(tuple, assign(self.order, self.sizes, [int(cap * MIB) for cap in caps_mb])))

    def knows(self, buckets: Sequence[Sequence[str]]) -> bool:
        """Whether T of these buckets is no extrapolation."""
        held = [sum(self.sent[name] for name in names) for names in buckets]
        return self.measured is None or beyond(held, self.measured) is None

    def spans_ns(self, buckets: Sequence[Sequence[str]]) -> npt.NDArray[np.int64]:
        """How long the steps would take with these buckets, of shape (ranks, steps)."""
        programs = self.programs(buckets)
        played = play(programs)
        return np.array([played.spans_ns(rank) for rank in range(len(programs))], dtype=np.int64)

    def programs(self, buckets: Sequence[Sequence[str]]) -> list[Program]:
        """All ranks' programs with these buckets."""
        cut = [
            Bucket(parameters=tuple(names), transfer_ns=self.takes(size), displaced_ns=self.displaces(size))
            for names, size in ((names, sum(self.sent[name] for name in names)) for names in buckets)
        ]
        made = (recut(program, cut, host_ns=self.host_ns, wake_ns=self.wake_ns) for program in self.alone)
        return [with_displaced(program) for program in made]


@once_per_run
def recutting(run: Run) -> Recutting | None:
    """None unless all-reduces average the gradients, their names and sizes are known, and the run can be played."""
    recorded, traits = plain_programs(run), traits_of(run.manifest)
    if recorded is None or traits is None or traits.gradients != "all_reduce" or not recorded.gradients:
        return None
    arrived = [move.name for move in recorded.programs[0] if isinstance(move, Mark) and move.word == "gradient"]
    order = tuple(dict.fromkeys(arrived))
    if set(order) != set(recorded.gradients):
        return None
    try:
        play(recorded.programs)
    except StuckError:  # collectives of several groups, for instance
        return None
    link = run.manifest.link if run.manifest else None
    takes = transfers(run, run.traces[0], link).by_size("all_reduce")
    if takes is None:
        return None
    launches = [move for move in recorded.programs[0] if isinstance(move, Launch) and move.role == "bucket"]
    waits = [move for move in recorded.programs[0] if isinstance(move, Wait) and move.wake_ns]
    return Recutting(
        recorded=recorded,
        alone=tuple(map(without_displaced, recorded.programs)),
        order=order,
        sizes={name: own for name, (own, _) in recorded.gradients.items()},
        sent={name: whole for name, (_, whole) in recorded.gradients.items()},
        takes=takes,
        measured=None if link else (min(own.bytes for own in launches), max(own.bytes for own in launches)),
        host_ns=int(median(launch_ns(launch) for launch in launches)),
        displaces=partial(recorded.displaced, "all_reduce"),
        wake_ns=int(median(wait.wake_ns for wait in waits)) if waits else 0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CapPlayed:
    """What a cap would have given."""

    caps_mb: tuple[float, ...]
    """The cap, or the first bucket's and the others'."""
    buckets: tuple[tuple[str, ...], ...]
    spans_ns: npt.NDArray[np.int64]
    """Of shape (ranks, steps)."""


@once_per_run
def caps_played(run: Run) -> tuple[CapPlayed, ...]:
    """Each range of caps played, the smallest caps first; empty where the run cannot be played."""
    cut = recutting(run)
    if cut is None:
        return ()
    return _played(cut, [((own.cap_mb,), own.buckets) for own in cap_ranges(cut.order, cut.sizes)])


def first_caps_played(run: Run, cap_mb: float) -> tuple[CapPlayed, ...]:
    """Every smaller first bucket with this cap for the others, the smallest first."""
    cut = recutting(run)
    if cut is None:
        return ()
    tried: list[_Tried] = []
    held = 0
    for name in cut.order[: len(cut.cut(cap_mb)[0]) - 1]:
        least, held = held + 1, held + cut.sizes[name]
        caps = (cap_for(least, held), cap_mb)
        tried.append((caps, cut.cut(*caps)))
    return _played(cut, tried)


_Tried: TypeAlias = tuple[tuple[float, ...], tuple[tuple[str, ...], ...]]


def _played(cut: Recutting, tried: Sequence[_Tried]) -> tuple[CapPlayed, ...]:
    """Those of these caps and their buckets whose T is known; of very many those that an estimate favours."""
    tried = [(caps, buckets) for caps, buckets in tried if cut.knows(buckets)]
    most = max(_MOST_MOVES // sum(map(len, cut.recorded.programs)), 1)
    if len(tried) > most:
        arrived = next(_arrivals(cut.recorded.programs[0]))
        ready_ns, whole = [arrived.get(name, 0) for name in cut.order], [cut.sent[name] for name in cut.order]
        ends = [last_end(ready_ns, whole, [len(bucket) for bucket in buckets], cut.takes) for _, buckets in tried]
        tried = [tried[place] for place in sorted(np.argsort(ends, kind="stable")[:most].tolist())]
    return tuple(CapPlayed(caps_mb=caps, buckets=own, spans_ns=cut.spans_ns(own)) for caps, own in tried)


def best_buckets_played(run: Run) -> tuple[CapPlayed, ...]:
    """The best buckets of all for the first rank's first backward passes (see `best_launched`), played over all steps.

    `caps_mb` are those with which each bucket closes, as torch's DistributedDataParallel takes in `bucket_cap_mb_list`.
    """
    cut = recutting(run)
    if cut is None:
        return ()
    whole = [cut.sent[name] for name in cut.order]
    tried: dict[tuple[int, ...], _Tried] = {}
    for arrived in islice(_arrivals(cut.programs([cut.order])[0]), _PASSES):
        ready_ns = [arrived.get(name, 0) for name in cut.order]
        counts = best_launched(ready_ns, whole, cut.takes, cut.host_ns + cut.displaces(0))
        ends = np.cumsum(counts).tolist()
        buckets = tuple(cut.order[end - count : end] for end, count in zip(ends, counts, strict=True))
        tried[counts] = tuple(closing_caps([[cut.sizes[name] for name in bucket] for bucket in buckets])), buckets
    return _played(cut, list(tried.values()))


def closing_caps(buckets: Sequence[Sequence[int]]) -> list[float]:
    """A cap in MiB for each bucket, so that it closes with its last gradient; of each the gradients' bytes."""
    return [cap_for(sum(sizes[:-1]) + 1, sum(sizes)) for sizes in buckets]


def best_cap(run: Run, played: Sequence[CapPlayed]) -> CapPlayed | None:
    """Of those whose steps are shortest, as far as that can be told, one with the fewest buckets; None of none.

    Each bucket costs the host time. Of several the one with the fewest digits is taken, then the largest. Caps are
    compared by all ranks' steps that nothing disturbed.
    """
    steps = undisturbed_steps(run)
    took = [int(own.spans_ns[:, steps].sum()) for own in played]
    tied = [own for own, ns in zip(played, took, strict=True) if ns <= min(took) * (1 + TIE)]
    return min(tied, key=lambda own: (len(own.buckets), len(f"{own.caps_mb[0]:g}"), -own.caps_mb[0]), default=None)


@once_per_run
def undisturbed_steps(run: Run) -> npt.NDArray[np.bool_]:
    """Which of the first trace's steps neither a busy machine nor a late link disturbed, and none of the traces has
    damaged; all, where none is left.
    """
    numbers = [window.step for window in step_windows(run.traces[0])]
    damaged = {step.step for trace in run.traces for step in step_windows(trace) if step.damaged}
    bad = disturbed(run.manifest) | damaged
    left = np.array([number not in bad for number in numbers], dtype=np.bool_)
    return left if left.any() else np.ones(len(numbers), dtype=np.bool_)


def undisturbed_spans_ns(run: Run) -> npt.NDArray[np.int64]:
    """How long these steps took, of shape (ranks, steps)."""
    spans = [[own.end_ns - own.start_ns for own in step_windows(trace)] for trace in run.traces]
    return np.array(spans, dtype=np.int64)[:, undisturbed_steps(run)]


def disturbed(manifest: Manifest | None) -> set[int]:
    """The numbers of the steps in which the machine was busy, or the emulated link not attained."""
    if manifest is None:
        return set()
    late = {step.step for step in attained_steps(manifest) if not step.attained}
    return late | {row.step for row in manifest.machine or () if row.busy}


def _arrivals(program: Program) -> Iterator[dict[str, int]]:
    """When each gradient arrived, of each backward pass that sends them, by work alone."""
    found: dict[str, int] = {}
    now = 0
    for move in program:
        if isinstance(move, Work):
            now += move.ns
        elif isinstance(move, Mark) and move.word == "gradient":
            found[move.name] = now
        elif isinstance(move, Mark) and move.word == "backward_end":
            yield found
            found, now = {}, 0
