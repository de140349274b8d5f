"""Inspect a user's model: is it torch's DDP, FSDP2, or neither, and how are its parameters grouped and named?"""

import gc
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from overlaplab_engine.models.units import Unit, by_block
from overlaplab_engine.strategies import Strategy
from overlaplab_engine.strategies.gradients.ddp_buckets import unwrap_compiled
from overlaplab_engine.strategies.torch_ddp import TorchDDP
from overlaplab_engine.strategies.torch_fsdp2 import TorchFSDP2

_HOLDERS = (DistributedDataParallel, FSDPModule)
_WRAPPERS = re.compile(r"(?:^|\.)(?:_checkpoint_wrapped_module|_orig_mod)(?=\.|$)")
"""Name components inserted by checkpointing and compiling; readers of FSDP2's ranges drop them too."""


@dataclass(frozen=True, slots=True)
class Root:
    """A part of the model that is called as a whole; where there are several, names begin with its place."""

    module: nn.Module
    """The module inside DDP, an outermost module of FSDP2, or the whole model."""
    parameters: Mapping[str, nn.Parameter]
    units: Sequence[Unit]
    """FSDP2's groups that are gathered together, named as in its ranges; else the module's layers and children."""
    prefix: str = ""
    """What names begin with, such as `generator.`."""
    ddp: DistributedDataParallel | None = None

    @property
    def strategy(self) -> type[Strategy] | None:
        """The engine's equivalent strategy: `TorchDDP`, `TorchFSDP2`, or None."""
        if self.ddp is not None:
            return TorchDDP
        shards = any(getattr(state, "_state_name", "FSDP") == "FSDP" for state in _fsdp2_states(self.module))
        return TorchFSDP2 if shards else None  # `replicate` is of FSDP2's kind, too

    def sends(self) -> bool:
        """Whether the pass under way sends gradients, and does not only accumulate them; True where nobody knows."""
        if self.ddp is not None:
            return bool(self.ddp.require_backward_grad_sync)
        groups = _fsdp2_groups(self.module)
        return not groups or any(group.reduce_grads for group in groups)

    @property
    def precision(self) -> tuple[torch.dtype | None, torch.dtype | None]:
        """The types in which FSDP2 gathers parameters and reduces gradients; None: their own, or several."""
        policies = {(each.mp_policy.param_dtype, each.mp_policy.reduce_dtype) for each in _fsdp2_groups(self.module)}
        return policies.pop() if len(policies) == 1 else (None, None)

    @contextmanager
    def naming_ranges(self) -> Iterator[Callable[[], None]]:
        """Within it the function that this gives lets FSDP2's ranges begin with the prefix.

        It does so for modules that FSDP2 has named, which happens when the root is called for the first time.
        """
        names: dict[Any, str] = {}

        def name_ranges() -> None:
            for group in _fsdp2_groups(self.module):
                if group not in names and group._module_fqn is not None:
                    names[group] = group._module_fqn
                    group._module_fqn = _with_prefix(self.prefix, group._module_fqn)

        try:
            yield name_ranges
        finally:
            for group, name in names.items():
                group._module_fqn = name


@dataclass(frozen=True, slots=True)
class Subject:
    """The model that trains under a Recorder."""

    roots: Sequence[Root] = ()
    """Empty without a model."""

    @classmethod
    def inspect(cls, model: nn.Module) -> "Subject":
        """Inspect `model`, or the DDP or FSDP2 model that holds it: callbacks of frameworks are given the inner one."""
        model = _holder(model) or model
        places = {_WRAPPERS.sub("", name).removeprefix("."): holder for name, holder in _outermost_holders(model)}
        if len(places) > 1:
            return cls([_root(holder, f"{place}.") for place, holder in places.items()])
        return cls([_root(holder, "") for holder in places.values() or [model]])

    @property
    def strategy(self) -> type[Strategy] | None:
        """The engine's equivalent strategy, where all roots have the same one."""
        strategies = {root.strategy for root in self.roots}
        return strategies.pop() if len(strategies) == 1 else None

    @property
    def is_held(self) -> bool:
        """Whether the model is in DDP or FSDP2."""
        return any(root.ddp is not None or isinstance(root.module, FSDPModule) for root in self.roots)

    @property
    def ddps(self) -> list[DistributedDataParallel]:
        return [root.ddp for root in self.roots if root.ddp is not None]

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        return {name: parameter for root in self.roots for name, parameter in root.parameters.items()}

    @property
    def units(self) -> list[Unit]:
        return [unit for root in self.roots for unit in root.units]


def _holder(model: nn.Module) -> nn.Module | None:
    """The DDP or FSDP2 model of which `model` is a part, where there is exactly one."""
    if not dist.is_initialized() or any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        return None
    inner = unwrap_compiled(model)
    # `type`, because asking some objects for their class has effects
    candidates = [module for module in gc.get_objects() if issubclass(type(module), _HOLDERS)]
    holders = [module for module in candidates if any(part is inner for part in module.modules())]
    outermost = [
        module
        for module in holders
        if not any(module is part for other in holders if other is not module for part in other.modules())
    ]
    return outermost[0] if len(outermost) == 1 else None


def _outermost_holders(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The models in DDP and FSDP2, by name."""
    if isinstance(module, _HOLDERS):
        yield name, module
        return
    for child_name, child in module.named_children():
        yield from _outermost_holders(child, f"{name}.{child_name}" if name else child_name)


def _root(holder: nn.Module, prefix: str) -> Root:
    ddp = holder if isinstance(holder, DistributedDataParallel) else None
    module = unwrap_compiled(holder if ddp is None else ddp.module)
    units = _fsdp2_units(module) if isinstance(module, FSDPModule) else by_block(module)
    for unit in units if prefix else ():
        unit.name = _with_prefix(prefix, "" if unit.name == "root" else unit.name)
        unit.parameters = {prefix + name: parameter for name, parameter in unit.parameters.items()}
    sharded = _fsdp2_parts(module)
    parameters = {prefix + name: sharded.get(id(p), p) for name, p in module.named_parameters()}
    return Root(module, parameters, units, prefix, ddp)


def _with_prefix(prefix: str, names: str) -> str:
    """The names of modules, such as `norm, output`, beginning with a prefix; the root's is the prefix itself."""
    return ", ".join(f"{prefix}{name}" for name in names.split(", ")) if names else prefix.removesuffix(".")


def _fsdp2_states(module: nn.Module) -> list[Any]:
    """The states of FSDP2's modules; those that were sharded together share one."""
    states = [m._get_fsdp_state() for m in module.modules() if isinstance(m, FSDPModule)]
    return list({id(state): state for state in states}.values())


def _fsdp2_groups(module: nn.Module) -> list[Any]:
    """The parameters that are gathered together; several of a state that lie on several meshes (since torch 2.13)."""
    by_state = (
        getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group] for state in _fsdp2_states(module)
    )
    return [group for groups in by_state for group in groups if group is not None]


def _fsdp2_parts(root: nn.Module) -> dict[int, nn.Parameter]:
    """The parts of parameters that FSDP2 keeps, by the identity of what stands in the model: these or gathered ones."""
    return {
        id(getattr(parameter, form, None)): parameter.sharded_param
        for group in _fsdp2_groups(root)
        for parameter in group.fsdp_params
        for form in ("sharded_param", "_sharded_post_forward_param", "_unsharded_param")
    }


def _fsdp2_units(root: nn.Module) -> list[Unit]:
    """Modules that were sharded together form one unit, such as `norm, output`; all other parameters that FSDP2 shards
    are the root's.

    Source: `_init_fqns`, torch/distributed/fsdp/_fully_shard/_fsdp_state.py.
    """
    states = {name: id(m._get_fsdp_state()) for name, m in root.named_modules() if isinstance(m, FSDPModule)}
    units_by_state = {state: Unit("", [], {}) for state in states.values()}
    for state, unit in units_by_state.items():
        together = ", ".join(name for name, its_state in states.items() if its_state == state)
        unit.name = _WRAPPERS.sub("", together).removeprefix(".") or "root"
    parts = _fsdp2_parts(root)
    for name, parameter in root.named_parameters():
        part = parts.get(id(parameter), parameter)
        if isinstance(part, DTensor):  # else FSDP2 ignores it
            innermost = max((module for module in states if not module or name.startswith(f"{module}.")), key=len)
            units_by_state[states[innermost]].parameters[name] = part
    return [unit for unit in units_by_state.values() if unit.parameters]
