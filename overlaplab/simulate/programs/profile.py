"""The work profile of a recorded run: each rank's work step by step, without its communication.

docs/design/plays.md, Another strategy's programs. A launch costs as in `programs.buckets` ([Note: costs]).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from statistics import fmean, median_low

from msgspec import Struct

from overlaplab.simulate.displaced import Displaced, without_displaced
from overlaplab.simulate.player import (
    End,
    Launch,
    Mark,
    Move,
    Program,
    Wait,
    Work,
    change_duration,
    find_launches,
    split_steps,
)


class StepProfile(Struct, kw_only=True):
    """One rank's step; works and marks alone."""

    lead: list[Move] = []
    """Before the first microbatch."""
    passes: list[list[Move]] = []
    """Each microbatch from its forward pass on; all gradients are marked `gradient`, all ends `backward_end`."""
    updates_ns: dict[str, int] = {}
    """What the optimizer takes for each whole unit; for "" where its updates were not recorded one by one."""
    overhead_ns: int = 0
    """The optimizer beside the updates."""
    after_optimizer: list[Move] = []
    """After the optimizer."""


class Profile(Struct, frozen=True, kw_only=True):
    """What a recording tells of computation alone, and what communication costs the host; times in ns."""

    ranks: tuple[tuple[StepProfile, ...], ...]
    """Each rank's steps."""
    host_ns: int
    """What a launch costs before it is out, and as much again after: the mean."""
    wake_ns: int
    """From the end of a collective until who waits for it goes on: the mean."""
    displaced: Displaced
    """What a collective displaces."""

    @property
    def order(self) -> list[str]:
        """The gradients in the order in which they arrived in the first rank's first step."""
        marks = [move for moves in self.ranks[0][0].passes for move in moves if isinstance(move, Mark)]
        return list(dict.fromkeys(mark.name for mark in marks if mark.word == "gradient"))

    @property
    def uses(self) -> list[str]:
        """The units in the order in which the first forward pass used them; empty where it was not recorded."""
        first = self.ranks[0][0].passes[:1]
        marks = [move for moves in first for move in moves if isinstance(move, Mark) and move.word == "use"]
        names = [mark.name.rsplit(" ", 2) for mark in marks]
        return [unit for unit, _, phase in names if phase == "forward"]


def work_profile(programs: Sequence[Program], displaced: Displaced, *, sharded: bool, served: bool = False) -> Profile:
    """The profile of recorded programs. Of a `sharded` optimizer the ranks' updates are added up to whole units.

    If they are `served`, the first rank alone updates; the others get its updates, as if each made them.
    """
    launching = [launch.host_ns for program in programs for launch in find_launches(program) if launch.host_ns]
    host_ns = round(fmean(launching)) if launching else 0
    works = (_without_launches(without_displaced(program), host_ns) for program in programs)
    ranks = tuple(tuple(map(_step, split_steps(moves))) for moves in works)
    if sharded:
        for steps in zip(*ranks, strict=True):
            whole: Counter[str] = Counter()
            for step in steps:
                whole.update(step.updates_ns)
            for step in steps:
                step.updates_ns = dict(whole)
    if served:
        for server, *others in zip(*ranks, strict=True):
            for step in others:
                step.updates_ns, step.overhead_ns = dict(server.updates_ns), server.overhead_ns
    return Profile(ranks=ranks, host_ns=host_ns, wake_ns=wake_ns(programs), displaced=displaced)


def wake_ns(programs: Sequence[Program]) -> int:
    """From the end of a collective until who waits for it goes on: the mean."""
    wakes = [move.wake_ns for program in programs for move in program if isinstance(move, Wait) and move.wake_ns]
    return round(fmean(wakes)) if wakes else 0


def median_rank(programs: Sequence[Program]) -> int:
    """The place of the rank whose work is the median, the lower of two."""
    worked = [sum(move.ns for move in program if isinstance(move, Work)) for program in programs]
    return worked.index(median_low(worked))


def _without_launches(program: Program, host_ns: int) -> list[Move]:
    """Works, marks and ends. What a launch cost is taken from the work before it, and what follows.

    A rank that waits at once for what it launched loses the second part of the costs while it waits.
    """
    moves: list[Move] = []
    due_ns = 0
    last: tuple[Hashable, int] = None, 0  # launched, and nothing but work since; its cost
    for move in program:
        match move:
            case Work():
                less_ns = min(due_ns, move.ns)
                due_ns -= less_ns
                moves.append(change_duration(move, move.ns - less_ns))
            case Launch():
                cost_ns = move.host_ns or host_ns
                before = moves[-1] if moves else None
                less_ns = min(cost_ns, before.ns) if isinstance(before, Work) else 0
                if isinstance(before, Work):
                    moves[-1] = change_duration(before, before.ns - less_ns)
                due_ns += 2 * cost_ns - less_ns
                last = move.key, cost_ns
            case Wait(key) if key == last[0]:
                due_ns = max(due_ns - last[1], 0)
            case Mark() | End():
                moves.append(move)
                last = None, 0
    return moves


def _step(moves: Sequence[Move]) -> StepProfile:
    step = StepProfile()
    into = step.lead
    optimizer = updating = None
    for move in moves:
        match move:
            case Mark("forward"):
                into = []
                step.passes.append(into)
                into.append(move)
            case Mark("optimizer"):
                optimizer = move
            case Mark("optimizer_end"):
                optimizer, into = None, step.after_optimizer
            case Mark("update", unit):
                updating = unit
            case Mark("update_end"):
                updating = None
            case Work(ns) if updating is not None:
                step.updates_ns[updating] = step.updates_ns.get(updating, 0) + ns
            case Work(ns) if optimizer is not None:
                step.overhead_ns += ns
            case Mark(word, name):
                into.append(Mark(word.replace("kept_gradient", "gradient").replace("kept_end", "backward_end"), name))
            case _:
                into.append(move)
    if not step.updates_ns:
        step.updates_ns, step.overhead_ns = {"": step.overhead_ns}, 0
    return step
