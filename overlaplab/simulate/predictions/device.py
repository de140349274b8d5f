"""Runs recorded on GPUs, by anybody, behind another link: hosts and streams played again, with T by the link's formula.

What depends on the options of a training loop is not known of these programs, so nothing but the link can be changed.
The predicted run tells what streams did as operators of threads: the main stream's, the others', and the link's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from overlaplab.costs import transfer_ns
from overlaplab.costs.link import ROUNDS
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, Trace, main_stream, step_windows
from overlaplab.evidence.dependencies import device_events
from overlaplab.evidence.recorded import recorded, recorded_of_events
from overlaplab.manifest import Link
from overlaplab.simulate.device import DevicePrograms, device_programs
from overlaplab.simulate.player import Launch, Move, Note, Played, StuckError, play
from overlaplab.simulate.predictions.events import COMPUTES, LINK, Event
from overlaplab.simulate.programs.setting import Setting
from overlaplab.vocabulary import PREDICTED, label_text

__all__ = ["DevicePrediction", "predict_device"]

_LAUNCHES = 3
"""The thread of launches; those of other streams follow it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePrediction:
    """What was played; steps in ns, of each rank."""

    recorded_ns: Sequence[Sequence[int]]
    """The recorded run, played as it is."""
    predicted_ns: Sequence[Sequence[int]]
    ranks: list[list[Event]]
    """Each rank's events."""


def predict_device(run: Run, setting: Setting) -> DevicePrediction:
    """Play the run behind the setting's link. Raises `OverlaplabError` where it cannot be."""
    programs = _programs(run, setting)
    link = setting.link
    changed = programs if link is None else replace(programs, programs=tuple(_behind(run, programs, link)))
    before, after = _played(run, programs), _played(run, changed)
    return DevicePrediction(
        recorded_ns=[before.spans_ns(place) for place in programs.steps],
        predicted_ns=[after.spans_ns(place) for place in programs.steps],
        ranks=[list(_events(trace, changed, after, rank)) for rank, trace in enumerate(run.traces)],
    )


def _programs(run: Run, setting: Setting) -> DevicePrograms:
    if setting != Setting(link=setting.link):
        raise OverlaplabError("of a run on GPUs nothing but the link is predicted", path=run.path)
    world = max(trace.world_size or 1 for trace in run.traces)
    if len(run.traces) < world:
        what = f"{len(run.traces)} of {world} ranks: a prediction needs them all"
        raise OverlaplabError(what, path=run.path, remedy="Open all ranks' traces together.")
    programs = device_programs(run)
    if programs is None or len({len(step_windows(trace)) for trace in run.traces}) > 1:
        raise OverlaplabError("its traces do not tell what waited for what, or of different steps", path=run.path)
    if setting.link and not programs.members:
        raise OverlaplabError("when all ranks had come to a collective is not known of any", path=run.path)
    return programs


def _played(run: Run, programs: DevicePrograms) -> Played:
    try:
        return play(programs.programs)
    except StuckError:
        raise OverlaplabError("its ranks launch collectives in different orders", path=run.path) from None


def _behind(run: Run, programs: DevicePrograms, link: Link) -> Iterator[tuple[Move, ...]]:
    """With T by the link's formula, as of a ring of so many ranks as each collective has."""

    def moved(move: Move) -> Move:
        if not isinstance(move, Launch):
            return move
        if move.kind not in ROUNDS or move.bytes <= 0:
            what = (
                f"how long {move.kind or 'a collective of unknown kind'} would take is not known: no size is recorded"
            )
            raise OverlaplabError(what, path=run.path, remedy="Record with record_shapes=True.")
        members = replace(link, world_size=programs.members[move.key])
        return replace(move, transfer_ns=transfer_ns(move.kind, move.bytes, members))

    for program in programs.programs:
        yield tuple(map(moved, program))


def _events(trace: Trace, programs: DevicePrograms, played: Played, rank: int) -> Iterator[Event]:
    """One rank's, in order of start."""
    first = programs.steps[rank - 1] + 1 if rank else 0
    noted: dict[tuple[str, int], int] = {}
    for program, over in zip(programs.programs[first : programs.steps[rank]], played.over_ns[first:], strict=False):
        for move, at_ns in zip(program, over, strict=True):
            if isinstance(move, Note) and isinstance(move.key, tuple):
                noted[move.key[1], move.key[2]] = at_ns
    ends = played.ends_ns[programs.steps[rank]]
    steps = [
        Event(COMPUTES, f"ProfilerStep#{window.step or 0}", begin, end)
        for window, (begin, end) in zip(step_windows(trace), pairwise(ends), strict=True)
    ]
    yield from sorted((*steps, *_device_events(trace, noted)), key=lambda event: (event.start_ns, -event.end_ns))


def _device_events(trace: Trace, noted: dict[tuple[str, int], int]) -> Iterator[Event]:
    main, names = main_stream(trace), trace.events["name"]
    collectives, row_of = recorded(trace), recorded_of_events(trace)
    for place, own in enumerate(device_events(trace)):
        begin, end = noted["begun", place], noted["done", place]
        if not own.communicates:
            thread = COMPUTES if own.stream == main else _LAUNCHES + 1 + own.stream
            yield Event(thread, f"{PREDICTED}{names.iloc[own.row]}", begin, end)
            continue
        row = collectives.iloc[int(row_of[own.row])]
        told = {"kind": row["kind"] or "collective", "dtype": row["dtype"], "bytes": max(int(row["bytes"]), 0)}
        yield Event(_LAUNCHES, label_text("launch", seq=place, group="0"), begin, begin + 1)
        yield Event(LINK, label_text("comm", seq=place, **told, group="0"), begin, end)
