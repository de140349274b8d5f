"""The orders that `overlaplab` plays, held against torch's own schedules, action by action and message by message."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.pipelining import schedules as torchs

from overlaplab.costs.pipeline import (
    ACTS,
    BACKWARD,
    FORWARD,
    INPUT,
    SENDS,
    WEIGHT,
    StageAction,
    order,
    ranks_of_stages,
    turns,
)

KINDS = {
    torchs.FORWARD: FORWARD,
    torchs.FULL_BACKWARD: BACKWARD,
    torchs.BACKWARD_INPUT: INPUT,
    torchs.BACKWARD_WEIGHT: WEIGHT,
}
MESSAGES = (torchs.SEND_F, torchs.SEND_B, torchs.RECV_F, torchs.RECV_B)
CASES = [
    ("interleaved-1f1b", ranks, per_rank, microbatches)
    for ranks in (2, 3, 4)
    for per_rank in (2, 3, 4)
    for microbatches in range(1, 13)
    if microbatches % max(1, microbatches // ranks) == 0
] + [("zbv", ranks, 2, microbatches) for ranks in (2, 3, 4) for microbatches in range(1, 13)]


def by_torch(schedule: str, ranks: int, stages: int, microbatches: int) -> dict[int, list[Any]]:
    """Each rank's actions, with None where it waits for its turn."""
    made: Any = object.__new__(torchs.ScheduleZBVZeroBubble if schedule == "zbv" else torchs.ScheduleInterleaved1F1B)
    made.pp_group_size, made.num_stages, made.n_local_stages = ranks, stages, stages // ranks
    made._n_microbatches = microbatches
    made.microbatches_per_round = microbatches // max(1, microbatches // ranks)
    return {rank: made._calculate_single_rank_operations(rank) for rank in range(ranks)}


def with_messages(actions: dict[int, list[Any]], holders: list[int], microbatches: int) -> list[list[tuple[Any, ...]]]:
    lowered = {
        rank: torchs._add_reduce_grad(torchs._add_unshard_reshard(own), microbatches) for rank, own in actions.items()
    }
    found = torchs._add_send_recv(lowered, lambda stage: holders[stage], len(holders))
    return [
        [
            (KINDS.get(one.computation_type, one.computation_type), one.stage_index, one.microbatch_index)
            for one in found[rank]
            if one.computation_type in KINDS or one.computation_type in MESSAGES
        ]
        for rank in sorted(found)
    ]


@pytest.mark.parametrize("schedule", ["interleaved-1f1b", "zbv"])
def test_several_stages_on_a_rank(schedule: str) -> None:
    for _, ranks, per_rank, microbatches in (case for case in CASES if case[0] == schedule):
        stages = ranks * per_rank
        actions = by_torch(schedule, ranks, stages, microbatches)
        orders, holders = order(schedule, ranks, microbatches, stages), ranks_of_stages(schedule, ranks, stages)
        assert orders == [
            [StageAction(KINDS[a.computation_type], a.stage_index, a.microbatch_index) for a in actions[rank] if a]
            for rank in range(ranks)
        ]
        found = []
        for own in turns(orders, holders):
            found.append([])
            for does, (kind, stage, microbatch) in own:
                forward = kind == FORWARD
                if does == ACTS:
                    found[-1].append((kind, stage, microbatch))
                elif does == SENDS:
                    found[-1].append((torchs.SEND_F if forward else torchs.SEND_B, stage, microbatch))
                else:
                    there = stage + (1 if forward else -1)
                    found[-1].append((torchs.RECV_F if forward else torchs.RECV_B, there, microbatch))
        assert found == with_messages(actions, holders, microbatches), (ranks, per_rank, microbatches)


def test_orders_that_wait_for_each_other() -> None:
    orders = [
        [StageAction(BACKWARD, 0, 0), StageAction(FORWARD, 0, 0)],
        [StageAction(FORWARD, 1, 0), StageAction(BACKWARD, 1, 0)],
    ]
    with pytest.raises(ValueError, match="wait for each other"):
        turns(orders, [0, 1])
