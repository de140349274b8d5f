"""The rules of docs/exposed.md in plain Python, ns by ns between any two events: what `overlaplab.exposed` must say.

It takes from the run what a trace holds: each rank's busy times and steps, its collectives with their matches, what
each is for, and how much a pipeline's schedule leaves idle. Which collective a moment belongs to and why it was exposed
is decided here, by the page's words alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from overlaplab import Run
from overlaplab.axes import find_axis
from overlaplab.events import (
    Trace,
    Window,
    WorkKind,
    activity,
    counting_as,
    launchers,
    main_stream,
    rule_of,
    step_windows,
    thread_numbers,
)
from overlaplab.evidence.clocks import corrections
from overlaplab.evidence.group_pairing import ROOTED
from overlaplab.evidence.matching import match_collectives
from overlaplab.evidence.pipelines import IdleBySchedule, idle_by_schedule
from overlaplab.evidence.purposes import purposes
from overlaplab.evidence.recorded import UNKNOWN_NS, recorded_collectives
from overlaplab.evidence.stages import stage_labels
from overlaplab.evidence.waits import numbered_arrivals
from overlaplab.vocabulary import Rule

GRAIN_NS = 20_000
STALL_NS = 5_000_000
WAKE_NS = 1_000_000
NEVER = 2**62
Spans = list[tuple[int, int]]
Moments = list[tuple[int, int, "One | None"]]
Key = tuple[int | None, int | None, str, int | None]
"""Rank, step, cause, collective."""


@dataclass(eq=False)
class One:
    """A collective of one rank, by the rank's own clock."""

    index: int
    match: int
    role: str
    kind: tuple[Any, ...]
    start: int
    end: int
    arrived: int
    asked: int
    """When it could have started, as it was launched."""
    host: int
    ready: int | None
    backward_end: int | None
    launched_after: bool
    moves: int | None = None
    """When its last rank arrived; None where that is unknown."""
    late: int = 0
    queued: int = 0
    tail: bool = False
    alone: bool = False
    """Nothing is computed from when it could start to its end."""
    message: bool = False
    """From one rank to another."""
    of_pipeline: bool = False
    """A message of a group that is described as a pipeline's, or of a stage in one that names no axis."""
    stream: int = -1
    """The device's, where streams work at once."""

    @property
    def gradients(self) -> bool:
        return self.role in ("bucket", "scatter")


class Rank:
    def __init__(self, trace: Trace, ones: list[One]) -> None:
        self.trace = trace
        self.ones = sorted(ones, key=lambda one: (one.start, one.index))
        busy = activity(trace)
        self.compute: Spans = [(a, b) for a, b in busy.compute.tolist()]
        self.link: Spans = [(a, b) for a, b in busy.communication.tolist()]
        self.windows = step_windows(trace)
        self.blocked = _blocked(trace, self.compute)
        self.idle: dict[Window, IdleBySchedule] = {}
        """What a pipeline's schedule leaves idle."""

    def resumes(self, at: int) -> int:
        place = bisect_left(self.compute, (at, 0))
        return self.compute[place][0] if place < len(self.compute) else NEVER

    def slept(self, end: int, resumes: int) -> bool:
        """It computes again long after the last collective that had ended by then, and no call blocked it at the end of
        this one."""
        ended = [one.end for one in self.ones if one.end - GRAIN_NS <= resumes]
        if resumes == NEVER or not ended or resumes - max(ended) <= WAKE_NS:
            return False
        return not any(start < end <= until for start, until in self.blocked)

    def follower(self, one: One) -> One | None:
        found = min(
            (other for other in self.ones if other.start >= one.end), key=lambda other: other.start, default=None
        )
        return found if found is not None and _queues(one, found) else None


def _blocked(trace: Trace, compute: Spans) -> Spans:
    """In which calls the host waits: that synchronise with a GPU; else labelled ones, and launches after which its
    thread begins nothing and nothing computes before the collective has ended."""
    events = _rows(trace.events[["name", "category", "ts_ns", "dur_ns", "pid", "tid"]])
    spans = [(event["ts_ns"], event["ts_ns"] + event["dur_ns"], event) for event in events]
    if rule_of(trace) is Rule.GPU:
        runtime = ("cuda_runtime", "cuda_driver")
        return [(a, b) for a, b, e in spans if e["category"] in runtime and "synchronize" in e["name"].lower()]
    words = ("engine::wait", "engine::gather_wait", "engine::param_gather_wait")
    found = [(a, b) for a, b, event in spans if event["name"].split(" ")[0] in words]
    begun: dict[int, list[int]] = {}
    for (start, _, _), thread in zip(spans, thread_numbers(trace.events).tolist(), strict=True):
        begun.setdefault(thread, []).append(start)
    for starts in begun.values():
        starts.sort()
    for what in _rows(recorded_collectives(trace)):
        launch, end = what["launch_ns"], what["end_ns"]
        if UNKNOWN_NS in (launch, end):
            continue
        starts = begun.get(what["thread"], [])
        place = bisect_right(starts, what["launch_end_ns"])
        if (place == len(starts) or starts[place] >= end - GRAIN_NS) and not _shared(compute, launch, end):
            found.append((launch, end))
    return found


def _queues(first: One, second: One) -> bool:
    """Whether the second may have waited for the first's end: streams of a device work at once."""
    same = first.stream == second.stream or (first.kind[0] == second.kind[0] != "")
    return same or second.start - first.end <= GRAIN_NS


def expected(run: Run) -> Counter[Key]:
    """How many ns each rank, step, cause and collective has."""
    ranks = [Rank(trace, ones) for trace, ones in zip(run.traces, _ones(run), strict=True)]
    for rank in ranks:
        _delays(rank)
    for (place, step), idle in idle_by_schedule(run).items():
        ranks[place].idle |= {window: idle for window in ranks[place].windows if window.step == step}
    _over_all_ranks(run, ranks)
    found: Counter[Key] = Counter()
    for rank in ranks:
        if rule_of(rank.trace) is not Rule.UNRECORDED:
            _tails(rank)
            for window in rank.windows:
                found.update(_of_window(rank, window))
    return found


def _ones(run: Run) -> list[list[One]]:
    pairs, index = match_collectives(run), numbered_arrivals(run).set_index(["trace", "row"])["index"]
    found: list[list[One]] = [[] for _ in run.traces]
    emulated = run.manifest is not None and run.manifest.emulated_link is not None
    for place, trace in enumerate(run.traces):
        table, told = recorded_collectives(trace), purposes(trace)
        own = pairs[pairs["trace"] == place].set_index("row")
        along = ("pp", "") if stage_labels(trace) else ("pp",)
        for row, (what, purpose) in enumerate(zip(_rows(table), _rows(told), strict=True)):
            if what["start_ns"] == UNKNOWN_NS:
                continue
            found[place].append(
                One(
                    index=int(index[place, row]),
                    match=int(own["match"][row]),
                    role=purpose["role"],
                    kind=(what["group"], what["kind"]),
                    start=what["start_ns"],
                    end=what["end_ns"],
                    arrived=what["arrived_ns"],
                    asked=_reached(trace, what),
                    host=what["start_ns"] if what["host_ns"] == UNKNOWN_NS else what["host_ns"],
                    ready=None if purpose["ready_ns"] == UNKNOWN_NS else purpose["ready_ns"],
                    backward_end=None if purpose["backward_end_ns"] == UNKNOWN_NS else purpose["backward_end_ns"],
                    launched_after=purpose["after_backward"],
                    message=bool(own["message"][row]),
                    of_pipeline=find_axis(what["group_description"]) in along and what["kind"] == "send_recv",
                    stream=what["stream"] if rule_of(trace) is Rule.GPU and not emulated else -1,
                )
            )
    return found


def _rows(table: Any) -> list[dict[str, Any]]:
    return table.to_dict("records")  # type: ignore[no-any-return]


def _reached(trace: Trace, what: dict[str, Any]) -> int:
    """Launched; on a GPU in device time: when the compute stream had come so far."""
    at: int = what["launch_ns"]
    if at == UNKNOWN_NS:
        return int(what["start_ns"])
    if rule_of(trace) is Rule.GPU:
        events, calls = trace.events, launchers(trace)
        on_main = (
            counting_as(trace, WorkKind.COMPUTE) & (events["stream"].to_numpy() == main_stream(trace)) & (calls >= 0)
        )
        called = events["ts_ns"].to_numpy()[calls]
        before = on_main & (called < at)
        ends = (events["ts_ns"] + events["dur_ns"]).to_numpy()[before]
        at = max(at, int(ends.max(initial=at)))
    return min(at, int(what["start_ns"]))


def _delays(rank: Rank) -> None:
    """How late each was launched for its input, and how long it queued then."""
    gathers = [one for one in rank.ones if one.role == "gather"]
    for one in rank.ones:
        since = one.asked
        if one.ready is not None:
            since = one.ready
            if one.role == "gather" and (place := gathers.index(one)):
                since = max(since, gathers[place - 1].start)  # the one ahead
            since = min(since, one.asked)
        one.late = one.asked - since - _shared(rank.link, since, one.asked)
        before = (other.end for other in rank.ones if other.end <= one.start and _queues(other, one))
        ended = max(before, default=one.asked)
        one.queued = max(0, ended - one.asked)


def has_link_ranges(trace: Trace) -> bool:
    """Whether an emulated link's thread has ranges on a host: whatever they carry begins with the last rank."""
    return rule_of(trace) is Rule.CPU and trace.events["name"].str.startswith("engine::comm ").any()


def _over_all_ranks(run: Run, ranks: list[Rank]) -> None:
    """When the last rank of each collective arrived, and had arrived if none had been late, or had queued."""
    offsets = [int(offset) for offset in corrections(run)]
    pairs = numbered_arrivals(run)
    by = pairs.groupby("match")
    kinds = by["kind"].first()
    all_wait = by["message"].all() | ~kinds.isin([*ROOTED, ""])
    if all(has_link_ranges(trace) for trace in run.traces):
        all_wait |= ~kinds.isin(["send_recv", ""])
    whole = by["complete"].all() & all_wait
    names = pairs.drop_duplicates("match").set_index("match")[["group", "kind"]]
    together: dict[int, list[tuple[One, int]]] = {}
    for rank, offset in zip(ranks, offsets, strict=True):
        for one in rank.ones:
            together.setdefault(one.match, []).append((one, offset))
            one.kind = tuple(names.loc[one.match])
    for match, members in together.items():
        if whole[match]:
            last = max(one.arrived - offset for one, offset in members)
            in_time = max(one.arrived - offset - one.late for one, offset in members)
            free = max(one.arrived - offset - one.late - one.queued for one, offset in members)
            for one, offset in members:
                came = max(min(each.arrived, each.start) - other for each, other in members)
                one.moves = min(max(came + offset, one.start), one.end)
                one.late, one.queued = last - in_time, in_time - free


def _tails(rank: Rank) -> None:
    first: dict[int, int] = {}
    latest: dict[tuple[Any, ...], int] = {}
    hidden: set[tuple[Any, ...]] = set()
    begins, hosts = [w.start_ns for w in rank.windows], [w.host_start_ns for w in rank.windows]
    for one in rank.ones:
        step = bisect_right(hosts, one.host)
        alike = (bisect_right(begins, one.start), *one.kind)
        if one.role == "gather":
            first[step] = min(first.get(step, NEVER), one.end)
        latest[alike] = max(latest.get(alike, one.start), one.start)
        if _shared(rank.compute, one.start, one.end):
            hidden.add(alike)
    for one in rank.ones:
        alike = (bisect_right(begins, one.start), *one.kind)
        if one.gradients:
            one.tail = one.backward_end is None or one.end >= one.backward_end
        elif one.role == "gather":
            one.tail = one.asked < first[bisect_right(hosts, one.host)]
        elif not one.role:
            one.tail = latest[alike] == one.start and alike in hidden
        one.alone = not _shared(rank.compute, one.asked, one.end)


def _of_window(rank: Rank, window: Window) -> Counter[Key]:
    start, end = window.start_ns, window.end_ns
    moments = _moments(rank, start, end)
    moving = [(one.moves, one.end) for one in rank.ones if one.moves is not None]
    excess = max(0, _length(moving, start, end) - _length(rank.compute, start, end))
    found: Counter[Key] = Counter()
    if window in rank.idle:
        moments = _messages(rank, window, moments, found)
    else:
        for a, b, one in moments:
            if one is not None and one.of_pipeline:
                found[_key(rank, window, "waiting for send", one)] += b - a
        moments = [(a, b, one) for a, b, one in moments if one is None or not one.of_pipeline]
    left: list[tuple[int, int, One]] = []
    for a, b, one in reversed(moments):
        if one is None:
            found[_key(rank, window, "unknown", None)] += b - a
        elif _does(one, a) == 2:
            found[_key(rank, window, "straggler wait", one)] += b - a
        elif _does(one, a) == 0 and excess:
            bound = min(excess, b - a)
            excess -= bound
            found[_key(rank, window, "link-bound", one)] += bound
            left += [(a, b - bound, one)]
        else:
            left += [(a, b, one)]
    behind: Counter[One] = Counter()
    later: list[tuple[int, int, One]] = []
    for a, b, one in left:
        resumes = rank.resumes(a)
        early = one.end - resumes
        stalled = rule_of(rank.trace) is Rule.CPU and one.gradients and one.tail and early <= min(STALL_NS, b - a - 1)
        if (early > GRAIN_NS and not stalled) or (one.gradients and not one.tail and rank.slept(one.end, resumes)):
            found[_key(rank, window, "compute gap", one)] += b - a
        elif _blocks(one):
            found[_key(rank, window, "blocking", one)] += b - a
        else:
            follower = rank.follower(one) if one.gradients and not one.tail else None
            if follower is not None and follower.end - GRAIN_NS <= resumes:
                split = min(max(follower.asked, a), b)
                found[_key(rank, window, "queued", follower)] += b - split
                behind[follower] += b - split
                later.append((a, split, one))
            else:
                later.append((a, b, one))
    for a, b, one in later:
        late = one.end - one.late
        queued = late - (one.queued - behind[one])
        for cause, x, y in (
            ("late launch", max(a, late), b),
            ("queued", max(a, queued), min(b, late)),
            (_last(one), a, min(b, late, queued)),
        ):
            if x < y:
                found[_key(rank, window, cause, one)] += y - x
    return +found


def _messages(rank: Rank, window: Window, moments: Moments, found: Counter[Key]) -> Moments:
    """The moments without those of a pipeline's messages, whose causes are counted."""
    bubble, uneven = rank.idle[window].bubble_ns, rank.idle[window].imbalance_ns
    others: Moments = []
    for a, b, one in moments:
        if one is None or not one.message or one.moves is None:
            others.append((a, b, one))
            continue
        waits = b - a if _does(one, a) == 2 else 0
        parts = {"pipeline bubble": min(bubble, waits)}
        parts["stage imbalance"] = min(uneven, waits - parts["pipeline bubble"])
        parts["waiting for send"] = b - a - sum(parts.values())
        bubble, uneven = bubble - parts["pipeline bubble"], uneven - parts["stage imbalance"]
        found.update({_key(rank, window, cause, one): ns for cause, ns in parts.items()})
    return others


def _blocks(one: One) -> bool:
    if one.gradients:
        return one.launched_after
    return one.role != "gather" and one.alone and not one.tail


def _last(one: One) -> str:
    if one.tail:
        return "tail"
    if one.gradients:
        return "blocking"
    return "unknown" if one.moves is None else "link-bound"


def _key(rank: Rank, window: Window, cause: str, one: One | None) -> Key:
    return rank.trace.rank, window.step, cause, None if one is None else one.index


def _does(one: One, at: int) -> int:
    """Transfers, unknown, waits."""
    return 1 if one.moves is None else 0 if at >= one.moves else 2


def _moments(rank: Rank, start: int, end: int) -> list[tuple[int, int, One | None]]:
    """The step's exposed time in order, cut wherever anything changes, and the collective of each piece."""
    borders = {start, end}
    for spans in (rank.compute, rank.link, [(one.start, one.end) for one in rank.ones]):
        borders |= {at for span in spans for at in span if start < at < end}
    borders |= {one.moves for one in rank.ones if one.moves is not None and start < one.moves < end}
    found: list[tuple[int, int, One | None]] = []
    active: list[One] = []
    coming = iter([*rank.ones, None])
    after = next(coming)
    for a, b in pairwise(sorted(borders)):
        active = [one for one in active if one.end > a]
        while after is not None and after.start <= a:
            active += [after] if after.end > a else []
            after = next(coming)
        if not _holds(rank.link, a) or _holds(rank.compute, a):
            continue
        resumes = rank.resumes(a)
        order = {id(one): place for place, one in enumerate(active)}
        found.append(
            (
                a,
                b,
                min(
                    active, key=lambda one: (_does(one, a), one.end - GRAIN_NS > resumes, order[id(one)]), default=None
                ),
            )
        )
    return found


def _holds(spans: Spans, at: int) -> bool:
    place = bisect_right(spans, (at, NEVER)) - 1
    return place >= 0 and at < spans[place][1]


def _shared(spans: Spans, start: int, end: int) -> int:
    """How much of disjoint spans in order lies within."""
    found = 0
    for place in range(max(0, bisect_right(spans, (start, NEVER)) - 1), len(spans)):
        if spans[place][0] >= end:
            break
        found += max(0, min(spans[place][1], end) - max(spans[place][0], start))
    return found


def _length(spans: Spans, start: int, end: int) -> int:
    """How long any spans together cover of this time."""
    covered, reach = 0, start
    for a, b in sorted(spans):
        a, b = max(a, reach), min(b, end)
        if b > a:
            covered, reach = covered + b - a, b
    return covered
