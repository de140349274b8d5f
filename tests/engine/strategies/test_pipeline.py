"""Pipelines against one process, and against torch's own orders of actions.

The ranks run this file as a script; each scenario is a test.
"""

import copy

import pytest
import torch
from overlaplab_engine.models.transformer import Transformer
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.mesh import Mesh
from overlaplab_engine.optimizer import AdamW
from overlaplab_engine.schedules import Schedule
from overlaplab_engine.strategies import Options
from overlaplab_engine.strategies.pipeline import Pipeline
from ranks.engine_ranks import Scenarios
from ranks.engine_trials import BATCHES, SHAPE
from ranks.label_texts import parse
from torch.profiler import ProfilerActivity, profile

from overlaplab.costs.pipeline import order

scenario = Scenarios(__file__)

KINDS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
MICROBATCHES = 4
STEPS = 2


def trains_as_one_process(comm: Communicator, mesh: Mesh, schedule: Schedule, microbatches: int) -> Pipeline:
    """Train both, and compare gradients, losses, the norm and the parameters; the pipeline's ranks see their stages."""
    model = Transformer(**SHAPE | {"layers": 2 * mesh.pp}).double()
    alone = copy.deepcopy(model)
    strategy = Pipeline(model, comm.along(mesh), Options(schedule=schedule, bucket_cap_mb=0.004))
    optimizer, alone_optimizer = AdamW(strategy.optimized(), 1e-3), AdamW(alone.parameters(), 1e-3)
    for step in range(STEPS):
        strategy.zero_grad()
        alone.zero_grad()
        got = strategy.passes(BATCHES, step, microbatches)
        every = [BATCHES.rank_batch(step, m, rank) for rank in range(mesh.dp) for m in range(microbatches)]
        losses = [alone(*one) / len(every) for one in every]
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        whole = {name: p.grad for name, p in alone.named_parameters()}
        most = max(float(g.abs().max()) for g in whole.values() if g is not None)
        for name, p in strategy.named_optimized():
            off = float((p.grad - whole[name]).abs().max())  # type: ignore[operator]
            assert off <= 1e-12 * most, f"step {step}, {name}: off by {off:.1e}"
        if got is not None and mesh.dp == 1:
            off = abs(float(got) - float(torch.stack(losses).detach().sum()))
            assert off <= 1e-12, f"step {step}: the loss is off by {off:.1e}"
        norm = torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
        off = abs(float(strategy.clip(0.1)) - float(norm))
        assert off <= 1e-12, f"step {step}: the norm is off by {off:.1e}"
        optimizer.step()
        alone_optimizer.step()
    here = strategy.full_parameters()
    assert sorted(here) == sorted(name for name, _ in alone.named_parameters())
    assert all(float((here[name] - p).detach().abs().max()) <= 1e-10 for name, p in alone.named_parameters())
    return strategy


@scenario(*Schedule)
def one_pipeline(comm: Communicator, schedule: Schedule) -> None:
    strategy = trains_as_one_process(comm, Mesh(pp=comm.world_size), schedule, MICROBATCHES)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        strategy.passes(BATCHES, STEPS, MICROBATCHES)
    events = sorted(recorded.events(), key=lambda event: event.time_range.start)
    found = [parse(event.name) for event in events if event.name.startswith("engine::stage_")]
    done = [(word.removeprefix("stage_"), int(own["stage"]), int(own["microbatch"])) for word, own in found]  # type: ignore[arg-type]
    (torch_schedule,) = strategy._schedules.values()
    actions = [
        action for action in torch_schedule.pipeline_order[comm.rank] if action is not None and action.is_compute_op
    ]
    wanted = [(KINDS[a.computation_type.value], a.stage_index, a.microbatch_index) for a in actions]
    if schedule is Schedule.ONE_F_ONE_B and comm.rank == comm.world_size - 1:
        # torch 2.13 names the last stage's forward passes from 1 there, and carries them out from 0
        wanted = [(kind, stage, number - (kind == "forward")) for kind, stage, number in wanted]
    assert done == wanted, f"{done} is not {wanted}"
    if schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B):
        assert done == order(schedule, comm.world_size, MICROBATCHES)[comm.rank]


@scenario()
def one_microbatch(comm: Communicator) -> None:
    """Plain model parallelism."""
    trains_as_one_process(comm, Mesh(pp=comm.world_size), Schedule.GPIPE, 1)


@scenario(Schedule.ONE_F_ONE_B, Schedule.ZBV)
def replicas(comm: Communicator, schedule: Schedule) -> None:
    strategy = trains_as_one_process(comm, Mesh(pp=2, dp=2), schedule, MICROBATCHES)
    assert len(strategy.buckets) > 1


found = scenario.found


@pytest.mark.parametrize(
    ("found", "name"),
    [
        *scenario.on(2, "microbatch"),
        *scenario.on(2, "pipeline", slow=True),
        *scenario.on(2, "pipeline", link=True),
        *scenario.on(4, "replicas", arrivals="late"),
        *scenario.on(4, "replicas", arrivals="delayed"),
    ],
    indirect=["found"],
)
def test_on_ranks(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


if __name__ == "__main__":
    scenario.main()
