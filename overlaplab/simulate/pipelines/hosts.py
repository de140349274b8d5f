"""What a rank's host takes between the actions of a recorded pipeline's step.

[Note: what the host takes]: docs/design/plays.md, A pipeline's programs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from statistics import fmean
from typing import NamedTuple

from overlaplab.simulate.pipelines.shape import Host
from overlaplab.simulate.player import Launch, Mark, Move, Wait


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
