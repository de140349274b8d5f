"""Units of FSDP2 that are larger than the recorded ones: a run's programs with so many as one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

from msgspec.structs import replace

from overlaplab.events import Run, missing_ranks
from overlaplab.evidence.fsdp2 import fsdp2_ranges
from overlaplab.manifest import Link
from overlaplab.simulate.edits.collectives import Takes
from overlaplab.simulate.player import End, Launch, Mark, Move, Program, Wait, Work, find_launches
from overlaplab.simulate.transfers import takes_ns, transfers


def join_units(
    run: Run, programs: Sequence[Program], together: int, link: Link | None, unknown: float = 0.5
) -> list[Program] | None:
    """See `larger_units`; None also without FSDP2, and where ranks are missing, since T then contains their waits."""
    if missing_ranks(run) or not all(fsdp2_ranges(trace) for trace in run.traces):
        return None
    return larger_units(programs, together, partial(takes_ns, transfers(run, run.traces[0], link)), unknown)


def unit_order(program: Program) -> list[str]:
    """The units in the order of their first gather."""
    return list(dict.fromkeys(launch.what for launch in find_launches(program, "gather") if launch.what is not None))


def larger_units(
    programs: Sequence[Program], together: int, takes: Takes, unknown: float = 0.5
) -> list[Program] | None:
    """With `together` units that follow each other as one unit: one gather in place of theirs, where the first is
    launched and waited for, and one reduce-scatter, where the last is.

    The host does between the others' gathers what computes, and no more. T of so many bytes lies between that of the
    longest that it replaces and all of theirs: where it is unknown, it lies by this share of the way from the one to
    the other. None where units are too few.
    """
    order = unit_order(programs[0])
    if len(order) < 2 * together or any(unit_order(program) != order for program in programs):
        return None
    group_of = {unit: place // together for place, unit in enumerate(order)}
    return [_merge_units(program, group_of, takes, unknown) for program in programs]


def _merge_units(program: Program, group_of: dict[str, int], takes: Takes, unknown: float) -> list[Move]:
    merged, absorbed = _merge_collectives(program, group_of, takes, unknown)
    units = {launch.key: launch.what for launch in find_launches(program, "scatter")}
    moves: list[Move] = []
    spared: str | None = None  # the unit whose host work is left out
    for move in program:
        if isinstance(move, Launch) and move.role == "gather":
            spared = move.what if move.key in absorbed else None
        if isinstance(move, End | Mark) or (isinstance(move, Wait) and move.key in units and units[move.key] == spared):
            spared = None
        if isinstance(move, Launch | Wait) and move.key in absorbed:
            continue
        if isinstance(move, Launch) and move.key in merged:
            moves.append(merged[move.key])
        elif isinstance(move, Work) and spared is not None:
            moves.append(Work(move.ns - move.idle_ns))
        else:
            moves.append(move)
    return moves


def _merge_collectives(
    program: Program, group_of: dict[str, int], takes: Takes, unknown: float
) -> tuple[dict[Hashable, Launch], set[Hashable]]:
    """The collectives that carry others' bytes, by key, and those that are no longer launched."""
    merged: dict[Hashable, Launch] = {}
    absorbed: set[Hashable] = set()
    for role in ("gather", "scatter"):
        series: list[list[Launch]] = []  # each to be one collective
        for launch in find_launches(program, role):
            group = group_of.get(launch.what or "")
            units = {each.what for each in series[-1]} if series else set()
            if series and group == group_of.get(series[-1][-1].what or "") and launch.what not in units:
                series[-1].append(launch)
            else:
                series.append([launch])
        for launches in series:
            carries = launches[0] if role == "gather" else launches[-1]
            size = sum(launch.bytes for launch in launches)
            each_ns = [launch.transfer_ns for launch in launches]
            longest_ns, sum_ns = max(each_ns), sum(each_ns)
            took_ns = takes(carries.kind, size)
            if took_ns is None:
                took_ns = round(longest_ns + unknown * (sum_ns - longest_ns))
            took_ns = min(max(took_ns, longest_ns), sum_ns)
            merged[carries.key] = replace(carries, bytes=size, transfer_ns=took_ns)
            absorbed |= {launch.key for launch in launches if launch is not carries}
    return merged, absorbed
