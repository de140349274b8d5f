"""Other buckets of torch's DDP in anybody's run on GPUs: which collectives each rank launches then, and when.

[Note: other buckets]
DDP fills its buckets in the order in which gradients arrive, and closes each at its cap (`changes.assign`). The host
launches a bucket with its last gradient, at the end of that one's hooks. Its stream then waits for what the compute
stream had been given so far. After the backward pass the compute stream waits for each bucket, before it copies its
first gradient back. Where copies are not told apart it waits where it did for the recorded bucket of that gradient.
What a launch costs the host, and how soon streams go on, are medians of what was recorded.

[Note: T]
A bucket that was recorded with the same gradients keeps its T. Of others it is the line through the transfers of their
group's all-reduces (`transfer_lines`), which may be off by what those transfers are off. Where all are of one size,
T is taken to be in proportion to the bytes, down to DDP's default cap: which part of it is latency is not known then,
so that T of larger buckets is too long by it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from overlaplab.analyses.transfer_lines import Fitted, fitted_lines
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, Trace, launchers, main_stream, matching, once_per_run
from overlaplab.evidence.dependencies import DeviceEvent, device_events
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.evidence.sending import COPIED_BACK
from overlaplab.simulate.assign import CAP_MB, MIB, assign
from overlaplab.simulate.gpus.edit import Edit, Held, Sent, held
from overlaplab.simulate.gpus.passes import BucketedPass, bucketed_passes
from overlaplab.simulate.player import Launch
from overlaplab.simulate.transfers import UNSTEADY

_GRAIN_NS = 2_000
"""An event that begins so much before a bucket ends may have waited for it: clocks agree to within this."""
_FEWEST = 3
"""Transfers, from which on a line through them also tells how far it is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recut:
    """Other buckets."""

    edits: tuple[Edit, ...]
    """Of each trace; none where no bucket is another one."""
    doubt_ns: Mapping[Hashable, int]
    """By how much T of each collective may be off, with 95 % certainty; see [Note: T]."""


def gradient_sizes(run: Run) -> list[int]:
    """The bytes of the gradients of a backward pass, in order of arrival. Raises `OverlaplabError` as `recut` does."""
    return bucketed_passes(run)[0][0].sizes


def recut(run: Run, caps: Sequence[int], *, fitted: bool = True) -> Recut:
    """With buckets that close at these caps, in bytes; the last one serves on. See [Note: other buckets].

    T of other buckets is 0 unless it is to be `fitted`. Raises `OverlaplabError` where the traces do not tell which
    gradients were sent when, or how long others would take.
    """
    passes = bucketed_passes(run)
    lines = {(own.ranks, own.kind): own for own in fitted_lines(run)} if fitted else {}
    cuts = {own.key: assign(range(len(own.sizes)), dict(enumerate(own.sizes)), caps) for each in passes for own in each}
    if all(cuts[own.key] == own.cut for each in passes for own in each):
        return Recut(edits=(), doubt_ns={})
    members: dict[Hashable, set[int]] = defaultdict(set)
    for trace, each in zip(run.traces, passes, strict=True):
        for own in each:
            members[own.key].add(trace.rank or 0)
    launches: dict[Hashable, list[Launch]] = {}
    doubt_ns: dict[Hashable, int] = {}
    for own in (own for each in passes for own in each):
        if own.key in launches:
            continue
        launches[own.key] = []
        for number, names in enumerate(cuts[own.key]):
            size, ranks = sum(own.sizes[name] for name in names), tuple(sorted(members[own.key]))
            took_ns = 0
            if fitted and names not in own.cut:
                line = _line(run, lines.get((ranks, "all_reduce")), caps)
                took_ns = line.time_ns(size)
                doubt_ns["bucket", own.key, number] = round(line.half_ns or 0)
            what = str(number)
            launches[own.key].append(Launch(("bucket", own.key, number), took_ns, "all_reduce", size, "bucket", what))
    edits = tuple(_Editor(run, place, each, launches, cuts).edit() for place, each in enumerate(passes))
    return Recut(edits=edits, doubt_ns=doubt_ns)


def _line(run: Run, line: Fitted | None, caps: Sequence[int]) -> Fitted:
    """Raises `OverlaplabError` where a line does not tell T of other sizes."""
    what = None
    if line is None:
        what = "how long its all-reduces take is not known"
    elif line.transfers["bytes"].nunique() < 2 and min(caps) < CAP_MB * MIB:
        what = f"its all-reduces are of one size: how long others would take is not known, below {CAP_MB:g} MiB"
    elif line.half_ns is None:
        what = f"{len(line.transfers)} transfers of its all-reduces do not tell how long others would take"
    elif line.deviation > UNSTEADY:
        what = f"its all-reduces do not take as long as their sizes say (off by {line.deviation:.0%})"
    if what is not None or line is None:
        raise OverlaplabError(what or "", path=run.path, remedy="Name a link with --link.")
    return line


@once_per_run
def is_of_one_size(run: Run) -> bool:
    """Whether all all-reduces whose T is known are, as those of a model in one bucket."""
    sizes = {size for own in fitted_lines(run) if own.kind == "all_reduce" for size in own.transfers["bytes"].tolist()}
    return len(sizes) == 1


class _Editor:
    """Makes one rank's edit."""

    def __init__(
        self,
        run: Run,
        place: int,
        passes: Sequence[BucketedPass],
        launches: Mapping[Hashable, Sequence[Launch]],
        cuts: Mapping[Hashable, Sequence[Sequence[int]]],
    ) -> None:
        self.bucketed_passes, self._launches, self._cuts = passes, launches, cuts
        trace = run.traces[place]
        self._events = device_events(trace)
        main = main_stream(trace)
        computed = [(own.called_ns, own_place) for own_place, own in enumerate(self._events) if own.stream == main]
        self._computed = sorted(each for each in computed if each[0] != UNKNOWN_NS)
        self._copied = _copied(trace, self._events)
        places = [each for own in passes for each in own.places]
        ranges = [each for own in passes for each in own.launched]
        hooks_end_ns = [bucket.gradients[-1].hooks_end_ns for own in passes for bucket in own.backward.buckets]
        self._left_ns = median_low(until - end for until, (_, end) in zip(hooks_end_ns, ranges, strict=True))
        self._took_ns = median_low(end - start for start, end in ranges)
        self._call_ns = median_low(
            self._events[each].called_ns - start for each, (start, _) in zip(places, ranges, strict=True)
        )
        late: dict[Held, list[int]] = defaultdict(list)
        for each in places:
            by, late_ns = held(self._events, self._events[each])
            late[by].append(late_ns)
        self._late_ns = {by: median_low(each) for by, each in late.items()}
        if "event" in late:  # a stream goes on as soon after its own event as after another one's
            self._late_ns.setdefault("stream", self._late_ns["event"])
        if "stream" in late:
            self._late_ns.setdefault("event", self._late_ns["stream"])
        after = {place for place, own in enumerate(self._events) if own.after in set(places)} - set(places)
        woken = [late_ns for by, late_ns in (held(self._events, self._events[each]) for each in after) if by == "event"]
        self._wake_ns = median_low(woken) if woken else 0
        self._sent: list[Sent] = []
        self._gone: dict[int, int] = {}
        self._spared: list[tuple[int, int]] = []
        self._freed: set[int] = set()
        self._waits: dict[int, list[int]] = defaultdict(list)

    def edit(self) -> Edit:
        """The rank's edit."""
        ends = [own.backward.start_ns for own in self.bucketed_passes[1:]]
        for own, until_ns in zip(self.bucketed_passes, [*ends, None], strict=True):
            self._edit(own, until_ns)
        self._freed |= {place for place, own in enumerate(self._events) if own.after in self._gone and self._early(own)}
        return Edit(
            sent=self._sent,
            gone=self._gone,
            spared=self._spared,
            waits=self._waits,
            freed=frozenset(self._freed),
            late_ns=self._late_ns,
            wake_ns=self._wake_ns,
        )

    def _edit(self, own: BucketedPass, until_ns: int | None) -> None:
        """Of one backward pass; the next one begins at `until_ns`."""
        buckets, gradients = (
            own.backward.buckets,
            [each for bucket in own.backward.buckets for each in bucket.gradients],
        )
        first_of, recorded_cut = {}, own.cut
        launched = {bucket.gradients[-1].number - 1: number for number, bucket in enumerate(buckets)}
        place_of: dict[int, int] = {}
        """The bucket that sends a gradient, by the place of its event."""
        for launch, names in zip(self._launches[own.key], self._cuts[own.key], strict=True):
            if names in recorded_cut:
                place = own.places[recorded_cut.index(list(names))]
                self._wait(place, own.launched[launched[names[-1]]][0])
            else:
                place = len(self._events) + len(self._sent)
                stream = self._events[own.places[0]].stream
                if (number := launched.get(names[-1])) is not None:
                    at_ns, end_ns = own.launched[number]
                    took_ns, call_ns = end_ns - at_ns, self._events[own.places[number]].called_ns - at_ns
                else:
                    last = gradients[names[-1]]
                    at_ns = max(last.hooks_end_ns - self._left_ns, last.at_ns)
                    took_ns, call_ns = self._took_ns, self._call_ns
                sent = Sent(launch=launch, stream=stream, at_ns=at_ns, call_ns=call_ns, took_ns=took_ns)
                self._sent.append(sent)
                self._wait(place, at_ns)
            first_of[place] = names[0]
            place_of |= dict.fromkeys(names, place)
        for names, place, spared in zip(recorded_cut, own.places, own.launched, strict=True):
            if place not in first_of:
                self._gone[place] = place_of[names[-1]]
                self._spared.append(spared)
        joins = self._joins(own, until_ns)
        self._freed |= {join for join in joins if join is not None and self._events[join].after in self._gone}
        for place, first in first_of.items():
            if (join := joins[first]) is not None:
                self._waits[join].append(place)

    def _early(self, own: DeviceEvent) -> bool:
        """Whether it is launched before what takes the place of the bucket that it seems to have waited for."""
        place = self._gone[own.after or 0]
        if place < len(self._events):
            return own.called_ns < self._events[place].called_ns
        return own.called_ns < self._sent[place - len(self._events)].at_ns

    def _wait(self, place: int, at_ns: int) -> None:
        """A bucket waits for what the compute stream had been given by then."""
        before = bisect_right(self._computed, (at_ns, -1))
        if before:
            self._waits[place].append(self._computed[before - 1][1])

    def _joins(self, own: BucketedPass, until_ns: int | None) -> list[int | None]:
        """By gradient the event of the compute stream that waits for its bucket, if it is the bucket's first."""
        end_ns = own.backward.end_ns
        copied = [place for at_ns, place in self._copied if at_ns >= end_ns and (until_ns is None or at_ns < until_ns)]
        if len(copied) == len(own.sizes):
            return [*copied]
        after = self._computed[bisect_right(self._computed, (end_ns, -1)) :]
        joins: list[int | None] = []
        number = 0
        for bucket, place in zip(own.backward.buckets, own.places, strict=True):
            while (
                number < len(after) and self._events[after[number][1]].start_ns < self._events[place].end_ns - _GRAIN_NS
            ):
                number += 1
            joins += [after[number][1] if number < len(after) else None] * len(bucket.gradients)
        return joins


def _copied(trace: Trace, events: Sequence[DeviceEvent]) -> list[tuple[int, int]]:
    """When each range began in which DDP copied a gradient back, and the first event that it launched."""
    table = trace.events
    ranges = table[matching(table["name"], lambda name: name == COPIED_BACK)]
    spans = sorted(zip(ranges["ts_ns"].tolist(), (ranges["ts_ns"] + ranges["dur_ns"]).tolist(), strict=True))
    calls = launchers(trace)
    called = sorted((own.called_ns, place) for place, own in enumerate(events) if calls[own.row] >= 0)
    found: list[tuple[int, int]] = []
    for start_ns, end_ns in spans:
        place = bisect_right(called, (start_ns, -1))
        if place < len(called) and called[place][0] < end_ns:
            found.append((start_ns, called[place][1]))
    return found
