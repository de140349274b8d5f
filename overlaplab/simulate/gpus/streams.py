"""A recorded run on GPUs as programs: of each rank its host, and each of its device's streams.

docs/design/plays.md, Runs on GPUs. What a rank launches instead of what was recorded is a `RankEdit`, as `buckets`
makes it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from statistics import median_low
from typing import NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from overlaplab.events import Run, Trace, launchers, once_per_run, rule_of, step_windows
from overlaplab.evidence.clocks import corrections
from overlaplab.evidence.dependencies import DeviceEvent, blocking_calls, device_events, full_queues
from overlaplab.evidence.host_work import host_pauses, host_work
from overlaplab.evidence.purposes import purposes
from overlaplab.evidence.recorded import UNKNOWN_NS, recorded_collectives, recorded_of_events
from overlaplab.evidence.sending import sendings
from overlaplab.evidence.waits import arrivals
from overlaplab.intervals import length_before
from overlaplab.simulate.gpus.edit import AddedLaunch, EventKey, Moved, RankEdit
from overlaplab.simulate.player import End, Launch, Mark, Move, Note, Played, Program, Wait, Work, find_launches
from overlaplab.vocabulary import Rule


class DevicePrograms(Struct, frozen=True, kw_only=True):
    """The programs of all ranks' hosts and streams."""

    programs: tuple[Program, ...]
    steps: tuple[int, ...]
    """The place of each rank's last program, whose `End` moves are the borders of the recorded steps."""
    members: Mapping[Hashable, int] = {}
    """How many ranks each collective that is played together has."""

    @property
    def ranks(self) -> list[list[Program]]:
        """The programs of each rank, its host's first."""
        edges = [0, *(place + 1 for place in self.steps)]
        return [list(self.programs[begin:end]) for begin, end in pairwise(edges)]

    def spans_ns(self, played: Played) -> NDArray[np.int64]:
        """How long each step of each rank took in a play of these, of shape (ranks, steps)."""
        return np.array([played.spans_ns(place) for place in self.steps], dtype=np.int64)


@once_per_run
def device_programs(run: Run) -> DevicePrograms | None:
    """The programs; None where a trace has no device events or no steps."""
    return edited_programs(run, ())


def edited_programs(run: Run, edits: Sequence[RankEdit]) -> DevicePrograms | None:
    """The programs as `device_programs` has them, with an edit for each trace, or none at all."""
    if not run.traces or any(rule_of(trace) is not Rule.GPU or not step_windows(trace) for trace in run.traces):
        return None
    offsets = corrections(run).tolist()
    zero = min(_begin(trace) - offset for trace, offset in zip(run.traces, offsets, strict=True))
    programs: list[Program] = []
    steps: list[int] = []
    for place, (trace, offset) in enumerate(zip(run.traces, offsets, strict=True)):
        edit = edits[place] if edits else RankEdit()
        rank = _RankPrograms(place, trace, zero + offset, played_together(run)[place], edit)
        programs += [rank.host(), *rank.streams(), rank.windows()]
        steps.append(len(programs) - 1)
    launches = find_launches(chain.from_iterable(programs))
    members = Counter(launch.key for launch in launches if is_played_together(launch))
    return DevicePrograms(programs=tuple(programs), steps=tuple(steps), members=members)


NotePlaces: TypeAlias = dict[tuple[str, int], tuple[int, int]]
"""By word (`launched`, `begun`, `done`) and place of an event: the program and the place in it of its note."""


def note_places(programs: DevicePrograms, rank: int) -> NotePlaces:
    """Where a rank's events are noted."""
    first = programs.steps[rank - 1] + 1 if rank else 0
    return {
        (move.key.word, move.key.place): (number, place)
        for number in range(first, programs.steps[rank] + 1)
        for place, move in enumerate(programs.programs[number])
        if isinstance(move, Note) and isinstance(move.key, EventKey)
    }


def _begin(trace: Trace) -> int:
    """The earliest launch or start of a device event, by the trace's clock."""
    called = [event.called_ns for event in device_events(trace) if event.called_ns != UNKNOWN_NS]
    return min([*called, device_events(trace)[0].start_ns])


ALONE = "alone"
"""The first part of a collective's key where the other ranks' arrivals are not known."""


def is_played_together(launch: Launch) -> bool:
    """Whether its ranks' streams play a collective together."""
    return not (isinstance(launch.key, tuple) and launch.key[0] == ALONE)


@once_per_run
def played_together(run: Run) -> tuple[Mapping[int, Launch], ...]:
    """Each trace's collectives of one event whose last arrival is known, by its event's place; without messages."""
    rows = arrivals(run)
    rows = rows[(rows["source"] < 0) & (rows["destination"] < 0)]
    rows = rows[rows["all_wait"] & (rows["last_ns"] != UNKNOWN_NS) & (rows["start_ns"] != UNKNOWN_NS)]
    took = (rows.groupby("match")["end_ns"].transform("max") - rows["last_ns"]).clip(lower=0)
    together: dict[int, dict[int, Launch]] = {}
    for row in rows.assign(took_ns=took).to_dict("records"):
        launch = Launch(("collective", row["match"]), row["took_ns"], row["kind"], row["bytes"])
        together.setdefault(row["trace"], {})[row["row"]] = launch
    return tuple(_collectives_of_one_event(trace, together.get(place, {})) for place, trace in enumerate(run.traces))


def _collectives_of_one_event(trace: Trace, together: Mapping[int, Launch]) -> dict[int, Launch]:
    rows = recorded_of_events(trace)[[event.row for event in device_events(trace)]].tolist()
    events = Counter(rows)
    return {place: together[row] for place, row in enumerate(rows) if events[row] == 1 and row in together}


class _HostPoint(NamedTuple):
    """What the host does at a recorded time; of points at one time the lowest `order` comes first."""

    at_ns: int
    order: int
    moves: Sequence[Move]
    then_ns: int = 0
    """The recorded time from which its work counts again, where that is later."""


class _RankPrograms:
    """One rank's programs; `zero` is their start, by the rank's own clock."""

    def __init__(self, place: int, trace: Trace, zero: int, together: Mapping[int, Launch], edit: RankEdit) -> None:
        self._place, self._trace, self._zero = place, trace, zero
        self._events, self._together, self._edit = device_events(trace), together, edit
        self._row_of, self._purposes = recorded_of_events(trace), purposes(trace)
        self._recorded = recorded_collectives(trace)
        self._paused_ns = length_before(host_pauses(trace))
        self._called = sorted((event.called_ns, place) for place, event in enumerate(self._events))
        self._moved = {
            place: (move, move.at_ns + at_ns - move.start_ns)
            for move in edit.moved
            for at_ns, place in self._called_within(move)
        }
        """By place of an event in a moved range: the range, and when the event is called then."""
        delays_ns = [
            event.start_ns - event.called_ns
            for event in self._events
            if event.called_ns != UNKNOWN_NS
            and (event.after is None or self._events[event.after].end_ns < event.called_ns)
            and self._free_ns(event) < event.called_ns
        ]
        self._launch_delay_ns = max(median_low(delays_ns), 0) if delays_ns else 0
        """The median delay from a call to its event, of events that nothing else held up."""

    def host(self) -> list[Move]:
        """Launches, waits for the device, and the time between them."""
        points: list[_HostPoint] = []
        launched: dict[int, list[int]] = {}
        calls = launchers(self._trace)
        for place, event in enumerate(self._events):
            if event.called_ns != UNKNOWN_NS and place not in self._edit.gone and place not in self._moved:
                launched.setdefault(int(calls[event.row]), []).append(place)
        for places in launched.values():
            at_ns = self._events[places[0]].called_ns
            points.append(_HostPoint(at_ns, 0, [Note(self._key("launched", place)) for place in places]))
        for call in blocking_calls(self._trace):
            ended_ns = self._events[call.until].end_ns
            wait = Wait(self._done_key(call.until), max(call.end_ns - ended_ns, 0))
            place = self._edit.gone.get(call.until, -1)
            is_later = place >= len(self._events) and self._added_launch(place).at_ns > call.start_ns
            moves_then: list[Move] = [] if is_later else [wait]  # it cannot wait for what it launches later
            points.append(_HostPoint(call.start_ns, 1, moves_then, max(call.end_ns, ended_ns)))
        for call in full_queues(self._trace):
            if call.until not in self._edit.gone:
                wake_ns = max(call.end_ns - self._events[call.until].start_ns, 0)
                wait = Wait(self._key("begun", call.until), wake_ns)
                points.append(_HostPoint(call.start_ns, 1, [wait], call.end_ns))
        spared = [*self._edit.spared, *((each.start_ns, each.end_ns) for each in self._edit.moved)]
        points += [_HostPoint(start_ns, 0, [], end_ns) for start_ns, end_ns in spared]
        points += [_HostPoint(each.at_ns, 2, list(self._launches(each))) for each in self._edit.moved]
        for label in host_work(self._trace):
            points.append(_HostPoint(label.start_ns, 3, [Mark("host", label.fields["name"])]))
            points.append(_HostPoint(label.end_ns, -1, [Mark("host_end", label.fields["name"])]))
        for each in sendings(self._trace):
            points.append(_HostPoint(each.start_ns, 3, [Mark("sending", str(each.place))]))
            points.append(_HostPoint(each.end_ns, -1, [Mark("sending_end", str(each.place))]))
        for place, sent in enumerate(self._edit.sent, start=len(self._events)):
            note = Note(self._key("launched", place))
            points.append(_HostPoint(sent.at_ns, 2, [Work(sent.call_ns), note, Work(sent.took_ns - sent.call_ns)]))
        moves: list[Move] = []
        now = self._zero
        for point in sorted(points, key=lambda point: (point.at_ns, point.order)):
            if point.at_ns > now:
                moves.append(Work(point.at_ns - now, self._paused_ns(point.at_ns) - self._paused_ns(now)))
            moves += point.moves
            now = max(now, point.at_ns, point.then_ns)
        return moves

    def _launches(self, moved: Moved) -> Iterator[Move]:
        """What the host does in a range that it comes to at another time."""
        now = moved.start_ns
        for at_ns, place in self._called_within(moved):
            if self._moved[place][0] is moved:
                yield Work(at_ns - now)
                yield Note(self._key("launched", place))
                now = at_ns
        yield Work(moved.end_ns - now)

    def _called_within(self, moved: Moved) -> list[tuple[int, int]]:
        """When the events that the host launches in a range are called, and their places, in order."""
        begin, end = bisect_left(self._called, (moved.start_ns, 0)), bisect_left(self._called, (moved.end_ns + 1, 0))
        return self._called[begin:end]

    def streams(self) -> Iterator[list[Move]]:
        for stream in dict.fromkeys(event.stream for event in self._events):
            stream_places = [place for place, event in enumerate(self._events) if event.stream == stream]
            called_ns = [UNKNOWN_NS if each in self._moved else self._events[each].called_ns for each in stream_places]
            launched = accumulate(called_ns, max)
            sent = [place for place, each in enumerate(self._edit.sent, len(self._events)) if each.stream == stream]
            recorded = zip(launched, stream_places, strict=True)
            called = [(self._moved[each][1] if each in self._moved else at_ns, each) for at_ns, each in recorded]
            called += [(self._added_launch(place).at_ns + self._added_launch(place).call_ns, place) for place in sent]
            moves: list[Move] = []
            for _, place in sorted(called, key=lambda each: each[0]):
                if place >= len(self._events):
                    moves += self._added_moves(place)
                elif place not in self._edit.gone:
                    moves += self._event(place, self._events[place])
            yield moves

    def windows(self) -> list[Move]:
        """When each step ends, and the first begins."""
        windows = step_windows(self._trace)
        begins = {event.start_ns: place for place, event in reversed(list(enumerate(self._events)))}
        moves: list[Move] = []
        for window in windows:
            moves += [Wait(self._key("begun", begins[window.start_ns])), End()]
        return [*moves, *(Wait(self._done_key(place)) for place in self._ends(windows[-1].end_ns)), End()]

    def _ends(self, end_ns: int) -> list[int]:
        """The place of each stream's last event that is over at `end_ns`."""
        over = [place for place, event in enumerate(self._events) if event.end_ns <= end_ns]
        return list({self._events[place].stream: place for place in over}.values())

    def _event(self, place: int, event: DeviceEvent) -> Iterator[Move]:
        free_ns = self._free_ns(event)
        waits: list[tuple[int, Hashable, int]] = []  # when what it waited for was over, its key, the usual delay after
        if event.called_ns != UNKNOWN_NS:
            waits.append((event.called_ns, self._key("launched", place), self._launch_delay_ns))
        if event.after is not None:
            waits.append((self._events[event.after].end_ns, self._done_key(event.after), 0))
        ready_ns = max([free_ns, *(at_ns for at_ns, _, _ in waits)])
        late_ns = max(event.start_ns - ready_ns, 0)
        if place in self._edit.freed:
            del waits[-1]  # the one for another stream's event
        waits_anew = place in self._edit.freed or (place in self._edit.waits and place in self._together)
        if waits_anew and ready_ns > free_ns:  # now its stream may hold it up, after which it begins as late as others
            yield Work(min(self._edit.late_ns.get("stream", 0), event.start_ns - free_ns))
        if ready_ns == free_ns:
            yield Work(late_ns)
        for at_ns, key, usual_ns in sorted(waits):
            was_last = at_ns == ready_ns and at_ns > free_ns
            yield Wait(key, late_ns if was_last else min(usual_ns, max(event.start_ns - at_ns, 0)))
        for other in self._edit.waits.get(place, ()):
            yield Wait(self._done_key(other), self._edit.wake_ns)
        yield Note(self._key("begun", place))
        took_ns = max(event.end_ns - max(event.start_ns, free_ns), 0)
        if event.communicates:
            launch = self._launch(place, event, took_ns)
            yield from (launch, Wait(launch.key))
        else:
            yield Work(took_ns)
        yield Note(self._key("done", place))

    def _launch(self, place: int, event: DeviceEvent, took_ns: int) -> Launch:
        """A collective, with all ranks if these are known, and what it moves."""
        row = int(self._row_of[event.row])
        alone = Launch((ALONE, self._place, place), took_ns, self._recorded["kind"].iloc[row])
        role, what = (self._purposes[name].iloc[row] for name in ("role", "what"))
        return replace(self._together.get(place, alone), role=role, what=what)

    def _added_moves(self, place: int) -> Iterator[Move]:
        launch, late_ns = self._added_launch(place).launch, self._edit.late_ns
        yield Work(late_ns.get("stream", 0))
        yield Wait(self._key("launched", place), late_ns.get("launch", self._launch_delay_ns))
        for other in self._edit.waits.get(place, ()):
            yield Wait(self._done_key(other), late_ns.get("event", 0))
        yield from (Note(self._key("begun", place)), launch, Wait(launch.key), Note(self._key("done", place)))

    def _added_launch(self, place: int) -> AddedLaunch:
        return self._edit.sent[place - len(self._events)]

    def _done_key(self, place: int) -> Hashable:
        """When the event at a place is over, or what takes its place."""
        return self._key("done", self._edit.gone.get(place, place))

    def _free_ns(self, event: DeviceEvent) -> int:
        """When its stream was free."""
        return self._zero if event.before is None else self._events[event.before].end_ns

    def _key(self, word: str, place: int) -> EventKey:
        return EventKey(self._place, word, place)
