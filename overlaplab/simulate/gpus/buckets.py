"""Other buckets of torch's DDP in anybody's run on GPUs: which collectives each rank launches then, and when.

[Note: other buckets], [Note: T]: docs/design/plays.md, DDP's caps on GPUs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from math import inf
from statistics import median_low

from msgspec import Struct

from overlaplab.analyses.transfer_lines import Fitted, fitted_lines
from overlaplab.costs.link import UNSTEADY
from overlaplab.events import Run, Trace, launchers, main_stream, matching, once_per_run
from overlaplab.evidence.dependencies import DeviceEvent, device_events
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.evidence.sending import COPIED_BACK
from overlaplab.simulate.fill_buckets import CAP_MB, MIB, assign
from overlaplab.simulate.gpus.edit import AddedLaunch, Held, RankEdit, last_dependency
from overlaplab.simulate.gpus.passes import BucketedPass, bucketed_passes
from overlaplab.simulate.play_errors import refusal
from overlaplab.simulate.player import Launch

_CLOCK_TOLERANCE_NS = 2_000
"""An event that begins so much before a bucket ends may have waited for it: clocks agree to within this."""


class DeviceEdits(Struct, frozen=True, kw_only=True):
    """What all ranks do otherwise with other buckets or another prefetch depth."""

    edits: tuple[RankEdit, ...]
    """The edit of each trace; none where no bucket is another one."""
    doubt_ns: Mapping[Hashable, int]
    """By how much T of each collective may be off, with 95 % certainty; see [Note: T]."""


def gradient_sizes(run: Run) -> list[int]:
    """The bytes of the gradients of a bucketed pass, in order of arrival. Raises `OverlaplabError` as `recut` does."""
    return bucketed_passes(run)[0][0].sizes


def recut(run: Run, caps: Sequence[int], *, fitted: bool = True) -> DeviceEdits:
    """The edits with which buckets close at these caps, in bytes, the last of which applies to all further buckets.

    See [Note: other buckets].
    T of other buckets is 0 unless it is to be `fitted`. Raises `OverlaplabError` where the traces do not tell which
    gradients were sent when, or how long others would take.
    """
    passes = bucketed_passes(run)
    every = [bucketed for each in passes for bucketed in each]
    lines = {(line.ranks, line.kind): line for line in fitted_lines(run)} if fitted else {}
    cuts = {each.key: assign(range(len(each.sizes)), dict(enumerate(each.sizes)), caps) for each in every}
    if all(cuts[each.key] == each.cut for each in every):
        return DeviceEdits(edits=(), doubt_ns={})
    members: dict[Hashable, set[int]] = defaultdict(set)
    for trace, of_trace in zip(run.traces, passes, strict=True):
        for each in of_trace:
            members[each.key].add(trace.rank or 0)
    launches: dict[Hashable, list[Launch]] = {}
    doubt_ns: dict[Hashable, int] = {}
    for each in every:
        if each.key in launches:
            continue
        launches[each.key] = []
        for number, bucket in enumerate(cuts[each.key]):
            key, size, took_ns = ("bucket", each.key, number), sum(each.sizes[gradient] for gradient in bucket), 0
            if fitted and bucket not in each.cut:
                line = _checked_line(run, lines.get((tuple(sorted(members[each.key])), "all_reduce")), caps)
                took_ns, doubt_ns[key] = line.time_ns(size), round(line.half_ns or 0)
            launches[each.key].append(Launch(key, took_ns, "all_reduce", size, "bucket", str(number)))
    edits = tuple(_BucketEditor(run, place, each, launches, cuts).edit() for place, each in enumerate(passes))
    return DeviceEdits(edits=edits, doubt_ns=doubt_ns)


def _checked_line(run: Run, line: Fitted | None, caps: Sequence[int]) -> Fitted:
    """The line; raises `OverlaplabError` where it does not tell T of other sizes."""
    what = None
    if line is None:
        what = "how long its all-reduces take is not known"
    elif line.transfers["bytes"].nunique() < 2 and min(caps) < CAP_MB * MIB:
        what = f"its all-reduces are of one size: how long others would take is not known, below {CAP_MB:g} MiB"
    elif line.half_ns is None:
        what = f"{len(line.transfers)} transfers of its all-reduces do not show how long others would take"
    elif line.deviation > UNSTEADY:
        what = f"its all-reduces do not take as long as their sizes say (off by {line.deviation:.0%})"
    if what is not None or line is None:
        raise refusal(run, what or "", "Name a link (--link; on the page What if: Link).")
    return line


@once_per_run
def is_of_one_size(run: Run) -> bool:
    """Whether all all-reduces whose T is known have one size, as where one bucket holds the whole model."""
    lines = [line for line in fitted_lines(run) if line.kind == "all_reduce"]
    return len({size for line in lines for size in line.transfers["bytes"].tolist()}) == 1


class _BucketEditor:
    """Makes one rank's edit."""

    def __init__(
        self,
        run: Run,
        place: int,
        passes: Sequence[BucketedPass],
        launches: Mapping[Hashable, Sequence[Launch]],
        cuts: Mapping[Hashable, Sequence[Sequence[int]]],
    ) -> None:
        self._passes, self._launches, self._cuts = passes, launches, cuts
        trace = run.traces[place]
        self._events, main = device_events(trace), main_stream(trace)
        computed = [(event.called_ns, at) for at, event in enumerate(self._events) if event.stream == main]
        self._computed = sorted(each for each in computed if each[0] != UNKNOWN_NS)
        self._copies_back = _copies_back(trace, self._events)
        places = [each for bucketed in passes for each in bucketed.places]
        ranges = [each for bucketed in passes for each in bucketed.launched]
        last = [bucket.gradients[-1] for bucketed in passes for bucket in bucketed.backward.buckets]
        self._after_launch_ns = median_low(each.hooks_end_ns - end for each, (_, end) in zip(last, ranges, strict=True))
        self._took_ns = median_low(end - start for start, end in ranges)
        called_ns = [self._events[each].called_ns for each in places]
        self._call_ns = median_low(at_ns - start for at_ns, (start, _) in zip(called_ns, ranges, strict=True))
        late: dict[Held, list[int]] = defaultdict(list)
        for each in places:
            by, late_ns = last_dependency(self._events, self._events[each])
            late[by].append(late_ns)
        self._late_ns = {by: median_low(each) for by, each in late.items()}
        if "event" in late:  # a stream goes on as soon after its own event as after another one's
            self._late_ns.setdefault("stream", self._late_ns["event"])
        if "stream" in late:
            self._late_ns.setdefault("event", self._late_ns["stream"])
        waiting = {place for place, event in enumerate(self._events) if event.after in set(places)} - set(places)
        held = [last_dependency(self._events, self._events[each]) for each in waiting]
        woken = [late_ns for by, late_ns in held if by == "event"]
        self._wake_ns = median_low(woken) if woken else 0
        self._sent: list[AddedLaunch] = []
        self._gone: dict[int, int] = {}
        self._spared: list[tuple[int, int]] = []
        self._freed: set[int] = set()
        self._waits: dict[int, list[int]] = defaultdict(list)

    def edit(self) -> RankEdit:
        next_begins = [bucketed.backward.start_ns for bucketed in self._passes[1:]]
        for bucketed, until_ns in zip(self._passes, [*next_begins, None], strict=True):
            self._edit(bucketed, until_ns)
        self._freed |= {
            place
            for place, event in enumerate(self._events)
            if event.after in self._gone and self._is_launched_early(event)
        }
        return RankEdit(
            sent=self._sent,
            gone=self._gone,
            spared=self._spared,
            waits=self._waits,
            freed=frozenset(self._freed),
            late_ns=self._late_ns,
            wake_ns=self._wake_ns,
        )

    def _edit(self, bucketed: BucketedPass, until_ns: int | None) -> None:
        """Edit one bucketed pass; the next one begins at `until_ns`."""
        buckets, recorded_cut = bucketed.backward.buckets, bucketed.cut
        gradients = [each for bucket in buckets for each in bucket.gradients]
        # By a bucket's last gradient, which it is launched with, its number.
        recorded_number = {bucket.gradients[-1].number - 1: number for number, bucket in enumerate(buckets)}
        place_of: dict[int, int] = {}
        """The place of the event that sends each gradient."""
        first_of: dict[int, int] = {}
        """The first gradient of a bucket, by the place of its event."""
        for launch, new_bucket in zip(self._launches[bucketed.key], self._cuts[bucketed.key], strict=True):
            if new_bucket in recorded_cut:
                place = bucketed.places[recorded_cut.index(list(new_bucket))]
                self._wait(place, bucketed.launched[recorded_number[new_bucket[-1]]][0])
            else:
                place = len(self._events) + len(self._sent)
                stream = self._events[bucketed.places[0]].stream
                if (number := recorded_number.get(new_bucket[-1])) is not None:
                    at_ns, end_ns = bucketed.launched[number]
                    took_ns, call_ns = end_ns - at_ns, self._events[bucketed.places[number]].called_ns - at_ns
                else:
                    last = gradients[new_bucket[-1]]
                    at_ns = max(last.hooks_end_ns - self._after_launch_ns, last.at_ns)
                    took_ns, call_ns = self._took_ns, self._call_ns
                sent = AddedLaunch(launch=launch, stream=stream, at_ns=at_ns, call_ns=call_ns, took_ns=took_ns)
                self._sent.append(sent)
                self._wait(place, at_ns)
            first_of[place] = new_bucket[0]
            place_of |= dict.fromkeys(new_bucket, place)
        for old_bucket, place, spared in zip(recorded_cut, bucketed.places, bucketed.launched, strict=True):
            if place not in first_of:
                self._gone[place] = place_of[old_bucket[-1]]
                self._spared.append(spared)
        joins = self._joins(bucketed, until_ns)
        self._freed |= {join for join in joins if join is not None and self._events[join].after in self._gone}
        for place, first in first_of.items():
            if (join := joins[first]) is not None:
                self._waits[join].append(place)

    def _is_launched_early(self, event: DeviceEvent) -> bool:
        """Whether an event is launched before the bucket that replaces the one that it seems to have waited for."""
        place = self._gone[event.after or 0]
        if place < len(self._events):
            return event.called_ns < self._events[place].called_ns
        return event.called_ns < self._sent[place - len(self._events)].at_ns

    def _wait(self, place: int, at_ns: int) -> None:
        """A bucket waits for what the compute stream had been given by then."""
        before = bisect_right(self._computed, (at_ns, -1))
        if before:
            self._waits[place].append(self._computed[before - 1][1])

    def _joins(self, bucketed: BucketedPass, until_ns: int | None) -> list[int | None]:
        """By gradient: the place of the main stream's event that waits for its bucket, if the gradient is its first."""
        end_ns = bucketed.backward.end_ns
        last_ns = inf if until_ns is None else until_ns
        copied = [place for at_ns, place in self._copies_back if end_ns <= at_ns < last_ns]
        if len(copied) == len(bucketed.sizes):
            return [*copied]
        after = self._computed[bisect_right(self._computed, (end_ns, -1)) :]
        joins: list[int | None] = []
        number = 0
        for bucket, place in zip(bucketed.backward.buckets, bucketed.places, strict=True):
            while (
                number < len(after)
                and self._events[after[number][1]].start_ns < self._events[place].end_ns - _CLOCK_TOLERANCE_NS
            ):
                number += 1
            joins += [after[number][1] if number < len(after) else None] * len(bucket.gradients)
        return joins


def _copies_back(trace: Trace, events: Sequence[DeviceEvent]) -> list[tuple[int, int]]:
    """When each range began in which DDP copied a gradient back, and the first event that it launched."""
    table = trace.events
    ranges = table[matching(table["name"], lambda name: name == COPIED_BACK)]
    spans = sorted(zip(ranges["ts_ns"].tolist(), (ranges["ts_ns"] + ranges["dur_ns"]).tolist(), strict=True))
    calls = launchers(trace)
    called = sorted((event.called_ns, place) for place, event in enumerate(events) if calls[event.row] >= 0)
    copies: list[tuple[int, int]] = []
    for start_ns, end_ns in spans:
        place = bisect_right(called, (start_ns, -1))
        if place < len(called) and called[place][0] < end_ns:
            copies.append((start_ns, called[place][1]))
    return copies
