"""A Recorder in the jobs that people run, on real gloo processes: callbacks, microbatches, signals, compiled code.

The ranks run this file as a script; each scenario is a test.
"""

import json
import os
import signal
import warnings

import pytest
import torch
from overlaplab_engine import Recorder
from overlaplab_engine.labels import Word
from overlaplab_engine.network.communicator import Communicator
from ranks.engine_ranks import Scenarios
from ranks.recorded_ranks import NAMES, expect_named, expect_same, fit, folder, labels_of, train, tripled, wrapped
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

import overlaplab

scenario = Scenarios(__file__)


def sharded(comm: Communicator) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    mesh = DeviceMesh.from_group(comm.group, "cpu")
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@scenario()
def the_module_inside_ddp_is_enough(comm: Communicator) -> None:
    """Frameworks give it to their callbacks; another model in DDP is no matter."""
    other, ddp, out = wrapped(), wrapped(), folder(comm)
    with Recorder(out, ddp.module, warmup=1, steps=2) as recorder:
        for step in range(3):
            train(comm, ddp, step)
            recorder.step()
    comm.barrier()
    expect_named(comm, out, 2)
    assert json.loads((out / "run.json").read_text())["strategy"] == "torch-ddp"
    assert other._comm_hooks == []


@scenario()
def a_part_of_an_fsdp2_model_is_enough(comm: Communicator) -> None:
    model, out = sharded(comm), folder(comm)
    with Recorder(out, model[1], warmup=1, steps=1) as recorder:
        for _ in range(2):
            model(torch.ones(2, 8)).sum().backward()
            recorder.step()
    comm.barrier()
    manifest = json.loads((out / "run.json").read_text())
    assert manifest["strategy"] == "torch-fsdp2"
    assert [unit["name"] for unit in manifest["units"]] == ["0", "1"], manifest["units"]


@scenario()
def a_model_without_a_wrapper_is_told(comm: Communicator) -> None:
    model, out = nn.Linear(2, 2), folder(comm)
    with pytest.warns(UserWarning, match="in neither DDP nor FSDP2"):
        recorder = Recorder(out, model, warmup=1, steps=1).start()
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        recorder.step()
    assert {word for word, _ in labels_of(out, comm.rank)} == {Word.GRADIENT_READY}


@scenario("ddp", "fsdp2")
def microbatches_are_no_steps(comm: Communicator, name: str) -> None:
    """Where step() follows each, half the steps send nothing; rank 0 says so, unless the loop is right."""
    model: nn.Module = wrapped() if name == "ddp" else sharded(comm)
    told: list[list[str]] = []
    for per_microbatch in (True, False):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with Recorder(folder(comm), model, warmup=2, steps=4) as recorder:
                for microbatch in range(12):
                    sends = microbatch % 2 == 1
                    if isinstance(model, DistributedDataParallel):
                        model.require_backward_grad_sync = sends
                    elif isinstance(model, FSDPModule):
                        model.set_requires_gradient_sync(sends)
                    model(torch.ones(2, 8)).sum().backward()
                    if per_microbatch or sends:
                        recorder.step()
        told.append([str(one.message) for one in said if "gradients were sent" in str(one.message)])
        comm.barrier()
    assert [len(lines) for lines in told] == [int(comm.rank == 0), 0], told
    assert all("in 2 of 4 recorded steps no gradients were sent; call step() once per" in one for one in told[0]), told


@scenario()
def some_ranks_may_leave_no_trace(comm: Communicator) -> None:
    alone, recorded, out = wrapped(), wrapped(), folder(comm)
    with Recorder(out, recorded, warmup=1, steps=2, ranks=[1]) as recorder:
        for step in range(4):
            train(comm, alone, step)
            train(comm, recorded, step)
            recorder.step()
    comm.barrier()
    assert sorted(path.name for path in out.iterdir()) == ["rank1.pt.trace.json.gz", "run.json"]
    manifest = json.loads((out / "run.json").read_text())
    assert manifest["trace_ranks"] == [1]
    run = overlaplab.load_run(out)
    assert overlaplab.buckets(run)["parameters"].explode().nunique() == len(NAMES)
    assert run.warnings == ("1 of 2 ranks was recorded without a trace (--trace-ranks)",), run.warnings
    expect_same(alone, recorded)


@scenario("none", "before", "given")
def a_signal_to_one_rank_is_for_all(comm: Communicator, hook: str) -> None:
    """They begin at the same step, also where a hook makes them agree on their buckets again; twice."""
    alone, recorded, out = wrapped(), wrapped(), folder(comm)
    calls: list[list[int]] = [[], []]
    if hook != "none":
        alone.register_comm_hook(calls[0], tripled)
    if hook == "before":
        recorded.register_comm_hook(calls[1], tripled)
    given = (calls[1], tripled) if hook == "given" else None
    with Recorder(out, recorded, warmup=1, steps=2, on_signal=True, comm_hook=given) as recorder:
        for step in range(40):
            if comm.rank == 1 and step in (2, 20):
                os.kill(os.getpid(), signal.SIGUSR2)
            train(comm, alone, step)
            train(comm, recorded, step)
            recorder.step()
    comm.barrier()
    expect_same(alone, recorded)
    assert sorted(path.name for path in out.iterdir()) == ["step-13", "step-31"]
    for run in out.iterdir():
        expect_named(comm, run, 2)
    assert bool(calls[1]) == (hook != "none")


@scenario()
def each_recorder_has_requests_of_its_own(comm: Communicator) -> None:
    model = wrapped()
    for signalled in (12, 2):
        out = folder(comm)
        with Recorder(out, model, warmup=1, steps=1, on_signal=True) as recorder:
            for step in range(30):
                if comm.rank == 1 and step == signalled:
                    os.kill(os.getpid(), signal.SIGUSR2)
                train(comm, model, step)
                recorder.step()
        comm.barrier()
        assert [path.name for path in out.iterdir()] == [f"step-{signalled + 11}"]


@scenario()
def a_recording_that_begins_late_keeps_the_users_hook(comm: Communicator) -> None:
    alone, recorded, out = wrapped(), wrapped(), folder(comm)
    calls: list[list[int]] = [[], []]
    alone.register_comm_hook(calls[0], tripled)
    with Recorder(out, recorded, warmup=1, steps=2, start_at=2, comm_hook=(calls[1], tripled)) as recorder:
        for step in range(6):
            train(comm, alone, step)
            train(comm, recorded, step)
            recorder.step()
            expect_same(alone, recorded)
    comm.barrier()
    expect_named(comm, out, 2)
    assert len(calls[0]) == len(calls[1])


@scenario()
def the_users_hook_is_part_of_the_training_without_a_recording(comm: Communicator) -> None:
    alone, recorded = wrapped(), wrapped()
    calls: list[list[int]] = [[], []]
    alone.register_comm_hook(calls[0], tripled)
    with Recorder(None, recorded, comm_hook=(calls[1], tripled)) as recorder:
        for step in range(3):
            train(comm, alone, step)
            train(comm, recorded, step)
            recorder.step()
    expect_same(alone, recorded)
    assert calls[0] == calls[1] != []


@scenario()
def workers_autocast_and_a_scheduler_are_no_matter(comm: Communicator) -> None:
    ddp, out = wrapped(), folder(comm)
    fit(comm, out, ddp, ddp)
    comm.barrier()
    expect_named(comm, out, 2)
    assert overlaplab.summary(overlaplab.load_run(out))["step"].tolist() == [3, 4] * 2


found = scenario.found


@pytest.mark.parametrize(("found", "name"), scenario.on(2), indirect=["found"])
def test_scenario(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


if __name__ == "__main__":
    scenario.main()
