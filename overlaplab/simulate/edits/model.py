"""Collectives of a model's gradients, parameters and buffers: left out, waited for later, of fewer bytes, or without
the parameters that get no gradient, which DDP sends all the same, with the others of their bucket.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from overlaplab.evidence.purposes import BUFFERS, LOOP_GRADIENTS, Role
from overlaplab.simulate.edits.collectives import Takes, drop_launches, without_launches
from overlaplab.simulate.player import End, Launch, Mark, Move, Program, Wait, change_launches, find_launches
from overlaplab.simulate.transfers import halved_ns

GRADIENTS = ("bucket", "scatter", "replicas")
"""Roles of collectives that average gradients."""


def last_pass_only(programs: Sequence[Program], roles: Collection[str] = GRADIENTS) -> list[list[Move]] | None:
    """Gradients, the same by name and size, are sent in a step's last backward pass alone; None where they are so.

    `roles`: which of their collectives that concerns; of HSDP the all-reduces between replicas alone are `replicas`.
    """
    keys: set[Hashable] = set()
    for program in programs:
        alike: dict[Hashable, list[Hashable]] = defaultdict(list)  # in order of launch
        for move in program:
            if isinstance(move, Launch) and move.role in roles and move.what is not None:
                alike[move.role, move.what, move.bytes].append(move.key)
            elif isinstance(move, End) or (isinstance(move, Mark) and move.word == "optimizer"):
                keys.update(key for same in alike.values() for key in same[:-1])
                alike.clear()
    return drop_launches(programs, keys)


def keep_gathered(programs: Sequence[Program]) -> list[list[Move]] | None:
    """A unit that a forward pass gathered stays so for its backward pass; None where none is gathered again."""
    keys: set[Hashable] = set()
    for program in programs:
        gathered: set[str] = set()  # for a forward pass
        for move in program:
            if isinstance(move, End):
                gathered.clear()
            elif isinstance(move, Launch) and move.what is not None and move.role in ("gather", "scatter"):
                unit, *others = move.what.split(" ")  # of a gather its microbatch and phase, where they are known
                if move.role == "gather" and (unit not in gathered or others[-1:] == ["forward"]):
                    gathered.add(unit)
                else:
                    gathered.discard(unit)
                    keys |= {move.key} if move.role == "gather" else set()
    return drop_launches(programs, keys)


def halve_bytes(
    programs: Sequence[Program],
    times_by_size: Callable[[str], Callable[[int], int] | None],
    applies: Callable[[Launch], bool] = lambda launch: bool(launch.role),
) -> list[Program] | None:
    """What `applies` tells sends half as much; None where T of other sizes, `times_by_size`, is known of no kind."""
    kinds = {each.kind for each in find_launches(chain.from_iterable(programs)) if each.kind and applies(each)}
    takes_by_kind = {kind: takes for kind in kinds if (takes := times_by_size(kind)) is not None}

    def half(launch: Launch) -> Launch:
        if launch.kind not in takes_by_kind or not applies(launch):
            return launch
        transfer_ns = halved_ns(launch.transfer_ns, launch.bytes, takes_by_kind[launch.kind])
        return replace(launch, transfer_ns=transfer_ns, bytes=launch.bytes // 2)

    return [change_launches(program, half) for program in programs] if takes_by_kind else None


def wait_at_pass_end(programs: Sequence[Program]) -> list[list[Move]] | None:
    """Buckets that the host waits for before it launches the next one, waited for when their backward pass ends; None
    where it waits for none so.
    """
    changed: list[list[Move]] = []
    for program in programs:
        moves: list[Move] = []
        late: list[Move] = []
        last: Launch | None = None
        waited: int | None = None  # the place of the wait for the last bucket
        inside = False
        for move in program:
            if isinstance(move, Mark) and move.word in ("backward", "backward_end", "kept_end"):
                moves += late
                late, last, waited, inside = [], None, None, move.word == "backward"
            if inside and isinstance(move, Launch) and move.role == "bucket":
                late += [] if waited is None else [moves.pop(waited)]
                last, waited = move, None
            elif isinstance(move, Wait) and last is not None:
                waited = len(moves) if move.key == last.key else None
                last = None
            moves.append(move)
        changed.append([*moves, *late])
    return changed if changed != [list(program) for program in programs] else None


def without_buffers(programs: Sequence[Program]) -> list[list[Move]] | None:
    """DDP broadcasts no buffers; None where it broadcasts none."""
    launches = (launch for program in programs for launch in find_launches(program))
    return drop_launches(programs, {launch.key for launch in launches if launch.carries == BUFFERS})


def update_whole(programs: Sequence[Program]) -> list[list[Move]] | None:
    """Every rank updates all parameters, and sends none; None where optimizers are not sharded, or gradients are."""
    launches = [launch for program in programs for launch in find_launches(program)]
    keys = {launch.key for launch in launches if launch.carries == Role.PARAMETERS}
    return None if any(launch.carries == LOOP_GRADIENTS for launch in launches) else drop_launches(programs, keys)


def unused_parameters(programs: Sequence[Program]) -> list[str]:
    """Those that are sent in buckets, and of which no gradient arrives in any pass of any rank."""
    marks = [move for program in programs for move in program if isinstance(move, Mark)]
    arrived = {mark.name for mark in marks if mark.word in ("gradient", "kept_gradient")}
    buckets = [launch for program in programs for launch in find_launches(program, "bucket")]
    sent = dict.fromkeys(name for bucket in buckets for name in bucket.parameters)
    return [name for name in sent if name not in arrived] if arrived else []


def without_unused(
    programs: Sequence[Program], sizes: Mapping[str, tuple[int, int]], takes: Takes
) -> list[list[Move]] | None:
    """Buckets without `unused_parameters`; None where there are none, or their bytes or T of what is left is unknown.

    `sizes`: the bytes of each gradient, alone and as it is sent.
    """
    unused = set(unused_parameters(programs))
    if not unused or not sizes.keys() >= unused:
        return None
    launches = {launch.key: launch for program in programs for launch in find_launches(program, "bucket")}
    gone = {key for key, launch in launches.items() if launch.parameters and unused.issuperset(launch.parameters)}
    smaller: dict[object, Launch] = {}
    for key, launch in launches.items():
        less = sum(sizes[name][1] for name in launch.parameters if name in unused)
        if less and key not in gone:
            took_ns = takes(launch.kind, launch.bytes - less)
            if took_ns is None:
                return None
            smaller[key] = replace(launch, bytes=launch.bytes - less, transfer_ns=min(took_ns, launch.transfer_ns))
    left = [without_launches(program, gone) for program in programs]
    return [list(change_launches(program, lambda launch: smaller.get(launch.key, launch))) for program in left]
