"""Buckets that would make a recorded run's steps shortest, played.

[Note: best found]: docs/design/plays.md, Best found and least.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, once_per_run
from overlaplab.manifest import Link
from overlaplab.simulate.buckets.least import Least, Times, launch_cuttings, least_steps
from overlaplab.simulate.fill_buckets import MIB, cap_for, cap_ranges, closing_caps
from overlaplab.simulate.player import StuckError, find_launches
from overlaplab.simulate.programs import all_programs
from overlaplab.simulate.programs.buckets import Recutting, find_recutting, recuttings
from overlaplab.simulate.programs.profile import wake_ns
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.programs.times import retime_program
from overlaplab.simulate.programs.without_buckets import without_made_buckets
from overlaplab.simulate.undisturbed import TIE, step_weights
from overlaplab.traits import TRAITS

Names = tuple[tuple[str, ...], ...]
_PASSES = 3
"""Backward passes whose best buckets are tried on all steps."""
_LEAST_ERROR_SHARE = TIE
"""A step was seen to take less than the least that `Least.spans_with_ns` tells by this share of it, where ranks had
waited for each other anyway."""
_MAX_MOVES = 3_000_000
"""So many moves are played in about 3 s. Where all caps need more, only those are played whose steps could be least."""


class BucketsPlayed(Struct, frozen=True, kw_only=True):
    """What buckets would have given."""

    caps_mb: tuple[float, ...]
    """The caps that give them, the last of which serves on."""
    buckets: Names
    spans_ns: Times
    """How long the steps take, of shape (ranks, steps)."""
    mean_ns: float
    """The mean over ranks of the steps that nothing disturbed."""


class Candidate(Struct, frozen=True, kw_only=True):
    """Buckets that can be tried."""

    caps_mb: tuple[float, ...]
    buckets: Names
    least_ns: float
    """A lower limit of `BucketsPlayed.mean_ns`."""


def bucket_search(run: Run, link: Link | None = None) -> BucketSearch | None:
    """The search of a run with one model, perhaps behind another link; None where its gradients cannot be sent in other
    buckets.
    """
    if find_recutting(run) is None:
        return None
    recorded = run.manifest.link if run.manifest else None
    searches = bucket_searches(run, None if link == recorded else link)
    return searches[0] if searches else None


@once_per_run
def bucket_searches(run: Run, link: Link | None) -> tuple[BucketSearch, ...]:
    """The search of each model, perhaps behind another link; the others' buckets stay as recorded."""
    cuts = recuttings(run)
    if link is not None:
        recorded = run.manifest.link if run.manifest else None
        cuts = tuple(
            cut.with_programs(run, [retime_program(program, recorded, link) for program in cut.recorded.programs], link)
            for cut in cuts
        )
    least = (least_steps(_with_bucketed_moves(run, cut, link)) for cut in cuts)
    return tuple(BucketSearch(each, step_weights(run)) for each in least if each is not None)


def _with_bucketed_moves(run: Run, cut: Recutting, link: Link | None) -> Recutting:
    """The cutting, but all that ranks do as `bucketed` does it, where the recorded strategy sends no buckets."""
    traits = TRAITS.get(run.manifest.strategy or "") if run.manifest else None
    if traits is None or traits.buckets:
        return cut
    try:
        programs = all_programs(run, Setting(strategy="bucketed", link=link))
    except OverlaplabError:  # that strategy cannot be made anew from the run
        return cut
    launches = find_launches(programs[0], "bucket")
    flags: dict[str, int] = {}  # the bytes that go with each gradient
    for each in launches:
        flags |= dict.fromkeys(each.parameters, (each.bytes - each.gradient_bytes) // len(each.parameters))
    return replace(
        cut,
        alone=without_made_buckets(programs),
        sent={name: size + flags.get(name, 0) for name, size in cut.sizes.items()},
        host_ns=launches[0].host_ns,  # the same of all buckets
        wake_ns=wake_ns(programs),
    )


class BucketSearch:
    """Plays buckets, each once, and finds the best."""

    def __init__(self, least: Least, weights: npt.NDArray[np.float64]) -> None:
        """`weights`: how much each step counts, see `undisturbed.step_weights`."""
        self.least = least
        self._weights = weights
        self._spans: dict[Names, Times | None] = {}

    @property
    def cut(self) -> Recutting:
        """What makes the programs."""
        return self.least.cut

    @cached_property
    def least_ns(self) -> float:
        """What no buckets are shorter than: the mean over ranks of the steps that nothing disturbed.

        What was played is one of all cuttings, so it is no longer than that.
        """
        played = self.best_found.mean_ns if self.best_found else np.inf
        return min(self._mean_ns(self.least.spans_ns), played)

    @cached_property
    def best_cap(self) -> BucketsPlayed | None:
        """The cap whose steps are shortest, as far as that can be told, with the fewest buckets; None if none is known.

        Each bucket costs the host time. Of several the one with the fewest digits is taken, then the largest.
        """
        return self._best(self.caps)

    @cached_property
    def best_list(self) -> BucketsPlayed | None:
        """The best of `lists`."""
        return self._play_shortest(self.lists)

    @cached_property
    def best_found(self) -> BucketsPlayed | None:
        """The shortest of all caps, of lists and of the recorded buckets: see [Note: best found]."""
        others = [each for each in (self.cut.buckets, self.cut.cut_by_arrival()) if each]
        played = (
            self.best_list,
            self._play_shortest(self.caps),
            self._play_shortest(self._candidates(map(self._list, others))),
        )
        return min((each for each in played if each is not None), key=lambda each: each.mean_ns, default=None)

    def best_first_cap(self, cap_mb: float, below_mb: float | None = None) -> BucketsPlayed | None:
        """The best first bucket with this cap for the others, chosen as `best_cap`; perhaps of those below a size."""
        tried = self.first_caps(cap_mb)
        return self._best([each for each in tried if below_mb is None or each.caps_mb[0] < below_mb])

    @cached_property
    def caps(self) -> tuple[Candidate, ...]:
        """Each range of caps, the smallest caps first; a first bucket that has a cap of its own stays as it is. Empty
        where that one holds all gradients.
        """
        first_mb: tuple[float, ...] = ()
        first: Names = ()
        if self.cut.first_cap is not None:
            first_mb = (self.cut.first_cap / MIB,)
            first = self.cut.cut(self.cut.first_cap, sum(self.cut.sizes.values()))[:1]
        ranges = cap_ranges(self.cut.order[sum(map(len, first)) :], self.cut.sizes)
        return self._candidates(((*first_mb, each.cap_mb), (*first, *each.buckets)) for each in ranges)

    @cached_property
    def lists(self) -> tuple[Candidate, ...]:
        """Buckets that are the best for some backward passes.

        `caps_mb` are those with which each closes, as torch's DistributedDataParallel takes in `bucket_cap_mb_list`.
        """
        order, tried = self.cut.order, []
        ready = [each.ready_ns - each.ready_ns.min() for each in self.least.passes]
        if not ready:
            return ()
        middle = np.median([times - times.max() for times in ready], axis=0).astype(np.int64)  # aligned at the ends
        for counts in dict.fromkeys(map(self._best_counts, (middle - middle.min(), *ready[:_PASSES]))):
            ends = np.cumsum(counts).tolist()
            tried.append(self._list(tuple(order[end - count : end] for end, count in zip(ends, counts, strict=True))))
        return self._candidates(tried)

    def _list(self, buckets: Names) -> tuple[tuple[float, ...], Names]:
        """With the caps that give these buckets."""
        caps = closing_caps([[self.cut.sizes[name] for name in names] for names in buckets])
        return tuple(caps), buckets

    def first_caps(self, cap_mb: float) -> tuple[Candidate, ...]:
        """Every smaller first bucket with this cap for the others, the smallest first."""
        cut, tried = self.cut, []
        cap, held = int(cap_mb * MIB), 0
        for name in cut.order[: len(cut.cut(cap)[0]) - 1]:
            first_mb = cap_for(held + 1, held + cut.sizes[name])
            held += cut.sizes[name]
            tried.append(((first_mb, cap_mb), cut.cut(int(first_mb * MIB), cap)))
        return self._candidates(tried)

    def play_candidates(self, tried: Sequence[Candidate]) -> list[BucketsPlayed]:
        """All of these that can be played; of very many those whose steps could be least."""
        most = max(_MAX_MOVES // sum(map(len, self.cut.recorded.programs)), 1)
        if len(tried) > most:
            chosen = sorted(range(len(tried)), key=lambda place: tried[place].least_ns)[:most]
            tried = [tried[place] for place in sorted(chosen)]
        return [played for each in tried if (played := self._play(each)) is not None]

    def _best(self, tried: Sequence[Candidate]) -> BucketsPlayed | None:
        shortest = self._play_shortest(tried)
        if shortest is None:
            return None
        most_ns = shortest.mean_ns * (1 + TIE)
        for each in sorted(tried, key=_least_change):
            if each.least_ns <= most_ns and (played := self._play(each)) is not None and played.mean_ns <= most_ns:
                return played
        return shortest

    def _play_shortest(self, tried: Sequence[Candidate]) -> BucketsPlayed | None:
        """The one whose steps are shortest."""
        shortest: BucketsPlayed | None = None
        for each in sorted(tried, key=lambda each: each.least_ns):
            if shortest is not None and each.least_ns >= shortest.mean_ns:
                break
            played = self._play(each)
            if played is not None and (shortest is None or played.mean_ns < shortest.mean_ns):
                shortest = played
        return shortest

    def _play(self, each: Candidate) -> BucketsPlayed | None:
        """None where the ranks would launch in different orders."""
        if each.buckets not in self._spans:
            self._spans[each.buckets] = None
            with suppress(StuckError):
                self._spans[each.buckets] = self.cut.spans_ns(each.buckets)
        if (spans_ns := self._spans[each.buckets]) is None:
            return None
        mean_ns = self._mean_ns(spans_ns)
        return BucketsPlayed(caps_mb=each.caps_mb, buckets=each.buckets, spans_ns=spans_ns, mean_ns=mean_ns)

    def _mean_ns(self, spans_ns: Times) -> float:
        return float(np.average(spans_ns.mean(axis=0), weights=self._weights))

    def _best_counts(self, ready_ns: Times) -> tuple[int, ...]:
        """How many gradients each bucket holds with which computation and the last bucket end first."""
        best_ns: int | None = None
        best: tuple[int, ...] = (len(ready_ns),)
        for number, (end_ns, counts) in enumerate(launch_cuttings(self.cut, ready_ns, self.least.took_ns), start=1):
            alone_ns = int(ready_ns.max()) + 2 * number * self.cut.host_ns
            if best_ns is not None and alone_ns >= best_ns:
                break
            if best_ns is None or max(alone_ns, end_ns) < best_ns:
                best_ns, best = max(alone_ns, end_ns), counts
        return best

    def _candidates(self, tried: Iterable[tuple[tuple[float, ...], Names]]) -> tuple[Candidate, ...]:
        """Those whose T is known."""
        return tuple(
            Candidate(caps_mb=caps_mb, buckets=buckets, least_ns=self._least_ns(buckets))
            for caps_mb, buckets in tried
            if self.cut.knows(buckets)
        )

    def _least_ns(self, buckets: Names) -> float:
        if buckets == self.cut.buckets:  # these launches cost what they cost, others the mean
            return self._mean_ns(self.cut.spans_ns(buckets))
        if tuple(chain.from_iterable(buckets)) != self.cut.order:
            return 0.0  # the least is that of cuttings in one order
        return float(np.average(self.least.spans_with_ns(buckets), weights=self._weights)) * (1 - _LEAST_ERROR_SHARE)


def _least_change(each: Candidate) -> tuple[int, int, float]:
    """The order in which equally good settings are preferred: by fewest buckets, fewest digits, largest caps."""
    return len(each.buckets), sum(len(f"{cap:g}") for cap in each.caps_mb), -sum(each.caps_mb)
