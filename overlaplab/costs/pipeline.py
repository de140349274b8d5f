"""Pipelines: the orders of schedules, the bubble that a schedule has by itself, when actions could begin at best."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

FORWARD, BACKWARD, INPUT, WEIGHT = "forward", "backward", "backward_input", "backward_weight"
ACTS, SENDS, RECEIVES = "acts", "sends", "receives"
PER_RANK = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "zbv": 2}
"""How many stages each rank has, by schedule; interleaved ones may have more."""


class StageAction(NamedTuple):
    """What a stage does with a microbatch."""

    kind: str
    """`forward`, `backward`, or of a halved backward pass `backward_input` and `backward_weight`."""
    stage: int
    microbatch: int

    @property
    def needs(self) -> tuple[StageAction, ...]:
        """The actions of neighbouring stages of which one must be over before, as far as there are such stages."""
        if self.kind == FORWARD:
            return (StageAction(FORWARD, self.stage - 1, self.microbatch),)
        if self.kind == WEIGHT:
            return ()
        return tuple(StageAction(kind, self.stage + 1, self.microbatch) for kind in (BACKWARD, INPUT))


def bubble(ranks: int, microbatches: int, stages: int | None = None) -> float:
    """The share of the stages' time in which they cannot work, if all stages take as long and sending takes no time.

    (p − 1) ÷ (v·m + p − 1) for p ranks, m microbatches and v = `stages` ÷ p stages on each (Narayanan et al. 2021,
    arXiv 2104.04473, section 2.2; GPipe's and 1F1B's with v = 1). A zero-bubble schedule has less.
    """
    per_rank = 1 if stages is None else stages // ranks
    return (ranks - 1) / (per_rank * microbatches + ranks - 1)


def ranks_of_stages(schedule: str, ranks: int, stages: int) -> list[int]:
    """The rank that holds each stage: in turn, or in a V, where the first rank has the first and the last."""
    if schedule == "zbv":
        return [min(stage, 2 * ranks - 1 - stage) for stage in range(stages)]
    return [stage % ranks for stage in range(stages)]


def order(schedule: str, ranks: int, microbatches: int, stages: int | None = None) -> list[list[StageAction]]:
    """The actions of each rank in order, by `gpipe`, `1f1b`, `interleaved-1f1b` or `zbv`. KeyError for others.

    `stages`, the number of all of them, is as few as the schedule takes where it is left out.
    """
    orders = {"gpipe": _gpipe, "1f1b": _one_f_one_b, "interleaved-1f1b": _interleaved_order, "zbv": _zbv}
    stages = ranks * PER_RANK[schedule] if stages is None else stages
    return [orders[schedule](rank, ranks, microbatches, stages) for rank in range(ranks)]


def _gpipe(rank: int, ranks: int, microbatches: int, stages: int) -> list[StageAction]:
    return [StageAction(kind, rank, number) for kind in (FORWARD, BACKWARD) for number in range(microbatches)]


def _one_f_one_b(rank: int, ranks: int, microbatches: int, stages: int) -> list[StageAction]:
    stage_of_turn = [rank] * microbatches
    return _alternate(stage_of_turn, stage_of_turn, min(microbatches, ranks - rank) - 1)


def _interleaved_order(rank: int, ranks: int, microbatches: int, stages: int) -> list[StageAction]:
    """The order of torch's `ScheduleInterleaved1F1B`: in rounds of about as many microbatches as ranks, by stages."""
    per_rank, per_round = stages // ranks, microbatches // max(1, microbatches // ranks)
    turns = [turn // per_round % per_rank for turn in range(per_rank * microbatches)]
    ahead = min((per_rank - 1) * per_round + 2 * (ranks - 1 - rank), len(turns))
    backward = [(per_rank - 1 - turn) * ranks + rank for turn in turns]
    return _alternate([turn * ranks + rank for turn in turns], backward, ahead)


def _alternate(forward: Sequence[int], backward: Sequence[int], ahead: int) -> list[StageAction]:
    """One forward, one backward, by the stages of either in order, after so many forward."""
    first, then = _number_microbatches(FORWARD, forward), _number_microbatches(BACKWARD, backward)
    steady = [action for pair in zip(first[ahead:], then, strict=False) for action in pair]
    return [*first[:ahead], *steady, *then[len(first) - ahead :]]


def _number_microbatches(kind: str, stages: Sequence[int]) -> list[StageAction]:
    actions, done = list[StageAction](), Counter[int]()
    for stage in stages:
        actions.append(StageAction(kind, stage, done[stage]))
        done[stage] += 1
    return actions


def _zbv(rank: int, ranks: int, microbatches: int, stages: int) -> list[StageAction]:
    """The order of torch's `ScheduleZBVZeroBubble` (Qi et al. 2024, section 6), for at least 2p − 1 microbatches."""
    planned, done = (
        max(2 * ranks - 1, microbatches),
        Counter[tuple[str, int]](),
    )  # those too many are dropped at the end
    actions: list[StageAction] = []
    down, up = rank, 2 * ranks - 1 - rank  # the rank's stages, on the way down the V and up again

    def add(stage: int, *kinds: str) -> None:
        for kind in kinds:
            actions.append(StageAction(kind, stage, done[kind, stage]))
            done[kind, stage] += 1

    for _ in range(2 * (ranks - rank) - 1):
        add(down, FORWARD)
    for _ in range(rank):
        add(up, FORWARD)
        add(down, FORWARD)
    for _ in range(ranks - rank):
        add(up, FORWARD, INPUT, WEIGHT)
    while done[FORWARD, up] < done[FORWARD, down] or done[FORWARD, down] < planned:
        if done[FORWARD, down] < planned:
            add(down, FORWARD)
        add(down, INPUT, WEIGHT)
        add(up, FORWARD, INPUT, WEIGHT)
    for _ in range(rank):
        add(down, INPUT)
        add(up, INPUT)
    for _ in range(ranks - rank):
        add(down, INPUT, WEIGHT)
    for stage in (up, down):
        add(stage, *[WEIGHT] * (done[INPUT, stage] - done[WEIGHT, stage]))
    return [action for action in actions if action.microbatch < microbatches]


class Turn(NamedTuple):
    """What a rank does in its turn."""

    does: str
    """`acts`, or `sends` or `receives` what came of the action."""
    action: StageAction


def turns(orders: Sequence[Sequence[StageAction]], holders: Sequence[int]) -> list[list[Turn]]:
    """Each rank's actions, and when it posts the messages between them; `holders` are the stages' ranks.

    As torch does where ranks hold several stages (`_add_send_recv` in torch/distributed/pipelining/schedules.py): the
    ranks take turns, and who sends enters the receiver's call, too. Torch spends turns on FSDP even without it, see
    `_with_pauses`. ValueError if the orders wait for each other.
    """
    waiting = [deque(_with_pauses(remaining)) for remaining in orders]
    rank_turns: list[list[Turn]] = [[] for _ in orders]
    there: list[set[StageAction]] = [set() for _ in orders]  # the actions whose results each rank has
    going = True
    while going:
        going = False
        for rank, remaining in enumerate(waiting):
            if not remaining or not _is_ready(remaining[0], there[rank], len(holders)):
                continue
            going, action = True, remaining.popleft()
            if action is None:
                continue
            rank_turns[rank].append(Turn(ACTS, action))
            there[rank].add(action)
            target = action.stage + (1 if action.kind == FORWARD else -1)
            if action.kind != WEIGHT and 0 <= target < len(holders) and holders[target] != rank:
                rank_turns[rank].append(Turn(SENDS, action))
                rank_turns[holders[target]].append(Turn(RECEIVES, action))
                there[holders[target]].add(action)
    if any(waiting):
        raise ValueError("the ranks' orders wait for each other")
    return rank_turns


def _is_ready(action: StageAction | None, there: set[StageAction], stages: int) -> bool:
    needed = () if action is None else [need for need in action.needs if 0 <= need.stage < stages]
    return not needed or any(need in there for need in needed)


def _with_pauses(actions: Sequence[StageAction]) -> Iterator[StageAction | None]:
    """Add None for the turns in which FSDP would gather stages, up to three at a time, free them, or reduce."""
    next_stages: list[list[int]] = [[]]  # from the last action to the first: the stages from there on, the next first
    for action in reversed(actions):
        next_stages.append([action.stage, *(stage for stage in next_stages[-1] if stage != action.stage)])
    held: set[int] = set()
    left = Counter(action.stage for action in actions if action.kind in (BACKWARD, WEIGHT))
    for action, stages in zip(actions, reversed(next_stages), strict=False):
        soon = {*stages[:3]}
        yield from [None] * len(held ^ soon)
        held = soon
        yield action
        left[action.stage] -= action.kind in (BACKWARD, WEIGHT)
        if action.kind in (BACKWARD, WEIGHT) and not left[action.stage]:
            yield None
    yield from [None] * len(held)


def held_counts(actions: Sequence[StageAction]) -> list[int]:
    """After the start of each action of one stage, the number of microbatches whose activations it holds.

    A microbatch is held from its forward pass to the end of the action that needs its activations last.
    """
    begun = accumulate(action.kind == FORWARD for action in actions)
    over = accumulate((action.kind in (BACKWARD, WEIGHT) for action in actions), initial=0)
    return [int(count - ended) for count, ended in zip(begun, over, strict=False)]


def starts(
    orders: Sequence[Sequence[StageAction]], took_ns: Mapping[StageAction, int]
) -> dict[StageAction, tuple[int, int]]:
    """Start and end of each action, if every rank works in its order, and as early as its input is there.

    Sending takes no time. ValueError if the orders wait for each other, or for what nobody does.
    """
    all_actions = {action for actions in orders for action in actions}
    done: dict[StageAction, tuple[int, int]] = {}
    place, now = [0] * len(orders), [0] * len(orders)
    going = True
    while going:
        going = False
        for rank, actions in enumerate(orders):
            while place[rank] < len(actions):
                action = actions[place[rank]]
                needed = [need for need in action.needs if need in all_actions]
                if any(need not in done for need in needed):
                    break
                begin = max([now[rank], *(done[need][1] for need in needed)])
                now[rank] = begin + took_ns[action]
                done[action] = begin, now[rank]
                place[rank] += 1
                going = True
    if len(done) < len(all_actions):
        raise ValueError("the ranks' orders wait for each other")
    return done
