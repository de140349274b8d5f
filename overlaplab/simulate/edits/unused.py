"""Parameters that get no gradient, which DDP sends all the same, with the others of their bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from overlaplab.simulate.edits.collectives import Takes, without_launches
from overlaplab.simulate.player import Launch, Mark, Move, Program, change_launches, find_launches


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
    """Buckets without them; None where all get gradients, or T of the smaller buckets is unknown.

    `sizes`: the bytes of each gradient, alone and as it is sent.
    """
    unused = set(unused_parameters(programs))
    if not unused:
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
