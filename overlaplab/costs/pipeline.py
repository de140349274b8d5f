"""Pipelines: the orders of schedules, the bubble that a schedule has by itself, when actions could begin at best."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

FORWARD, BACKWARD, INPUT, WEIGHT = "forward", "backward", "backward_input", "backward_weight"
ACTS, SENDS, RECEIVES = "acts", "sends", "receives"
PER_RANK = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "zbv": 2}
"""How many stages each rank has, by schedule; interleaved ones may have more."""


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


def rank_of(schedule: str, ranks: int, stages: int) -> list[int]:
    """Of each stage the rank that holds it: in turn, or in a V, where the first rank has the first and the last."""
    if schedule == "zbv":
        return [min(stage, 2 * ranks - 1 - stage) for stage in range(stages)]
    return [stage % ranks for stage in range(stages)]


def order(schedule: str, ranks: int, microbatches: int, stages: int | None = None) -> list[list[Action]]:
    """The actions of each rank in order, by `gpipe`, `1f1b`, `interleaved-1f1b` or `zbv`. KeyError for others.

    `stages`, the number of all of them, is as few as the schedule takes where it is left out.
    """
    orders = {"gpipe": _gpipe, "1f1b": _one_f_one_b, "interleaved-1f1b": _interleaved, "zbv": _zbv}
    stages = ranks * PER_RANK[schedule] if stages is None else stages
    return [orders[schedule](rank, ranks, microbatches, stages) for rank in range(ranks)]


def _gpipe(rank: int, ranks: int, microbatches: int, stages: int) -> list[Action]:
    return [Action(kind, rank, number) for kind in (FORWARD, BACKWARD) for number in range(microbatches)]


def _one_f_one_b(rank: int, ranks: int, microbatches: int, stages: int) -> list[Action]:
    own = [rank] * microbatches
    return _alternating(own, own, min(microbatches, ranks - rank) - 1)


def _interleaved(rank: int, ranks: int, microbatches: int, stages: int) -> list[Action]:
    """As torch's `ScheduleInterleaved1F1B`: rounds of about as many microbatches as ranks, a stage after the other."""
    own, per_round = stages // ranks, microbatches // max(1, microbatches // ranks)
    turns = [turn // per_round % own for turn in range(own * microbatches)]
    ahead = min((own - 1) * per_round + 2 * (ranks - 1 - rank), len(turns))
    forward, backward = ([place * ranks + rank for place in places] for places in (turns, [own - 1 - t for t in turns]))
    return _alternating(forward, backward, ahead)


def _alternating(forward: Sequence[int], backward: Sequence[int], ahead: int) -> list[Action]:
    """One forward, one backward, by the stages of either in order, after so many forward."""
    first, then = _numbered(FORWARD, forward), _numbered(BACKWARD, backward)
    steady = [action for pair in zip(first[ahead:], then, strict=False) for action in pair]
    return [*first[:ahead], *steady, *then[len(first) - ahead :]]


def _numbered(kind: str, stages: Sequence[int]) -> list[Action]:
    return [Action(kind, stage, stages[:place].count(stage)) for place, stage in enumerate(stages)]


def _zbv(rank: int, ranks: int, microbatches: int, stages: int) -> list[Action]:
    """As torch's `ScheduleZBVZeroBubble` (Qi et al. 2024, section 6): made for at least 2p − 1 microbatches."""
    most, done = max(2 * ranks - 1, microbatches), Counter[tuple[str, int]]()
    found: list[Action] = []
    down, up = rank, 2 * ranks - 1 - rank  # the rank's stages, on the way down the V and up again

    def add(stage: int, *kinds: str) -> None:
        for kind in kinds:
            found.append(Action(kind, stage, done[kind, stage]))
            done[kind, stage] += 1

    for _ in range(2 * (ranks - rank) - 1):
        add(down, FORWARD)
    for _ in range(rank):
        add(up, FORWARD)
        add(down, FORWARD)
    for _ in range(ranks - rank):
        add(up, FORWARD, INPUT, WEIGHT)
    while done[FORWARD, up] < done[FORWARD, down] or done[FORWARD, down] < most:
        if done[FORWARD, down] < most:
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
    return [action for action in found if action.microbatch < microbatches]


class Turn(NamedTuple):
    """What a rank does in its turn."""

    does: str
    """`acts`, or `sends` or `receives` what came of the action."""
    action: Action


def turns(orders: Sequence[Sequence[Action]], holders: Sequence[int]) -> list[list[Turn]]:
    """Each rank's actions, and when it posts the messages between them; `holders` are the stages' ranks.

    As torch does where ranks hold several stages (`_add_send_recv` in torch/distributed/pipelining/schedules.py): the
    ranks take turns, and who sends enters the receiver's call, too. What stands for FSDP there takes turns as well.
    ValueError if the orders wait for each other.
    """
    waiting = [deque(_with_pauses(own)) for own in orders]
    found: list[list[Turn]] = [[] for _ in orders]
    there: list[set[Action]] = [set() for _ in orders]
    going = True
    while going:
        going = False
        for rank, own in enumerate(waiting):
            if not own or not _is_ready(own[0], there[rank], len(holders)):
                continue
            going, action = True, own.popleft()
            if action is None:
                continue
            found[rank].append(Turn(ACTS, action))
            there[rank].add(action)
            target = action.stage + (1 if action.kind == FORWARD else -1)
            if action.kind != WEIGHT and 0 <= target < len(holders) and holders[target] != rank:
                found[rank].append(Turn(SENDS, action))
                found[holders[target]].append(Turn(RECEIVES, action))
                there[holders[target]].add(action)
    if any(waiting):
        raise ValueError("the ranks' orders wait for each other")
    return found


def _is_ready(action: Action | None, there: set[Action], stages: int) -> bool:
    needed = () if action is None else [one for one in action.needs if 0 <= one.stage < stages]
    return not needed or any(one in there for one in needed)


def _with_pauses(own: Sequence[Action]) -> Iterator[Action | None]:
    """With None for the turns in which FSDP would gather stages, up to three at a time, free them, or reduce."""
    held: set[int] = set()
    left = Counter(action.stage for action in own if action.kind in (BACKWARD, WEIGHT))
    for place, action in enumerate(own):
        soon = set(list(dict.fromkeys(one.stage for one in own[place:]))[:3])
        yield from [None] * len(held ^ soon)
        held = soon
        yield action
        left[action.stage] -= action.kind in (BACKWARD, WEIGHT)
        if action.kind in (BACKWARD, WEIGHT) and not left[action.stage]:
            yield None
    yield from [None] * len(held)


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
