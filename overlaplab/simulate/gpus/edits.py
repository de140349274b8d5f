"""Edits of recorded programs of GPUs: what ranks do otherwise, as `overlaplab predict --edit` names it."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain, pairwise

from overlaplab.events import Run, step_windows
from overlaplab.evidence.dependencies import device_events
from overlaplab.evidence.passes import pass_labels, update_labels
from overlaplab.evidence.purposes import BUFFERS, UPDATED, Role
from overlaplab.evidence.sending import gatherings
from overlaplab.simulate.edits.hosts import between_marks, without_launch_overhead
from overlaplab.simulate.edits.model import GRADIENTS, halve_bytes
from overlaplab.simulate.gpus.edit import EventKey
from overlaplab.simulate.gpus.streams import DevicePrograms
from overlaplab.simulate.play_errors import refusal
from overlaplab.simulate.player import Launch, Move, Note, Program, Wait, Work, find_launches
from overlaplab.simulate.transfers import transfers

Programs = Sequence[Program]


def half_the_bytes(run: Run, programs: DevicePrograms) -> Programs | None:
    """Collectives of all ranks send half as much; None where T of other sizes is known of none."""
    times = transfers(run, run.traces[0], run.manifest.link if run.manifest else None)
    return halve_bytes(programs.programs, times.times_by_size, lambda launch: bool(launch.bytes))


def last_pass(run: Run, programs: DevicePrograms, *, replicas: bool = False) -> Programs | None:
    """Each bucket or unit is sent once per step, when it is launched last; None where none is sent more often.

    `replicas`: drop only the all-reduces of scattered gradients, which HSDP makes between replicas.
    """
    return _without_collectives(programs, _sent_again(run, programs, replicas=replicas))


def keep_gathered(run: Run, programs: DevicePrograms) -> Programs | None:
    """Units of FSDP2 that a forward pass gathered stay so for its backward pass; None where none is gathered again."""
    again: set[Hashable] = set()
    for trace, lanes in zip(run.traces, programs.ranks, strict=True):
        units = {(gather.unit, gather.microbatch) for gather, _ in gatherings(trace) if gather.phase == "forward"}
        places = {
            each.place
            for gather, sendings in gatherings(trace)
            if gather.phase == "backward" and (gather.unit, gather.microbatch) in units
            for each in sendings
        }
        again |= {launch.key for place, launch in chain.from_iterable(map(_placed_launches, lanes)) if place in places}
    return _without_collectives(programs, again)


def without_buffers(programs: DevicePrograms) -> Programs | None:
    """DDP broadcasts no buffers; None where it broadcasts none. Other collectives without a role stay."""
    return _without_collectives(programs, {each.key for each in _launches(programs) if each.what == BUFFERS})


def update_whole(programs: DevicePrograms) -> Programs | None:
    """Every rank updates all parameters, and sends none; None where optimizers are not sharded, or gradients are."""
    launches = _launches(programs)
    updated = {each.key for each in launches if each.what == UPDATED}
    return None if any(each.kind == "reduce_scatter" for each in launches) else _without_collectives(programs, updated)


def _placed_launches(lane: Program) -> Iterator[tuple[int, Launch]]:
    """The collectives of a lane, each with the place of its event in `device_events`."""
    for note, move in pairwise(lane):
        if isinstance(note, Note) and isinstance(note.key, EventKey) and isinstance(move, Launch):
            yield note.key.place, move


def _launches(programs: DevicePrograms) -> list[Launch]:
    return find_launches(chain.from_iterable(programs.programs))


def _without_collectives(programs: DevicePrograms, keys: set[Hashable]) -> Programs | None:
    """The programs without the collectives of these keys, and without what host and streams do for them alone, such as
    copying gradients into a bucket; None where there are no keys.
    """
    if not keys:
        return None
    changed: list[Program] = []
    for host, *streams in programs.ranks:
        placed = chain.from_iterable(map(_placed_launches, streams))
        places = {str(place) for place, launch in placed if launch.key in keys}
        host_moves, helper_places = _without_sending(host, places)
        changed += [host_moves, *(_without_events(stream, keys, helper_places) for stream in streams)]
    return changed


def _without_sending(host: Program, places: set[str]) -> tuple[list[Move], set[int]]:
    """The host's moves without its work for these collectives, and the places of the events that it launched in it."""
    marked = list(between_marks(host, "sending", places))
    notes = [move.key for move, inside in marked if inside and isinstance(move, Note)]
    launched = {key.place for key in notes if isinstance(key, EventKey)}
    return [move for move, inside in marked if not (inside and isinstance(move, Work))], launched


def _without_events(stream: Program, gone: set[Hashable], places: set[int]) -> list[Move]:
    """A stream without these collectives, whose events at these places take no time."""
    moves: list[Move] = []
    inside = False
    for move in stream:
        if isinstance(move, Note) and isinstance(move.key, EventKey):
            inside = move.key.word == "begun" and move.key.place in places
        if not ((inside and isinstance(move, Work)) or (isinstance(move, Launch | Wait) and move.key in gone)):
            moves.append(move)
    return moves


def _sent_again(run: Run, programs: DevicePrograms, *, replicas: bool) -> set[Hashable]:
    """The collectives of gradients that are launched again before the step ends, or its next optimizer step begins."""
    repeated: set[Hashable] = set()
    for trace, lanes in zip(run.traces, programs.ranks, strict=True):
        events, steps = device_events(trace), [window.start_ns for window in step_windows(trace)]
        updates = [label.start_ns for label in pass_labels(trace) or update_labels(trace) if label.word == "optimizer"]
        alike: dict[Hashable, list[Hashable]] = defaultdict(list)  # in order of launch
        for place, launch in chain.from_iterable(map(_placed_launches, lanes)):
            is_replicas = launch.role == Role.SCATTER and launch.kind == "all_reduce"
            if launch.role in GRADIENTS and launch.what and (is_replicas or not replicas):
                if place >= len(events):
                    raise refusal(run, "with other buckets, fewer passes that send are not played")
                event = events[place]
                since = bisect_right(steps, event.start_ns), bisect_right(updates, event.called_ns)
                alike[since, launch.kind, launch.what, launch.bytes].append(launch.key)
        repeated.update(key for keys in alike.values() for key in keys[:-1])
    return repeated


def change_hosts(programs: DevicePrograms, change: Callable[[Program, Programs], list[Move]]) -> Programs | None:
    """With the hosts changed alone, each by its program and its rank's others; None where nothing changes."""
    changed: list[Program] = []
    for host, *lanes in programs.ranks:
        changed += [change(host, lanes), *lanes]
    return None if changed == list(programs.programs) else changed


def launch_at_once(host: Program, lanes: Programs) -> list[Move]:
    """It launches in no time, from the first step's first kernel on: of a slice, what ran before that is missing."""
    begins = lanes[-1][0]  # the wait for the first step's first kernel
    assert isinstance(begins, Wait)
    assert isinstance(begins.key, EventKey)
    launched = Note(begins.key._replace(word="launched"))
    first = host.index(launched) if launched in host else 0
    return [*host[:first], *without_launch_overhead(host)[first:]]


def without_device_waits(host: Program, _lanes: Programs) -> list[Move]:
    """It waits for the device no more, but for its queue to have room: for an event to begin."""
    return [
        move
        for move in host
        if not isinstance(move, Wait) or (isinstance(move.key, EventKey) and move.key.word == "begun")
    ]


def change_lanes(programs: DevicePrograms, change: Callable[[Programs], Programs]) -> Programs | None:
    """With all ranks' hosts changed together, and their streams in turn; None where ranks have different streams."""
    ranks = programs.ranks
    if len({len(rank) for rank in ranks}) > 1:
        return None
    lanes = [change(lane) for lane in zip(*ranks, strict=True)]
    return [lane for rank in zip(*lanes, strict=True) for lane in rank]
