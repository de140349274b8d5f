"""Programs without their buckets, to which others are added."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from overlaplab.simulate.displaced import without_displaced
from overlaplab.simulate.edits.collectives import without_launches
from overlaplab.simulate.player import Launch, Mark, Move, Program, Wait, Work
from overlaplab.simulate.programs.models import named_buckets


def without_buckets(programs: Sequence[Program]) -> tuple[WithoutBuckets, ...]:
    """Each rank's program without its buckets, as if collectives displaced nothing."""
    return tuple(WithoutBuckets(without_displaced(program)) for program in programs)


def without_made_buckets(programs: Sequence[Program]) -> tuple[WithoutBuckets, ...]:
    """The same of programs that a strategy made: the host's work for a launch comes right before and right after it."""
    left: list[list[Move]] = []
    for program in map(without_displaced, programs):
        launched = {place for place, move in enumerate(program) if isinstance(move, Launch) and move.role == "bucket"}
        keys = {move.key for move in (program[place] for place in launched) if isinstance(move, Launch)}
        gone = {place + beside for place in launched for beside in (-1, 0, 1)}
        moves = (move for place, move in enumerate(program) if place not in gone)
        left.append([move for move in moves if not (isinstance(move, Wait) and move.key in keys)])
    return tuple(map(WithoutBuckets, left))


class WithoutBuckets:
    """One rank's program without its buckets: what is the same whatever they are."""

    def __init__(self, program: Program) -> None:
        self.moves = tuple(without_launches(program, {launch.key for launch in named_buckets(program)}))
        self._unused = _unused_by_pass(program)
        words = ("gradient", "backward_end")
        self._marks = [place for place, move in enumerate(self.moves) if isinstance(move, Mark) and move.word in words]

    def add(self, buckets: Sequence[Launch], *, host_ns: int, wake_ns: int) -> list[Move]:
        """The program with these buckets, whose keys are new in each backward pass.

        A launch costs the host `host_ns` before it, as much again after it, and to wake up at the end `wake_ns`.
        """
        number_of = {name: number for number, bucket in enumerate(buckets) for name in bucket.parameters}
        moves: list[Move] = []
        passes = launched = begun = 0
        missing = self._count_gradients(buckets, 0)
        for place in self._marks:
            moves += self.moves[begun : place + 1]
            begun, mark = place + 1, self.moves[place]
            assert isinstance(mark, Mark)
            is_pass_end = mark.word == "backward_end"
            if mark.name in number_of:
                missing[number_of[mark.name]] -= 1
            elif not is_pass_end:
                continue
            while launched < len(buckets) and (is_pass_end or not missing[launched]):  # in their order, when full
                launch = replace(buckets[launched], key=("bucket", passes, launched))
                moves += [Work(host_ns), launch, Work(host_ns)]
                launched += 1
            if is_pass_end:
                last = len(buckets) - 1
                moves += [Wait(("bucket", passes, each), wake_ns * (each == last)) for each in range(last + 1)]
                passes, launched = passes + 1, 0
                missing = self._count_gradients(buckets, passes)
        return [*moves, *self.moves[begun:]]

    def _count_gradients(self, buckets: Sequence[Launch], backward_pass: int) -> list[int]:
        """How many gradients each bucket waits for in this pass."""
        unused = self._unused[backward_pass] if backward_pass < len(self._unused) else frozenset()
        return [sum(name not in unused for name in bucket.parameters) for bucket in buckets]


def _unused_by_pass(program: Program) -> list[frozenset[str]]:
    """For each backward pass the parameters that buckets sent in it and whose gradients did not arrive in it.

    DDP takes the parameters that a pass does not use for ready from its beginning (`find_unused_parameters`).
    """
    passes: list[frozenset[str]] = []
    arrived: set[str] = set()
    sent: set[str] = set()
    for move in program:
        if isinstance(move, Launch) and move.role == "bucket":
            sent.update(move.parameters)
        elif isinstance(move, Mark) and move.word == "gradient":
            arrived.add(move.name)
        elif isinstance(move, Mark) and move.word == "backward":
            arrived, sent = set(), set()
        elif isinstance(move, Mark) and move.word == "backward_end":
            passes.append(frozenset(sent - arrived))
    return passes
