"""A Recorder around torch's DDP and FSDP2, on real gloo processes: what moves is named, training is what it would be.

The ranks run this file as a script; each scenario is a test.
"""

import json
import time
import warnings
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from overlaplab_engine import Recorder
from overlaplab_engine.labels import Word
from overlaplab_engine.network.communicator import Communicator
from ranks.engine_ranks import Scenarios
from ranks.recorded_ranks import NAMES, SIZES, expect_named, expect_same, folder, labels_of, train, tripled, wrapped
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.profiler import profile

import overlaplab

scenario = Scenarios(__file__)

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
    "unused": {"find_unused_parameters": True},
}


@scenario(*(f"{options}-{hook}" for options in OPTIONS for hook in ("none", "before", "later", "given")))
def same_training(comm: Communicator, name: str) -> None:
    """Seven steps, of which a recorder sees the second to the fifth, against seven without one."""
    options, hook = name.split("-")
    alone, recorded = wrapped(**OPTIONS[options]), wrapped(**OPTIONS[options])
    calls: list[list[int]] = [[], []]
    if hook == "before":
        alone.register_comm_hook(calls[0], tripled)
        recorded.register_comm_hook(calls[1], tripled)
    out = folder(comm)
    recorder = Recorder(out, recorded, warmup=2, steps=2, comm_hook=(calls[1], tripled) if hook == "given" else None)
    accumulate = 2 if options == "plain" else 1
    for step in range(7):
        if step == 1:
            recorder.start()
            if hook in ("later", "given"):
                alone.register_comm_hook(calls[0], tripled)
            if hook == "later":
                recorded.register_comm_hook(calls[1], tripled)
        train(comm, alone, step, accumulate)
        train(comm, recorded, step, accumulate)
        if step >= 1:
            recorder.step()
        expect_same(alone, recorded)
    assert recorder.done
    assert bool(calls[1]) == (hook != "none")
    assert Counter(index == 0 for index in calls[0])[True] == Counter(index == 0 for index in calls[1])[True], calls
    assert recorded._comm_hooks == ([] if hook == "none" else [(tripled, calls[1])])
    comm.barrier()
    expect_named(comm, out, 2)


@scenario()
def a_model_can_be_recorded_twice(comm: Communicator) -> None:
    alone, recorded = wrapped(), wrapped()
    for first in (0, 3):
        out = folder(comm)
        with Recorder(out, recorded, warmup=1, steps=2) as recorder:
            for step in range(first, first + 3):
                train(comm, alone, step)
                train(comm, recorded, step)
                recorder.step()
        comm.barrier()
        expect_named(comm, out, 2)
    expect_same(alone, recorded)


@scenario()
def one_rank_alone_may_record_a_model_without_a_hook(comm: Communicator) -> None:
    alone, recorded = wrapped(), wrapped()
    out = folder(comm)
    recorder = Recorder(out, recorded, warmup=1, steps=1).start() if comm.rank == 0 else None
    for step in range(5):
        for ddp in (alone, recorded):
            train(comm, ddp, step)
        if recorder:
            recorder.step()
    expect_same(alone, recorded)
    assert sorted(path.name for path in out.iterdir()) == ["rank0.pt.trace.json.gz", "run.json"] or comm.rank


@scenario()
def who_gets_a_broadcast_waits_for_its_sender(comm: Communicator) -> None:
    """Rank 1 comes late, and broadcasts; then it comes late for a reduction to rank 0."""
    ddp, out = wrapped(), folder(comm)
    with Recorder(out, ddp, warmup=1, steps=3) as recorder:
        for step in range(4):
            for communicate in (partial(dist.broadcast, src=1), partial(dist.reduce, dst=0)):
                comm.barrier()
                time.sleep(0.15 * comm.rank)
                communicate(torch.ones(1000))
            train(comm, ddp, step)
            recorder.step()
    comm.barrier()
    table = overlaplab.collectives(overlaplab.load_run(out))
    for kind in ("broadcast", "reduce"):
        rows = table[(table["kind"] == kind) & (table["bytes"] == 4000)].set_index("rank")
        assert (rows["last_rank"] == 1).all(), rows
        # On a busy machine rank 0 may leave the barrier tens of ms later.
        assert (rows.loc[0, "wait_ns"] > 50_000_000).all(), rows["wait_ns"]
        assert (rows.loc[1, "wait_ns"] == 0).all() if kind == "broadcast" else rows.loc[1, "wait_ns"].isna().all()


@scenario()
def after_a_recording_nothing_is_labelled(comm: Communicator) -> None:
    ddp = wrapped()
    calls: list[int] = []
    with Recorder(folder(comm), ddp, warmup=1, steps=1, comm_hook=(calls, tripled)) as recorder:
        for step in range(2):
            train(comm, ddp, step)
            recorder.step()
    calls.clear()
    with profile() as found:
        train(comm, ddp, 2)
    assert calls
    assert [event.key for event in found.key_averages() if event.key.startswith("engine::")] == []


@scenario("initial", "left", "left, and rank 1 alone records")
def ranks_with_fewer_inputs_train_as_without_a_recorder(comm: Communicator, divisor: str) -> None:
    """`DistributedDataParallel.join`: rank 0 runs out of inputs two steps before rank 1."""
    alone, recorded = wrapped(), wrapped()
    recording = comm.rank == 1 or "alone" not in divisor
    with alone.join(divide_by_initial_world_size=divisor == "initial"):
        for step in range(3 + 2 * comm.rank):
            train(comm, alone, step)
    recorder = Recorder(folder(comm), recorded, warmup=1, steps=1)
    if recording:
        recorder.start()
    with recorded.join(divide_by_initial_world_size=divisor == "initial"):
        for step in range(3 + 2 * comm.rank):
            train(comm, recorded, step)
            if recording:
                recorder.step()
    expect_same(alone, recorded)


@scenario()
def one_hook_is_one_hook(comm: Communicator) -> None:
    ddp = wrapped()
    with warnings.catch_warnings(), Recorder(folder(comm), ddp) as recorder:
        warnings.simplefilter("ignore")
        with pytest.raises(TypeError, match="must be callable"):
            ddp.register_comm_hook(None, 3)
        ddp.register_comm_hook([], tripled)
        with pytest.raises(RuntimeError, match="can only be called once"):
            ddp.register_comm_hook([], tripled)
        recorder.close()


@scenario()
def after_one_rank_alone_it_may_again_and_then_all(comm: Communicator) -> None:
    """No reducer is built anew for what the recorder before has left in it."""
    alone, recorded = wrapped(), wrapped()
    step = 0
    for ranks in ((0,), (0,), (0, 1), (1,)):
        recorder = Recorder(out := folder(comm), recorded, warmup=1, steps=1)
        if comm.rank in ranks:
            recorder.start()
        for _ in range(3):
            for ddp in (alone, recorded):
                train(comm, ddp, step)
            if comm.rank in ranks:
                recorder.step()
            step += 1
        comm.barrier()
        for rank in ranks:
            assert Word.BUCKET_LAUNCH in {word for word, _ in labels_of(out, rank)}
    expect_same(alone, recorded)


@scenario()
def a_built_in_hook_leaves_buckets_unnamed(comm: Communicator) -> None:
    ddp = wrapped()
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    out = folder(comm)
    with pytest.warns(UserWarning, match="buckets stay unnamed: the built-in comm hook .*ALLREDUCE"):
        recorder = Recorder(out, ddp, warmup=1, steps=1).start()
    for step in range(2):
        train(comm, ddp, step)
        recorder.step()
    comm.barrier()
    assert json.loads((out / "run.json").read_text())["buckets"] == []
    uses = 2 * (len(SIZES) - 1)  # each layer's forward and backward pass
    expected = {Word.GRADIENT_READY: len(NAMES), Word.FIRST_USE: uses, Word.LAST_USE: uses}
    assert Counter(word for word, _ in labels_of(out, comm.rank)) == expected


@scenario()
def an_exception_ends_the_recording_and_not_the_model(comm: Communicator) -> None:
    alone, recorded = wrapped(), wrapped()
    out = folder(comm)

    def interrupted() -> None:
        with Recorder(out, recorded) as recorder:
            for ddp in (alone, recorded):
                train(comm, ddp, 0)
            recorder.step()
            raise KeyError

    with pytest.warns(UserWarning, match="no run in .*: the loop made 1 steps"), pytest.raises(KeyError):
        interrupted()
    for step in (1, 2):
        for ddp in (alone, recorded):
            train(comm, ddp, step)
    expect_same(alone, recorded)
    assert list(out.iterdir()) == []


@scenario()
def units_of_fsdp2_are_called_as_in_its_ranges(comm: Communicator) -> None:
    """One behind a checkpoint's wrapper, two modules sharded together, the rest; a plain parameter is the root's."""
    model = nn.Sequential(nn.Linear(8, 16), checkpoint_wrapper(nn.Linear(16, 16)), nn.LayerNorm(16), nn.Linear(16, 4))
    mesh = DeviceMesh.from_group(comm.group, "cpu")
    fully_shard(model[1]._checkpoint_wrapped_module, mesh=mesh)
    fully_shard([model[2], model[3]], mesh=mesh)
    fully_shard(model, mesh=mesh)
    out = folder(comm)
    with Recorder(out, model, warmup=1, steps=1) as recorder:
        for _ in range(2):
            model(torch.ones(2, 8)).sum().backward()
            recorder.step()
    comm.barrier()
    units = json.loads((out / "run.json").read_text())["units"]
    inner = "1._checkpoint_wrapped_module"
    assert units == [
        {"name": "root", "bytes": 4 * (8 * 16 + 16), "parameters": ["0.weight", "0.bias"]},
        {"name": "1", "bytes": 4 * (16 * 16 + 16), "parameters": [f"{inner}.weight", f"{inner}.bias"]},
        {
            "name": "2, 3",
            "bytes": 4 * (2 * 16 + 16 * 4 + 4),
            "parameters": ["2.weight", "2.bias", "3.weight", "3.bias"],
        },
    ], units
    gathers = overlaplab.schedule(overlaplab.load_run(out))
    assert set(zip(gathers["unit"], gathers["bytes"], strict=True)) == {(u["name"], u["bytes"]) for u in units}


found = scenario.found


@pytest.mark.parametrize(("found", "name"), scenario.on(2), indirect=["found"])
def test_scenario(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


if __name__ == "__main__":
    scenario.main()
