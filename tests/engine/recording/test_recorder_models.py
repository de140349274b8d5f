"""A Recorder around models of which not everything can be recorded, on real gloo processes: the training goes on.

The ranks run this file as a script; each scenario is a test.
"""

import copy
import io
import json
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from overlaplab_engine import Recorder
from overlaplab_engine.labels import Word
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.recording import on_signal
from ranks.engine_ranks import Scenarios
from ranks.recorded_ranks import NAMES, expect_named, expect_same, folder, labels_of, train, tripled, wrapped
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import overlaplab

scenario = Scenarios(__file__)


def record(comm: Communicator, out: Path, model: nn.Module, called: nn.Module) -> list[str]:
    """Record two of four steps in which `called` trains; the warnings."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        with Recorder(out, model, warmup=2, steps=2) as recorder:
            for _ in range(4):
                called(torch.ones(2, 8)).square().sum().backward()
                called.zero_grad()
                recorder.step()
    assert recorder.done
    comm.barrier()
    return [str(warning.message) for warning in raised]


@scenario()
def two_models_in_ddp_are_both_labelled(comm: Communicator) -> None:
    """The second one trains twice per step; buckets are numbered together, and names say whose they are."""
    alone, recorded = [wrapped(), wrapped()], [wrapped(), wrapped(find_unused_parameters=True)]
    out = folder(comm)
    with Recorder(out, nn.ModuleDict({"d": recorded[0], "g": recorded[1]}), warmup=2, steps=2) as recorder:
        for step in range(4):
            for models in (alone, recorded):
                train(comm, models[0], step)
                train(comm, models[1], step)
                train(comm, models[1], step + 10)
            recorder.step()
    for models in zip(alone, recorded, strict=True):
        expect_same(*models)
    comm.barrier()
    manifest = json.loads((out / "run.json").read_text())
    names = [f"{model}.{name}" for model in "dg" for name in NAMES]
    assert manifest["strategy"] == "torch-ddp"
    assert sorted(parameter["name"] for parameter in manifest["parameters"]) == names, manifest["parameters"]
    assert [unit["name"] for unit in manifest["units"]] == ["d.0", "d.1", "d.2", "g.0", "g.1", "g.2"]
    buckets = {str(b["index"]): b["parameters"] for b in manifest["buckets"]}
    assert list(buckets) == [str(index) for index in range(len(buckets))], buckets
    assert sorted(name for held in buckets.values() for name in held) == names, buckets
    ready = [values for word, values in labels_of(out, comm.rank) if word is Word.BUCKET_READY]
    assert all(values["parameters"] == buckets[values["bucket"]] for values in ready), ready
    launched = Counter(values["bucket"] for values in ready)
    assert launched == {index: 2 if held[0].startswith("d.") else 4 for index, held in buckets.items()}, launched


@scenario("plain", "nested", "two meshes")
def fsdp2_models_without_a_root_are_told_apart(comm: Communicator, name: str) -> None:
    """FSDP2 begins names anew in each root: in its ranges, too, they now begin with the root's place."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(2)))
    mesh = DeviceMesh.from_group(comm.group, "cpu")
    for root in model:
        if name == "nested":
            fully_shard(root[1], mesh=mesh)
        fully_shard(root, mesh=mesh, **({"shard_placement_fn": on_two_meshes(comm, mesh)} if "two" in name else {}))
    out = folder(comm)
    assert record(comm, out, model, model) == []
    manifest = json.loads((out / "run.json").read_text())
    assert manifest["strategy"] == "torch-fsdp2"
    sizes = {unit["name"]: unit["bytes"] for unit in manifest["units"]}
    layer = 4 * (8 * 8 + 8)
    assert sizes == (
        {"0": layer, "0.1": layer, "1": layer, "1.1": layer} if name == "nested" else dict.fromkeys("01", 2 * layer)
    )
    if name == "plain":
        gathers = overlaplab.schedule(overlaplab.load_run(out))
        assert set(zip(gathers["unit"], gathers["bytes"], strict=True)) == set(sizes.items()), gathers
    state = model[1]._get_fsdp_state()
    assert [group._module_fqn for group in state._fsdp_param_groups] == [""] * (2 if "two" in name else 1)


def on_two_meshes(comm: Communicator, mesh: DeviceMesh) -> object:
    """FSDP2's `shard_placement_fn` by which matrices and vectors are gathered in groups of their own."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
    from torch.distributed.tensor import Shard

    other = DeviceMesh.from_group(dist.new_group(list(range(comm.world_size))), "cpu")
    infos = [FSDPMeshInfo(each, shard_mesh_dim=0) for each in (mesh, other)]
    return lambda parameter: ShardPlacementResult(placement=Shard(0), mesh_info=infos[parameter.ndim - 1])


@scenario("mixed", "gathered", "assigned", "ignored")
def units_of_fsdp2_are_as_large_as_what_is_gathered(comm: Communicator, name: str) -> None:
    """Also where an evaluation has left bf16 gathered, or a state was loaded; what FSDP2 ignores is in no unit."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options: dict[str, Any] = {"ignored_params": {model[0].bias}} if name == "ignored" else {"mp_policy": policy}
    for module in (model[0], model):
        fully_shard(module, mesh=DeviceMesh.from_group(comm.group, "cpu"), **options)
    if name == "gathered":
        with torch.no_grad():
            model(torch.ones(2, 8))
    if name == "assigned":  # FSDP2 sees it in the next forward pass
        model.load_state_dict({key: value.clone() for key, value in model.state_dict().items()}, assign=True)
    out = folder(comm)
    assert record(comm, out, model, model) == []
    manifest = json.loads((out / "run.json").read_text())
    assert {(p["dtype"], p["bytes"]) for p in manifest["parameters"]} == {("float32", 256), ("float32", 32)}
    types = manifest["param_dtype"], manifest["reduce_dtype"]
    sizes = {unit["name"]: unit["bytes"] for unit in manifest["units"]}
    if name == "ignored":
        assert (types, sizes) == ((None, None), {"0": 256, "root": 288})
        assert [p["name"] for p in manifest["parameters"] if p["unit"] is None] == ["0.bias"]
    else:
        assert (types, sizes) == (("bfloat16", "float32"), {"0": 144, "root": 144})
    gathers = overlaplab.schedule(overlaplab.load_run(out))
    assert set(zip(gathers["unit"], gathers["bytes"], strict=True)) == set(sizes.items()), gathers


@scenario()
def ddp_beside_fsdp2_has_labels_and_no_strategy(comm: Communicator) -> None:
    ddp, sharded = DistributedDataParallel(nn.Linear(8, 8)), nn.Linear(8, 8)
    model = nn.Sequential(ddp, fully_shard(sharded, mesh=DeviceMesh.from_group(comm.group, "cpu")))
    out = folder(comm)
    assert record(comm, out, model, model) == []
    manifest = json.loads((out / "run.json").read_text())
    assert manifest["strategy"] is manifest["traits"] is None
    assert [(b["index"], b["parameters"]) for b in manifest["buckets"]] == [(0, ["0.bias", "0.weight"])]
    assert Word.BUCKET_LAUNCH in {word for word, _ in labels_of(out, comm.rank)}


@scenario()
def shards_of_fsdp1_are_not_taken_for_parameters(comm: Communicator) -> None:
    model = FullyShardedDataParallel(nn.Linear(8, 8), process_group=comm.group, device_id=torch.device("cpu"))
    out = folder(comm)
    (raised,) = record(comm, out, model, model)
    assert "in neither DDP nor FSDP2" in raised
    manifest = json.loads((out / "run.json").read_text())
    assert not {"model", "parameters", "units"} & manifest.keys(), manifest


@scenario()
def a_model_may_be_wrapped_before_the_recording_begins(comm: Communicator) -> None:
    inner = wrapped().module
    out = folder(comm)
    with warnings.catch_warnings(), Recorder(out, inner, warmup=1, steps=2, start_at=1) as recorder:
        warnings.simplefilter("error")
        ddp = DistributedDataParallel(inner, bucket_cap_mb=0.005)
        for step in range(4):
            train(comm, ddp, step)
            recorder.step()
    comm.barrier()
    expect_named(comm, out, 2)


@scenario()
def a_copy_of_the_model_is_a_model_without_a_recorder(comm: Communicator) -> None:
    """For weights that are averaged, or checkpoints; it trains, takes a comm hook, and writes no labels."""
    ddp, out = wrapped(), folder(comm)
    with Recorder(out, ddp, warmup=1, steps=2) as recorder:
        for step in range(3):
            train(comm, ddp, step)
            recorder.step() if step == 2 else None
            duplicate = copy.deepcopy(ddp)
            train(comm, duplicate, step)
            for model in (ddp, ddp.module):
                torch.save(model, file := io.BytesIO())
                file.seek(0)
                torch.load(file, weights_only=False)(torch.ones(2, 8)).sum().backward()
            recorder.step() if step < 2 else None
    comm.barrier()
    expect_named(comm, out, 2)
    calls: list[int] = []
    for model in (copy.deepcopy(ddp), duplicate, ddp):  # the last one after its recording
        model.register_comm_hook(calls, tripled)
        train(comm, model, 3)
        assert calls, model
        calls.clear()


@scenario()
def a_parameter_that_was_replaced_leaves_a_bucket_unnamed(comm: Communicator) -> None:
    models, out = [wrapped(find_unused_parameters=True) for _ in range(2)], folder(comm)
    for model in models:
        model.module[0].bias = nn.Parameter(torch.ones(64))
    raised = record(comm, out, models[0], models[0])
    assert [text.partition(": ")[2] for text in raised] == [
        "a bucket of DDP's has a parameter that the model no longer has"
    ], raised
    buckets = json.loads((out / "run.json").read_text())["buckets"]
    named = {name for bucket in buckets for name in bucket["parameters"]}
    assert {"2.weight"} <= named <= {*NAMES} - {"0.bias"}, buckets


@scenario()
def signals_end_with_the_rank_that_holds_the_store(comm: Communicator) -> None:
    class GoneStore:
        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("Connection reset by peer")

    ddp = wrapped()
    with warnings.catch_warnings(record=True) as raised, pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("always")
        patch.setattr(on_signal, "_get_default_store", GoneStore)
        with Recorder(folder(comm), ddp, on_signal=True) as recorder:
            for step in range(3):
                train(comm, ddp, step)
                recorder.step()
    assert [str(warning.message) for warning in raised] == [
        "signals to the ranks start no recording any more: Connection reset by peer"
    ]


found = scenario.found


@pytest.mark.parametrize(("found", "name"), scenario.on(2), indirect=["found"])
def test_scenario(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


if __name__ == "__main__":
    scenario.main()
