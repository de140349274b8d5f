"""torch-fsdp2: torch's fully_shard (FSDP2) in the same harness, as the reference for zero3.

Each layer is a unit; the rest, embedding and head, is the unit `root`, which stays gathered from its forward into its
backward. FSDP2 launches its own collectives, and writes its own ranges, `FSDP::…`, into the trace.

[Note: overlap on the CPU]
FSDP2 hides gathers behind CUDA streams. On the CPU, where there are none, a gather blocks unless it is asynchronous and
a unit before names it for prefetching. Reduce-scatters block there all the same.

[Note: offloading on the CPU]
torch's `CPUOffloadPolicy` copies parameters to the device before each gather, and reduced gradients to the host. Where
the device is a CPU these copies do nothing. So the emulated link to the host stands where they would be, with one copy
for each gather of a unit and one for its gradients, where torch copies parameter by parameter
(torch/distributed/fsdp/_fully_shard/_fsdp_param.py, `all_gather_inputs`; _fsdp_collectives.py, `foreach_reduce`).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from overlaplab_engine.errors import EngineError
from overlaplab_engine.models.deferred import hollow_like
from overlaplab_engine.models.units import Unit
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.host_all_gather import HostAllGather
from overlaplab_engine.network.host_link import Copy, HostLink, Way, host_memory
from overlaplab_engine.strategies.base import Options, Strategy, Traits, register
from overlaplab_engine.strategies.gradients.hooks import after_accumulation
from overlaplab_engine.strategies.sharding.absent import early_read_error
from overlaplab_engine.strategies.sharding.optimizers import local_part, make_part


@register
class TorchFSDP2(Strategy):
    """FSDP2 around each layer and around the model. The ranks must run the same units in the same order.

    Its parameters are DTensors; the optimizer gets plain tensors that share their memory.
    """

    name = "torch-fsdp2"
    traits = Traits(
        gradients="reduce_scatter",
        sends_every_microbatch=True,
        gathers="units",
        sharded=("parameters", "gradients", "optimizer"),
        offloads_parameters=True,
    )
    waits_within_torch = True
    takes = ("keep_last", "reshard_after_forward")
    refuses: ClassVar[Mapping[str, str]] = {
        "main_grad": "torch-fsdp2 has no fp32 main_grad; leave --main-grad out",
        **dict.fromkeys(
            ("save", "resume"), "torch-fsdp2 has state dicts of its own: --save and --resume are not for it; use zero3"
        ),
    }

    def __init__(self, model: nn.Module, comm: Communicator, options: Options) -> None:
        super().__init__(model, comm, options)
        _require_offloadable(comm, options)
        self.keeps_last = options.keep_last
        layers = self._layers()
        hooks = {name: list((p._post_accumulate_grad_hooks or {}).values()) for name, p in model.named_parameters()}
        mesh = _mesh(comm)
        wrapped = [
            self._shard(unit.modules[0], mesh=mesh, reshard_after_forward=not unit.kept) for unit in reversed(layers)
        ][::-1]  # units inside others first
        self._root = self._shard(model, mesh=mesh)
        self._uncalled = dict.fromkeys(unit.name for unit in layers)
        """Units of which no module was called in this pass."""
        for unit in layers:
            unit.modules[0].register_forward_pre_hook(partial(self._before_forward, unit.name))
        self._wrapped = [self._root, *wrapped]
        self._set_prefetch()
        self._sharded = cast(dict[str, DTensor], dict(model.named_parameters()))
        self.parameters = [cast(nn.Parameter, p) for p in self._sharded.values() if p.requires_grad]
        self._local = [make_part(local_part(p)) for p in self.parameters]
        self._full: list[nn.Parameter] = []
        """What autograd sees of trained parameters; they keep what `no_sync` has added up."""
        self._move(hooks)
        self._gradient_copies: list[_GradientCopies] = []
        """Each unit's gradients on their way to the host."""
        if options.offload and comm.device.type == "cpu":
            self._copy_over(HostLink(options.host_link))
        self._broken = False

    def _shard(self, module: nn.Module, **options: Any) -> FSDPModule:
        """Let FSDP2 shard what is not sharded yet of `module`, and give the memory of the full parameters back."""
        parameters = [p for p in module.parameters() if not isinstance(p, DTensor)]
        self._share(parameters)
        types = MixedPrecisionPolicy(param_dtype=self.options.param_dtype, reduce_dtype=self.options.reduce_dtype)
        pinned = self.comm.device.type == "cuda"
        offload = CPUOffloadPolicy(pin_memory=pinned) if self.options.offload else OffloadPolicy()
        sharded = fully_shard(module, mp_policy=types, offload_policy=offload, **options)
        for parameter in parameters:  # FSDP2 has copied its part
            parameter.data = hollow_like(parameter)
        return sharded

    def _set_prefetch(self) -> None:
        """Gather `prefetch` units ahead, forward and backward; see [Note: overlap on the CPU]."""
        ahead = self.options.prefetch
        # An asynchronous gather is launched on the computing stream, so that on a GPU, too, none runs ahead by itself.
        self._root._set_unshard_async_op(self.comm.device.type == "cpu" or ahead == 0)
        for i, unit in enumerate(self._wrapped):
            unit.set_modules_to_forward_prefetch(self._wrapped[i + 1 : i + 1 + ahead])
        returning = [self._root, *reversed(self._wrapped[1:])]
        for i, unit in enumerate(returning):
            # Without a list FSDP2 prefetches by itself; so a unit names itself, which is gathered already.
            unit.set_modules_to_backward_prefetch(returning[i + 1 : i + 1 + ahead] if ahead else [unit])

    def _copy_over(self, link: HostLink) -> None:
        """Let shards come up, and reduced gradients go down, over the link; see [Note: offloading on the CPU]."""
        if self.comm.shards.world_size == 1:
            return  # FSDP2 gathers nothing then, and reduces nothing
        all_gather, seen = HostAllGather(link), set[int]()
        for unit in [*self._wrapped[1:][::-1], self._root]:  # units inside others first
            unit.set_custom_all_gather(cast(Any, all_gather))
            parameters = [p for p in cast(nn.Module, unit).parameters() if id(p) not in seen]
            seen.update(map(id, parameters))
            if trained := [cast(DTensor, p) for p in parameters if p.requires_grad]:
                self._gradient_copies.append(_GradientCopies(link, trained))

    def _move(self, hooks: dict[str, list[Any]]) -> None:
        """Let what was hooked to a parameter, such as its label, see the gradients of the one that autograd uses."""
        for unit in self._wrapped:
            unit.unshard()
            for name, parameter in self.model.named_parameters():
                if not isinstance(parameter, DTensor) and parameter.requires_grad:
                    self._full.append(parameter)
                    for hook in hooks[name]:
                        after_accumulation(parameter, hook)
            unit.reshard()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See `Strategy`; after an exception no unit is gathered."""
        if self._broken:
            raise EngineError("torch-fsdp2 of this version of torch cannot go on after an exception in a step")
        self._uncalled = dict.fromkeys(unit.name for unit in self._layers())
        try:
            return super().__call__(*args, **kwargs)
        except BaseException as error:
            if "DTensor" in str(error) and self._uncalled:  # a part of a parameter was read
                error = early_read_error(self.name, " or ".join(self._uncalled))
            self.on_error(error)
            self._abandon()
            raise error from None

    def _before_forward(self, name: str, module: nn.Module, inputs: Any) -> None:
        self._uncalled.pop(name, None)

    def backward(self, loss: torch.Tensor, microbatch: int = 0) -> None:
        self._root.set_requires_gradient_sync(self._sync)
        super().backward(loss, microbatch)

    def _finish(self) -> None:
        """FSDP2 has waited inside backward; from now on the optimizer's tensors share the gradients, too."""
        with self._wait_label:
            for copies in self._gradient_copies:
                copies.finish()
        for parameter, local in zip(self.parameters, self._local, strict=True):
            local.grad = None if parameter.grad is None else local_part(parameter.grad).detach()

    def _abandon(self) -> None:
        for copies in self._gradient_copies:
            copies.finish()
        reset = getattr(self._root, "reset_iter_state", None)  # new in torch 2.13
        self._broken = reset is None
        if reset is not None:
            with suppress(Exception):  # a lost peer: the exception on its way says more
                reset()
        self.zero_grad()

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for parameter in self._full:  # what was added up without being sent
            parameter.grad = None

    def updated(self) -> None:
        """What a forward pass without a backward pass has left gathered is stale now."""
        for unit in self._wrapped:
            unit.reshard()

    @torch.no_grad()
    def full_parameters(self) -> dict[str, torch.Tensor]:
        return {
            name: cast(DTensor, parameter.to(self.comm.device)).full_tensor()  # offloaded parts are the host's
            for name, parameter in self._sharded.items()
        }

    def units(self) -> list[Unit]:
        """Each layer, then the rest as `root`."""
        layers = self._layers()
        names = {name for unit in layers for name in unit.parameters}
        remaining = {name: p for name, p in self.model.named_parameters() if name not in names}
        return [*layers, *([Unit("root", [self.model], remaining, kept=True)] if remaining else [])]

    def _layers(self) -> list[Unit]:
        """The units that FSDP2 wraps by themselves. EngineError for a unit of several modules."""
        keep_all = not self.options.reshard_after_forward
        layers = [
            replace(unit, kept=(unit.kept and self.options.keep_last) or keep_all)
            for unit in super().units()
            if unit.block
        ]
        for unit in layers:
            if len(unit.modules) > 1:
                raise EngineError(
                    f"torch-fsdp2 wraps layer by layer, and {unit.name} shares a parameter with another unit"
                )
        return layers


class _GradientCopies:
    """One unit's reduced gradients, which go down to the host; see [Note: offloading on the CPU]."""

    def __init__(self, link: HostLink, parameters: Sequence[DTensor]) -> None:
        """`parameters` are this rank's parts of those that the unit trains, in FSDP2's order."""
        self._link = link
        self._last = parameters[-1]
        self._reduced: list[DTensor] = []
        """Gradients that are still on the device."""
        self._copies: list[Copy] = []
        for parameter in parameters:
            after_accumulation(parameter, self._take_gradient)

    def finish(self) -> None:
        self._begin()
        for copy in self._copies:
            copy.wait()
        self._copies = []

    def _take_gradient(self, parameter: torch.Tensor) -> None:
        assert isinstance(parameter.grad, DTensor)
        self._reduced.append(parameter.grad)
        if parameter is self._last:
            self._begin()

    @torch.no_grad()
    def _begin(self) -> None:
        """Begin to copy the storages that the gradients share; from now on these lie in the host's memory."""
        host_storages: dict[int, torch.Tensor] = {}
        for gradient in self._reduced:
            part = gradient._local_tensor
            storage = part.untyped_storage()
            if storage.data_ptr() not in host_storages:
                whole = part.new_empty(0).set_(storage)
                host_storages[storage.data_ptr()] = host_memory(whole)
                self._copies.append(self._link.copy(Way.DOWN, host_storages[storage.data_ptr()], whole))
            gradient._local_tensor = host_storages[storage.data_ptr()].as_strided(
                part.size(), part.stride(), part.storage_offset()
            )
        self._reduced = []


def _require_offloadable(comm: Communicator, options: Options) -> None:
    if not options.offload:
        return
    if comm.axis("replicate") is not None or options.param_dtype is not None or options.reduce_dtype is not None:
        raise EngineError(
            "torch-fsdp2 --offload cannot be combined with --hsdp, --param-dtype and --reduce-dtype; use zero3"
        )
    if comm.device.type == "cpu" and not hasattr(FSDPModule, "set_custom_all_gather"):
        raise EngineError("torch-fsdp2 --offload needs a torch whose FSDP2 has set_custom_all_gather; use zero3")


def _mesh(comm: Communicator) -> DeviceMesh:
    """The ranks among which FSDP2 shards; for HSDP of two dimensions, the replicas and the shards of each."""
    replicas = comm.axis("replicate")
    if replicas is None:
        return DeviceMesh.from_group(comm.group, comm.device.type)
    ranks = torch.tensor(dist.get_process_group_ranks(comm.group)).view(replicas.world_size, -1)
    groups = [replicas.group, comm.shards.group]
    return DeviceMesh.from_group(groups, comm.device.type, mesh=ranks, mesh_dim_names=("replicate", "shard"))
