"""*Other* collectives, such as of metrics or flags: left out, merged, launched earlier, waited for later.

Those of gradients and parameters have a role (see `model`), others have none. What a loop launches between its passes
it does not need at once, or so it is assumed; what is launched within a forward or a backward pass, as by
SyncBatchNorm, the next layer needs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from itertools import chain, groupby

from msgspec.structs import replace

from overlaplab.costs.link import MESSAGE
from overlaplab.evidence.purposes import BUFFERS
from overlaplab.simulate.edits.hosts import mean_work_ns
from overlaplab.simulate.player import (
    End,
    Launch,
    Mark,
    Move,
    Program,
    Wait,
    Work,
    change_duration,
    change_launches,
    find_launches,
)
from overlaplab.words import count, kind_word, size_exact

BARRIER = "barrier"
_MIN_LONG_SHARE = 0.02
"""What occupies the link for a larger share of a step may hold up what is queued behind it."""


def without_launches(program: Program, keys: Collection[Hashable]) -> list[Move]:
    """Without these collectives, and without what launching them cost the host.

    A launch costs its range before it and about as much after it. A rank that waits at once for what it launched loses
    the second part while it waits, and saves the first alone.
    """
    moves: list[Move] = []
    saved_ns = 0
    for move, then in zip(program, _next_but_work(program), strict=True):
        if isinstance(move, Launch) and move.key in keys:
            waits_at_once = isinstance(then, Wait) and then.key == move.key
            saved_ns += move.host_ns if waits_at_once else 2 * move.host_ns
        elif isinstance(move, Work) and saved_ns:
            less_ns = min(saved_ns, move.ns)
            saved_ns -= less_ns
            moves.append(change_duration(move, move.ns - less_ns))
        elif not (isinstance(move, Wait) and move.key in keys):
            moves.append(move)
    return moves


def drop_launches(programs: Sequence[Program], keys: Collection[Hashable]) -> list[list[Move]] | None:
    """All programs without these; None where there are none."""
    return [without_launches(program, keys) for program in programs] if keys else None


def other_collectives(program: Program, *, between_passes: bool = False) -> list[Launch]:
    """Those that `_is_other`, perhaps between passes alone; none where no passes are marked: they are not told then."""
    launches: list[Launch] = []
    marked = inside = False
    for move in program:
        if isinstance(move, Mark) and move.word in _BORDERS:
            marked, inside = True, _BORDERS[move.word]
        elif isinstance(move, Launch) and _is_other(move) and not (between_passes and inside):
            launches.append(move)
    return launches if marked else []


def _is_other(launch: Launch) -> bool:
    """Whether it moves neither gradients nor parameters.

    A barrier moves nothing, and is not to be waited for later; a message is needed by its receiver.
    """
    return not launch.role and not launch.carries and launch.kind not in (BARRIER, MESSAGE)


_BORDERS = {"forward": True, "forward_end": False, "backward": True, "backward_end": False, "kept_end": False}
"""Whether what follows a mark is within a pass."""


_BEFORE = "before the forward pass"
_PLACES = {
    "forward": "within the forward pass",
    "forward_end": "after the forward pass",
    "backward": "within the backward pass",
    "backward_end": "after the backward pass",
    "kept_end": "after the backward pass",
    "optimizer": "within the optimizer step",
    "optimizer_end": "after the optimizer step",
}


def name_collectives(programs: Sequence[Program], keys: Collection[Hashable]) -> str:
    """Those of these that the first rank with any launches in a step: `6 all-reduces of 4 B after the forward pass`;
    empty without any.
    """
    program = next((each for each in programs if any(launch.key in keys for launch in find_launches(each))), None)
    if program is None:
        return ""
    places: set[str] = set()
    steps: list[list[Launch]] = []
    place = _BEFORE
    for move in program:
        if isinstance(move, End):
            steps.append([])
            place = _BEFORE
        elif isinstance(move, Mark):
            place = _PLACES.get(move.word, place)
        elif isinstance(move, Launch) and move.key in keys and steps:
            steps[-1].append(move)
            places.add(place)
    launched = [step for step in steps[:-1] if step]
    kinds = {launch.kind for step in launched for launch in step}
    sizes = {launch.bytes for step in launched for launch in step}
    noun = kind_word(kinds.pop()) if len(kinds) == 1 else "collective"
    number = max(map(len, launched), default=0)
    words = [noun if number == 1 else count(number, noun)]
    words += [f"of {size_exact(sizes.pop())}"] if len(sizes) == 1 and sizes != {0} else []
    words += places if len(places) == 1 else []
    words += [f"in {len(launched)} of {len(steps) - 1} steps"] if len(launched) < len(steps) - 1 else []
    return " ".join(words)


def left_out(programs: Sequence[Program], kind: str | None = None) -> list[list[Move]] | None:
    """Without the other collectives, or those of a kind, such as barriers or buffers' broadcasts; None without any."""
    launches = [launch for program in programs for launch in other_collectives(program)]
    if kind is not None:
        unnamed = (launch for program in programs for launch in find_launches(program, ""))
        launches += (launch for launch in unnamed if launch.kind == BARRIER or launch.carries == BUFFERS)
    return drop_launches(programs, {launch.key for launch in launches if kind in (None, launch.kind)})


Takes = Callable[[str, int], int | None]
"""T of a kind and bytes; None where that is unknown."""


def merge_collectives(programs: Sequence[Program], takes: Takes) -> list[Program] | None:
    """Other collectives of one kind and the same ranks that follow each other between passes, as one in place of the
    last; None without.

    Where T of so many bytes is unknown, it is the longest of those merged, and for each further byte what those of the
    largest collective of all take.
    """
    ranks: dict[Hashable, list[int]] = defaultdict(list)
    for rank, program in enumerate(programs):
        for launch in find_launches(program):
            ranks[launch.key].append(rank)
    alike = (groupby(group, lambda launch: ranks[launch.key]) for group in _neighbours(programs[0]))
    groups = [group for _, launches in chain.from_iterable(alike) if len(group := list(launches)) > 1]
    if not groups:
        return None
    largest = max(find_launches(programs[0]), key=lambda launch: launch.bytes)
    last: dict[Hashable, Launch] = {}
    gone: set[Hashable] = set()
    for group in groups:
        num_bytes = sum(launch.bytes for launch in group)
        took_ns = takes(group[-1].kind, num_bytes)
        if took_ns is None:
            longest = max(group, key=lambda launch: launch.transfer_ns)
            further = (num_bytes - longest.bytes) / max(largest.bytes, 1)
            took_ns = longest.transfer_ns + round(further * largest.transfer_ns)
        last[group[-1].key] = replace(group[-1], bytes=num_bytes, transfer_ns=max(took_ns, 0))
        gone.update(launch.key for launch in group[:-1])
    into = {launch.key: group[-1].key for group in groups for launch in group[:-1]}
    left = [without_launches(_wait_for_merged(program, into), gone) for program in programs]
    return [change_launches(program, lambda launch: last.get(launch.key, launch)) for program in left]


def _wait_for_merged(program: Program, into: Mapping[Hashable, Hashable]) -> list[Move]:
    """Who waits for a collective that is merged waits for what it is merged into, once that is launched."""
    moves: list[Move] = []
    launched: set[Hashable] = set()
    due: dict[Hashable, Wait] = {}
    waits = {move.key: move for move in program if isinstance(move, Wait)}
    for move in program:
        moves.append(move)
        if isinstance(move, Wait) and move.key in into:
            wait = waits.get(into[move.key]) or Wait(into[move.key], move.wake_ns)
            if wait.key in launched:
                moves.append(wait)
            else:
                due[wait.key] = wait
        elif isinstance(move, Launch):
            launched.add(move.key)
            moves += [due.pop(move.key)] if move.key in due else []
    return moves


def _neighbours(program: Program) -> Iterator[list[Launch]]:
    """Other collectives of one kind between which there is nothing but work and waits for them."""
    between = {launch.key for launch in other_collectives(program, between_passes=True)}
    group: list[Launch] = []
    for move in program:
        if isinstance(move, Launch) and move.key in between and (not group or move.kind == group[-1].kind):
            group.append(move)
        elif isinstance(move, Launch | End) or (isinstance(move, Mark) and move.word not in ("host", "host_end")):
            yield group
            group = [move] if isinstance(move, Launch) and move.key in between else []
    yield group


def wait_at_step_end(programs: Sequence[Program]) -> list[list[Move]] | None:
    """Other collectives that are launched between passes, waited for when the step ends; None where there are none."""
    keys = {launch.key for program in programs for launch in other_collectives(program, between_passes=True)}
    return _wait_later(programs, lambda _: keys, 0)


def wait_a_step_later(programs: Sequence[Program]) -> list[list[Move]] | None:
    """What `after_the_update` launches, and a rank waits for in the same step, waited for when the next step ends."""
    return _wait_later(programs, after_the_update, 1)


def _wait_later(
    programs: Sequence[Program], keys_of: Callable[[Program], Collection[Hashable]], ends_ahead: int
) -> list[list[Move]] | None:
    """With waits for these collectives put off to the step's end, or to so many ends beyond it; None without any."""
    changed: list[list[Move]] = []
    for program in programs:
        keys = keys_of(program)
        moves: list[Move] = []
        waits: list[list[Move]] = [[] for _ in range(ends_ahead + 1)]  # those due at the next end first
        launched: set[Hashable] = set()
        for move in program:
            if isinstance(move, Wait) and move.key in launched:
                waits[-1].append(move)
                continue
            if isinstance(move, Launch) and move.key in keys:
                launched.add(move.key)
            if isinstance(move, End):
                moves += waits.pop(0)
                waits.append([])
                launched = set() if ends_ahead else launched
            moves.append(move)
        changed.append([*moves, *chain.from_iterable(waits)])
    return changed if changed != [list(program) for program in programs] else None


def after_the_update(program: Program) -> set[Hashable]:
    """What has no role or averages parameters, and is launched between a step's optimizer and what follows."""
    keys: set[Hashable] = set()
    updated = False
    for move in program:
        if isinstance(move, Mark):
            begins = move.word in ("forward", "backward", "optimizer")
            updated = move.word == "optimizer_end" or (updated and not begins)
        elif isinstance(move, End):
            updated = False
        elif isinstance(move, Launch) and updated:
            averages = move.role == "parameters" and move.kind == "all_reduce"  # the next pass needs what gathers them
            keys |= {move.key} if averages or _is_other(move) else set()
    return keys


def launch_early(programs: Sequence[Program]) -> list[list[Move]] | None:
    """Other collectives between passes that take long beside the slowest rank's work, launched when the step begins;
    None without any.
    """
    between = chain.from_iterable(other_collectives(program, between_passes=True) for program in programs)
    least_ns = _MIN_LONG_SHARE * max(map(mean_work_ns, programs))
    early = {launch.key for launch in between if launch.transfer_ns > least_ns}
    changed: list[list[Move]] = []
    for program in programs:
        moves: list[Move] = []
        begun = 0
        for move in program:
            if isinstance(move, End):
                begun = len(moves) + 1
            if isinstance(move, Launch) and move.key in early:
                moves.insert(begun, move)
                begun += 1
            else:
                moves.append(move)
        changed.append(moves)
    return changed if early else None


def _next_but_work(program: Program) -> list[Move | None]:
    """After each move the next one that is no `Work`."""
    following: Move | None = None
    after: list[Move | None] = []
    for move in reversed(program):
        after.append(following)
        following = following if isinstance(move, Work) else move
    return after[::-1]
