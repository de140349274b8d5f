"""A recorded run on GPUs as programs: of each rank its host, and each of its device's streams.

The host's program has its launches and the calls in which it waited for the device, and what it did between them; all
its threads are one, since torch's take turns (the one that calls `backward` waits for autograd's). A stream's program
has its events, each after what `evidence.dependencies` tells. Of collectives of one kernel whose last arrival is known,
T is what they took after it, and all ranks' streams play them together; others take as long as was recorded. So
programs that are played as they are give the recorded steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

from overlaplab.events import Run, Trace, launchers, once_per_run, rule_of, step_windows
from overlaplab.evidence.clocks import corrections
from overlaplab.evidence.dependencies import DeviceEvent, blocking_calls, device_events
from overlaplab.evidence.recorded import UNKNOWN_NS, recorded_of_events
from overlaplab.evidence.waits import arrivals
from overlaplab.simulate.player import End, Launch, Move, Note, Program, Wait, Work
from overlaplab.vocabulary import Rule

__all__ = ["DevicePrograms", "device_programs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePrograms:
    """The programs of all ranks' hosts and streams."""

    programs: tuple[Program, ...]
    steps: tuple[int, ...]
    """Of each rank the place of the program whose `End` moves end its steps, as its windows do."""
    members: Mapping[Hashable, int] = field(default_factory=dict)
    """How many ranks each collective that is played together has."""


@once_per_run
def device_programs(run: Run) -> DevicePrograms | None:
    """The programs; None where a trace has no device events or no steps."""
    if not run.traces or any(rule_of(trace) is not Rule.GPU or not step_windows(trace) for trace in run.traces):
        return None
    offsets = corrections(run).tolist()
    zero = min(_begin(trace) - offset for trace, offset in zip(run.traces, offsets, strict=True))
    together = _together(run)
    programs: list[Program] = []
    steps: list[int] = []
    for place, (trace, offset) in enumerate(zip(run.traces, offsets, strict=True)):
        rank = _Rank(place, trace, zero + offset, together.get(place, {}))
        programs += [rank.host(), *rank.streams(), rank.windows()]
        steps.append(len(programs) - 1)
    launches = Counter(move.key for program in programs for move in program if isinstance(move, Launch))
    return DevicePrograms(programs=tuple(programs), steps=tuple(steps), members=launches)


def _begin(trace: Trace) -> int:
    """The first launch or event."""
    called = [own.called_ns for own in device_events(trace) if own.called_ns != UNKNOWN_NS]
    return min([*called, device_events(trace)[0].start_ns])


def _together(run: Run) -> dict[int, dict[int, Launch]]:
    """By trace and row of `recorded` each collective whose last arrival is known.

    Without messages by kernels, of which one may carry several: these take as long as they took.
    """
    rows = arrivals(run)
    rows = rows[(rows["source"] < 0) & (rows["destination"] < 0)]
    rows = rows[(rows["last_ns"] != UNKNOWN_NS) & (rows["start_ns"] != UNKNOWN_NS)]
    took = (rows.groupby("match")["end_ns"].transform("max") - rows["last_ns"]).clip(lower=0)
    found: dict[int, dict[int, Launch]] = {}
    for row in rows.assign(took_ns=took).to_dict("records"):
        launch = Launch(("collective", row["match"]), row["took_ns"], row["kind"], row["bytes"])
        found.setdefault(row["trace"], {})[row["row"]] = launch
    return found


class _Rank:
    """One rank's programs; `zero` is their start, by the rank's own clock."""

    def __init__(self, place: int, trace: Trace, zero: int, together: Mapping[int, Launch]) -> None:
        self._place, self._trace, self._zero = place, trace, zero
        self._events = device_events(trace)
        self._together = self._single(together)
        late = [
            own.start_ns - own.called_ns
            for own in self._events
            if own.called_ns != UNKNOWN_NS and own.after is None and self._free_ns(own) < own.called_ns
        ]
        self._launch_ns = max(median_low(late), 0) if late else 0

    def host(self) -> list[Move]:
        """Launches, waits for the device, and the time between them."""
        points: list[tuple[int, int, Sequence[Move], int]] = []  # with where the next one begins to count
        launched: dict[int, list[int]] = {}
        calls = launchers(self._trace)
        for place, own in enumerate(self._events):
            if own.called_ns != UNKNOWN_NS:
                launched.setdefault(int(calls[own.row]), []).append(place)
        for places in launched.values():
            at_ns = self._events[places[0]].called_ns
            points.append((at_ns, 0, [Note(self._key("launched", place)) for place in places], at_ns))
        for call in blocking_calls(self._trace):
            ended_ns = self._events[call.until].end_ns
            wait = Wait(self._key("done", call.until), max(call.end_ns - ended_ns, 0))
            points.append((call.start_ns, 1, [wait], max(call.end_ns, ended_ns)))
        moves: list[Move] = []
        now = self._zero
        for at_ns, _, own_moves, then_ns in sorted(points, key=lambda point: point[:2]):
            moves += [Work(max(at_ns - now, 0)), *own_moves]
            now = max(now, then_ns)
        return moves

    def streams(self) -> Iterator[list[Move]]:
        """Each stream's events."""
        for stream in dict.fromkeys(own.stream for own in self._events):
            moves: list[Move] = []
            for place, own in enumerate(self._events):
                if own.stream == stream:
                    moves += self._event(place, own)
            yield moves

    def windows(self) -> list[Move]:
        """When each step ends, and the first begins."""
        windows = step_windows(self._trace)
        begins = {own.start_ns: place for place, own in reversed(list(enumerate(self._events)))}
        moves: list[Move] = []
        for window in windows:
            moves += [Wait(self._key("begun", begins[window.start_ns])), End()]
        return [*moves, *(Wait(self._key("done", place)) for place in self._ends(windows[-1].end_ns)), End()]

    def _ends(self, end_ns: int) -> list[int]:
        """The last event of each stream until then."""
        return list({own.stream: place for place, own in enumerate(self._events) if own.end_ns <= end_ns}.values())

    def _event(self, place: int, own: DeviceEvent) -> Iterator[Move]:
        free_ns = self._free_ns(own)
        waits: list[tuple[int, Hashable, int]] = []
        if own.called_ns != UNKNOWN_NS:
            waits.append((own.called_ns, self._key("launched", place), self._launch_ns))
        if own.after is not None:
            waits.append((self._events[own.after].end_ns, self._key("done", own.after), 0))
        ready_ns = max([free_ns, *(at_ns for at_ns, _, _ in waits)])
        late_ns = max(own.start_ns - ready_ns, 0)
        for at_ns, key, usual_ns in sorted(waits):
            held = at_ns == ready_ns and at_ns > free_ns
            yield Wait(key, late_ns if held else min(usual_ns, max(own.start_ns - at_ns, 0)))
        if ready_ns == free_ns:
            yield Work(late_ns)
        yield Note(self._key("begun", place))
        if place in self._together:
            launch = self._together[place]
            yield from (launch, Wait(launch.key))
        else:
            yield Work(max(own.end_ns - max(own.start_ns, free_ns), 0))
        yield Note(self._key("done", place))

    def _free_ns(self, own: DeviceEvent) -> int:
        """When its stream was free."""
        return self._zero if own.before is None else self._events[own.before].end_ns

    def _single(self, together: Mapping[int, Launch]) -> dict[int, Launch]:
        """By the place of its only event each collective that all ranks play together."""
        row_of = recorded_of_events(self._trace)
        places: dict[int, list[int]] = {}
        for place, own in enumerate(self._events):
            places.setdefault(int(row_of[own.row]), []).append(place)
        return {own[0]: together[row] for row, own in places.items() if row in together and len(own) == 1}

    def _key(self, word: str, place: int) -> Hashable:
        return self._place, word, place
