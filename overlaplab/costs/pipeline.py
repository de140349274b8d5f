"""Pipelines: the orders of schedules, the bubble that a schedule has by itself, when actions could begin at best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["BACKWARD", "FORWARD", "INPUT", "WEIGHT", "Action", "bubble", "held", "order", "starts"]

FORWARD, BACKWARD, INPUT, WEIGHT = "forward", "backward", "backward_input", "backward_weight"


class Action(NamedTuple):
    """What a stage does with a microbatch."""

    kind: str
    """`forward`, `backward`, or of a halved backward pass `backward_input` and `backward_weight`."""
    stage: int
    microbatch: int

    @property
    def needs(self) -> tuple[Action, ...]:
        """The actions of neighbouring stages of which one must be over before, as far as there are such stages."""
        if self.kind == FORWARD:
            return (Action(FORWARD, self.stage - 1, self.microbatch),)
        if self.kind == WEIGHT:
            return ()
        return tuple(Action(kind, self.stage + 1, self.microbatch) for kind in (BACKWARD, INPUT))


def bubble(ranks: int, microbatches: int, stages: int | None = None) -> float:
    """The share of the stages' time in which they cannot work, if all stages take as long and sending takes no time.

    (p − 1) ÷ (v·m + p − 1) for p ranks, m microbatches and v = `stages` ÷ p stages on each (Narayanan et al. 2021,
    arXiv 2104.04473, section 2.2; GPipe's and 1F1B's with v = 1). A zero-bubble schedule has less.
    """
    per_rank = 1 if stages is None else stages // ranks
    return (ranks - 1) / (per_rank * microbatches + ranks - 1)


def order(schedule: str, stages: int, microbatches: int) -> list[list[Action]]:
    """The actions of each stage in order, by `gpipe` or `1f1b`, with a stage on each rank. KeyError for others."""
    most = {"gpipe": [microbatches] * stages, "1f1b": [stages - stage for stage in range(stages)]}[schedule]
    found = []
    for stage in range(stages):
        forward = [Action(FORWARD, stage, number) for number in range(microbatches)]
        backward = [Action(BACKWARD, stage, number) for number in range(microbatches)]
        first = min(microbatches, most[stage])
        steady = [action for pair in zip(backward, forward[first:], strict=False) for action in pair]
        found.append([*forward[:first], *steady, *backward[microbatches - first :]])
    return found


def held(actions: Sequence[Action]) -> list[int]:
    """After the start of each action of one stage, the number of microbatches whose activations it holds.

    A microbatch is held from its forward pass to the end of the action that needs its activations last.
    """
    last = {BACKWARD, WEIGHT}
    count, over, found = 0, False, []
    for action in actions:
        count += (action.kind == FORWARD) - over
        over = action.kind in last
        found.append(count)
    return found


def starts(
    orders: Sequence[Sequence[Action]], took_ns: Mapping[Action, int], hop_ns: int = 0
) -> dict[Action, tuple[int, int]]:
    """Start and end of each action, if every rank works in its order, and as early as its input is there.

    `hop_ns`: what an input takes from another rank. ValueError if the orders wait for each other, or for what nobody
    does.
    """
    rank_of = {action: rank for rank, own in enumerate(orders) for action in own}
    done: dict[Action, tuple[int, int]] = {}
    place, now = [0] * len(orders), [0] * len(orders)
    going = True
    while going:
        going = False
        for rank, own in enumerate(orders):
            while place[rank] < len(own):
                action = own[place[rank]]
                needed = [one for one in action.needs if one in rank_of]
                if any(one not in done for one in needed):
                    break
                ready = [done[one][1] + hop_ns * (rank_of[one] != rank) for one in needed]
                begin = max(now[rank], *ready) if ready else now[rank]
                now[rank] = begin + took_ns[action]
                done[action] = begin, now[rank]
                place[rank] += 1
                going = True
    if len(done) < len(rank_of):
        raise ValueError("the ranks' orders wait for each other")
    return done
