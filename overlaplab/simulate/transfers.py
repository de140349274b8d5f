"""T of a step's collectives: by the link's formula, or as measured after the last rank arrived; how far it holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import TypeAlias

from overlaplab.costs import fit_line, transfer_ns
from overlaplab.costs.link import UNSTEADY, deviation_ns
from overlaplab.events import Run, Trace
from overlaplab.evidence.executions import executions
from overlaplab.evidence.labels import Span
from overlaplab.evidence.launches import launches
from overlaplab.evidence.recorded import UNKNOWN_NS, recorded_collectives
from overlaplab.evidence.waits import arrivals
from overlaplab.manifest import Link, strategy_traits

EXTRAPOLATED = 2
"""What lies further outside than this multiple is extrapolated, as in torch inductor's profile-guided estimation."""


def times_beyond(predicted: Sequence[float], recorded: Sequence[float]) -> float | None:
    """How many times further than all recorded values a predicted one lies, on either side; None up to `EXTRAPOLATED`
    times as far.
    """
    if not predicted or not recorded or min(*predicted, *recorded) <= 0:
        return None
    most = max(max(predicted) / max(recorded), min(recorded) / min(predicted))
    return most if most > EXTRAPOLATED else None


def transfers(run: Run, trace: Trace, link: Link | None) -> Transfers:
    """How long one rank's collectives move data: by the link's formula; without a link as recorded, and for other sizes
    by a line through what was recorded.
    """
    traits = strategy_traits(run.manifest)
    return _ByLink(link, traits.hops if traits else None) if link else _Measured(run, trace)


def no_less(takes: Callable[[int], int], sizes: Collection[int]) -> Callable[[int], int]:
    """What no collective takes less than, where T was measured of these sizes.

    One size does not tell latency from bandwidth: a smaller one takes at least its share of T, a larger one at least T.
    """
    return takes if len(set(sizes)) > 1 else lambda num_bytes: takes(min(num_bytes, *sizes))


def halved_ns(transfer_ns: int, num_bytes: int, takes: Callable[[int], int]) -> int:
    """T of a collective with half its bytes: shorter by as much as `takes` is shorter for these, and not below 0."""
    return max(transfer_ns - (takes(num_bytes) - takes(num_bytes // 2)), 0)


def takes_ns(times: Transfers, kind: str, num_bytes: int) -> int | None:
    """T in ns of a kind and any number of bytes; None where unknown."""
    times_by_size = times.times_by_size(kind)
    return None if times_by_size is None else times_by_size(num_bytes)


class _ByLink:
    """By the link's formula (docs/design.md, "The link, emulated"); methods are those of `_Measured`."""

    def __init__(self, link: Link, hops: str | None) -> None:
        """`hops`: the trait of that name."""
        self._link, self._hops = link, hops

    def launch_ns(self, launch: Span, kind: str, num_bytes: int | None) -> int | None:
        return None if num_bytes is None else self._takes(kind, num_bytes)

    def knows_waits(self, launch: Span) -> bool:
        return True

    def times_by_size(self, kind: str) -> Callable[[int], int] | None:
        return lambda num_bytes: self._takes(kind, num_bytes)

    least_by_size = times_by_size

    def _takes(self, kind: str, num_bytes: int) -> int:
        return transfer_ns(kind, num_bytes, self._link, self._hops if kind == "all_reduce" else None)


class _Measured:
    """T as recorded: from when the last rank had arrived and the collective before it was over, to its end."""

    def __init__(self, run: Run, trace: Trace) -> None:
        all_arrivals = arrivals(run)
        rank_arrivals = all_arrivals[all_arrivals["trace"] == run.traces.index(trace)]
        starts = recorded_collectives(trace)["start_ns"].to_numpy()[rank_arrivals["row"]]
        is_known = rank_arrivals["moves_ns"] != UNKNOWN_NS
        waits = (rank_arrivals["moves_ns"] - rank_arrivals["start_ns"]).where(is_known, UNKNOWN_NS)
        wait_of = dict(zip(starts.tolist(), waits.tolist(), strict=True))
        self._executions = executions(trace)
        self._launches = launches(trace)
        self._moved: dict[tuple[int, int], tuple[int, bool]] = {}  # by start and end: T, and whether its wait is known
        free_ns = UNKNOWN_NS
        for start, end in sorted({launch.ran for launch in self._launches if launch.ran}, key=lambda ran: ran[::-1]):
            wait = wait_of.get(start, UNKNOWN_NS)
            began = max(start + max(wait, 0), free_ns)
            self._moved[start, end] = (max(end - began, 0), wait != UNKNOWN_NS)
            free_ns = end
        self.times_by_size = cache(self._fit_by_size)

    def launch_ns(self, launch: Span, kind: str, num_bytes: int | None) -> int | None:
        """T in ns of what this host range launched; None where unknown."""
        moved = self._moved_by(launch)
        return sum(took for took, _ in moved) if moved else None

    def knows_waits(self, launch: Span) -> bool:
        """Whether this T cannot include waiting for other ranks, whose traces are absent."""
        return all(is_known for _, is_known in self._moved_by(launch))

    def _moved_by(self, launch: Span) -> list[tuple[int, bool]]:
        """T of each collective that a host range launched, and whether its wait is known."""
        return [self._moved[inner.ran] for inner in self._executions.launches_inside(launch) if inner.ran]

    def least_by_size(self, kind: str) -> Callable[[int], int] | None:
        """`times_by_size`, and where only one size was recorded what larger ones take at least: see `no_less`."""
        takes = self.times_by_size(kind)
        return None if takes is None else no_less(takes, [size for size, _ in self._measured_sizes(kind)])

    def _measured_sizes(self, kind: str) -> list[tuple[int, int]]:
        return [
            (launch.bytes, self._moved[launch.ran][0])
            for launch in self._launches
            if launch.kind == kind and launch.bytes and launch.ran
        ]

    def _fit_by_size(self, kind: str) -> Callable[[int], int] | None:
        """T in ns of any number of bytes; None where unknown, or where measured times do not follow their sizes."""
        measured = self._measured_sizes(kind)
        if not measured:
            return None
        sizes, took_ns = zip(*measured, strict=True)
        latency_ns, ns_per_byte = line = fit_line(sizes, took_ns)
        if deviation_ns(line, sizes, took_ns) > UNSTEADY * sum(took_ns):
            return None
        return lambda num_bytes: round(latency_ns + ns_per_byte * num_bytes)


Transfers: TypeAlias = _ByLink | _Measured
