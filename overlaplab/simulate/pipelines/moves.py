"""A pipeline's steps as programs of its ranks: in which order each posts, waits and acts, their play, and what a rank's
host takes between them in a recorded step.

[Note: what the host takes]: docs/design/plays.md, A pipeline's programs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache
from statistics import fmean
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from overlaplab.costs.pipeline import ACTS, FORWARD, PER_RANK, SENDS, StageAction, Turn, order, ranks_of_stages, turns
from overlaplab.simulate.pipelines.shape import UPDATE, Host, Shape
from overlaplab.simulate.player import End, Launch, Mark, Move, Played, Program, Wait, Work, play


def play_pipeline(shapes: Sequence[Shape]) -> Played:
    """Play these steps one after another."""
    return play([pipeline_moves(shapes, rank) for rank in range(shapes[0].ranks)])


def step_ns(shapes: Sequence[Shape]) -> int:
    """The mean step of all ranks, of a pipeline that is full: a play of the first step before them fills it."""
    return round(float(play_pipeline((shapes[0], *shapes)).all_spans_ns()[:, 1:].mean()))


def pipeline_moves(shapes: Sequence[Shape], rank: int, begins_ns: int = 0, ranks: tuple[int, ...] = ()) -> Program:
    """One rank's program over the steps; the first begins at `begins_ns`. `ranks`: see `_StepOfRank`."""
    moves: list[Move] = [_idle_work(begins_ns), End()]
    for step, shape in enumerate(shapes):
        before, after = shape.around_ns[rank]
        at = _StepOfRank(shape, ranks or tuple(range(shape.ranks)), rank, step)
        moves += [*_with_host_times(_bare(at), shape.hosts[rank], before), *_average(at), Mark("optimizer")]
        updates = sum(took[UPDATE] for took, holder in zip(shape.took_ns, shape.holders, strict=True) if holder == rank)
        moves += [Work(updates), Mark("optimizer_end"), _idle_work(after), End()]
    return moves


def bare_moves(shape: Shape, rank: int) -> list[Move]:
    """A rank's actions, posts and waits in a step, in order, without what the host takes."""
    return list(_bare(_StepOfRank(shape, tuple(range(shape.ranks)), rank, 0)))


def _bare(at: _StepOfRank) -> Iterator[Move]:
    shape = at.shape
    actions, turns_of_rank = _order(shape.schedule, shape.ranks, shape.microbatches, len(shape.took_ns))
    if turns_of_rank is None:
        return _moves_with_one_stage(at, actions[at.rank])
    return _moves_with_stages(at, turns_of_rank[at.rank])


@lru_cache(maxsize=16)
def _order(
    schedule: str, ranks: int, microbatches: int, stages: int
) -> tuple[list[list[StageAction]], list[list[Turn]] | None]:
    """Each rank's actions, and where ranks hold several stages its turns."""
    actions = order(schedule, ranks, microbatches, stages)
    return actions, None if PER_RANK[schedule] == 1 else turns(actions, ranks_of_stages(schedule, ranks, stages))


def _with_host_times(moves: Iterator[Move], host: Host, before_ns: int) -> Iterator[Move]:
    """With the host's time before posts and actions, the first of which begins `before_ns` into the step.

    What it takes from a message's end on follows the wait for it; the rest, if any, is done while it waits.
    """
    waits: list[Wait] = []
    first: int | None = before_ns
    for move in moves:
        if isinstance(move, Wait):
            waits.append(move)
            continue
        if isinstance(move, Launch) or (isinstance(move, Mark) and not move.word.endswith("_end")):
            ns = host.post_ns if isinstance(move, Launch) else host.begin_ns
            if first is not None:
                ns, first = first, None
            after = min(host.wake_ns, ns) if waits else 0
            yield _idle_work(ns - after)
            yield from (Wait(wait.key, host.wake_ns - after) for wait in waits)
            yield _idle_work(after)
            waits.clear()
        yield move
    yield from waits


class _StepOfRank(Struct, frozen=True):
    """A step of one rank, whose moves are made."""

    shape: Shape
    ranks: tuple[int, ...]
    """The ranks of this pipeline among all, in order."""
    rank: int
    """Along the pipeline."""
    step: int

    def act(self, action: StageAction) -> Iterator[Move]:
        yield Mark(f"stage_{action.kind}", f"{action.stage} {action.microbatch}")
        took, idle = self.shape.took_ns[action.stage], self.shape.idle_ns[action.stage]
        yield Work(took[action.kind], idle_ns=idle[action.kind])
        yield Mark(f"stage_{action.kind}_end")

    def message(self, action: StageAction, sender: int, receiver: int) -> Launch:
        """The message with what comes of an action."""
        lane = self.ranks[sender], self.ranks[receiver]
        return Launch((self.ranks, self.step, action), self.shape.hop_ns, "send_recv", self.shape.bytes, lane=lane)


def _average(at: _StepOfRank) -> Iterator[Move]:
    """Average gradients with the replicas, once they are all there."""
    launches = [
        replace(bucket, key=("bucket", at.step, at.rank, bucket.what))
        for bucket in (at.shape.buckets[at.rank] if at.shape.buckets else ())
    ]
    yield from launches
    yield from (Wait(launch.key) for launch in launches)


def _moves_with_stages(at: _StepOfRank, turns_of_rank: Sequence[Turn]) -> Iterator[Move]:
    """Torch's order of posting and waiting where ranks hold several stages."""
    holders, sent = at.shape.holders, list[Hashable]()
    for turn in turns_of_rank:
        action = turn.action
        if turn.does == ACTS:
            for needed in action.needs:
                if (
                    0 <= needed.stage < len(holders)
                    and holders[needed.stage] != at.rank
                    and needed.kind in at.shape.took_ns[needed.stage]
                ):
                    yield Wait((at.ranks, at.step, needed))
            yield from at.act(action)
            continue
        target = holders[action.stage + (1 if action.kind == FORWARD else -1)]
        message = at.message(action, holders[action.stage], target)
        yield message
        if turn.does == SENDS:
            sent.append(message.key)
    yield from (Wait(key) for key in reversed(sent))


def _moves_with_one_stage(at: _StepOfRank, actions: Sequence[StageAction]) -> Iterator[Move]:
    """Torch's order of posting and waiting with a stage on each rank."""
    rank, last = at.rank, at.shape.ranks - 1
    blocks = at.shape.schedule == "1f1b"
    sent: list[Hashable] = []  # not waited for yet
    behind: Launch | None = None  # a send that goes out together with the next receive
    for place, action in enumerate(actions):
        source = rank - 1 if action.kind == FORWARD else rank + 1
        posted = [behind] if behind is not None else []
        if 0 <= source <= last:
            posted.append(at.message(action.needs[0], source, rank))
        yield from posted
        yield from (Wait(move.key) for move in posted)
        behind = None
        yield from at.act(action)
        target = rank + 1 if action.kind == FORWARD else rank - 1
        turns_back = place + 1 < len(actions) and actions[place + 1].kind != action.kind
        if blocks:
            yield from (Wait(key) for key in sent)
            sent = []
        if 0 <= target <= last:
            message = at.message(action, rank, target)
            if blocks and turns_back:
                behind = message
            else:
                yield message
                sent.append(message.key)
        if turns_back and not blocks:
            yield from (Wait(key) for key in sent)
            sent = []
    yield from (Wait(key) for key in sent)


def _idle_work(ns: int) -> Work:
    return Work(ns, idle_ns=ns)


class _Gap(NamedTuple):
    """What the host takes between what it did last and a post or an action."""

    ns: int
    is_post: bool
    blocked_ns: int  # before it


def follow_moves(
    moves: Sequence[Move], begun_ns: int, posted: Sequence[tuple[int, int]], actions: Sequence[tuple[int, int]]
) -> tuple[Host, int, int]:
    """Follow a rank's bare moves through a step that began at `begun_ns`; see [Note: what the host takes].

    Gives the host, the time until the first post or action, and when the last of these, or the last wait, was over.
    `posted`: of each message, in order, when the rank called and when it ended; `actions`: of each action, start and
    end. All by one clock, and as many as the moves have.
    """
    calls, acts = iter(posted), iter(actions)
    ended: dict[Hashable, int] = {}
    gaps: list[_Gap] = []
    now, blocked_ns = begun_ns, 0
    for move in moves:
        if isinstance(move, Wait):
            blocked_ns += max(ended[move.key] - now, 0)
            now = max(ended[move.key], now)
        elif isinstance(move, Launch):
            at, ended[move.key] = next(calls)
            gaps.append(_Gap(max(at - now, 0), True, blocked_ns))
            now, blocked_ns = at, 0
        elif isinstance(move, Mark) and not move.word.endswith("_end"):
            start, end = next(acts)
            gaps.append(_Gap(max(start - now, 0), False, blocked_ns))
            now, blocked_ns = end, 0
    return _host(gaps[1:]), gaps[0].ns if gaps else 0, now


def _host(gaps: Sequence[_Gap]) -> Host:
    """The means. A wait that was shorter than what the host takes anyway tells neither the one nor the other."""
    free = [gap for gap in gaps if not gap.blocked_ns]
    posts, begins = ([gap.ns for gap in free if gap.is_post is wanted] for wanted in (True, False))
    usual = fmean(begins or posts) if begins or posts else 0
    wakes = [gap.ns for gap in gaps if gap.blocked_ns > usual]
    wake = fmean(wakes) if wakes else usual
    post_ns, begin_ns = (round(fmean(each) if each else wake) for each in (posts, begins))
    return Host(post_ns=post_ns, begin_ns=begin_ns, wake_ns=round(wake))
