"""Inspect a user's model: is it torch's DDP, FSDP2, or neither, and how are its parameters grouped and named?"""

import gc
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from overlaplab_engine.errors import EngineError
from overlaplab_engine.models.units import Unit, by_block
from overlaplab_engine.strategies import Strategy
from overlaplab_engine.strategies.gradients.ddp_buckets import uncompiled
from overlaplab_engine.strategies.torch_ddp import TorchDDP
from overlaplab_engine.strategies.torch_fsdp2 import TorchFSDP2

__all__ = ["Subject"]

_HOLDERS = (DistributedDataParallel, FSDPModule)
_WRAPPERS = re.compile(r"(?:^|\.)(?:_checkpoint_wrapped_module|_orig_mod)(?=\.|$)")
"""Name components inserted by checkpointing and compiling; readers of FSDP2's ranges drop them too."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The model that trains under a Recorder."""

    strategy: type[Strategy] | None = None
    """The engine's equivalent strategy: `TorchDDP`, `TorchFSDP2`, or None."""
    module: nn.Module | None = None
    """The module that gives parameters their names: the one inside DDP, or FSDP2's root. None without a model."""
    units: Sequence[Unit] = ()
    """FSDP2's groups that are gathered together, named as in its ranges; else the module's layers and children."""
    ddp: DistributedDataParallel | None = None

    @classmethod
    def of(cls, model: nn.Module) -> "Subject":
        """Inspect `model`, or the DDP or FSDP2 model that holds it: callbacks of frameworks are given the inner one.

        EngineError if it contains several DDP models, whose bucket numbers would collide, or
        several FSDP2 models, whose range names would.
        """
        model = _holder(model) or model
        ddps = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
        if len(ddps) > 1:
            raise EngineError(f"Recorder labels one DDP model, but this model has {len(ddps)}; pass one of them")
        if ddps:
            inner = uncompiled(ddps[0].module)
            return cls(TorchDDP, inner, by_block(inner), ddps[0])
        roots = _fsdp2_roots(model)
        if len(roots) > 1:
            raise EngineError(
                f"Recorder names the units of one FSDP2 model, but this model has {len(roots)}; pass one of them, or "
                "call fully_shard on the module that contains them all"
            )
        if roots:
            return cls(TorchFSDP2, roots[0], _fsdp2_units(roots[0]))
        inner = uncompiled(model)
        return cls(None, inner, by_block(inner))

    def sends(self) -> bool:
        """Whether the passes under way send gradients, and do not only accumulate them; True where nobody knows."""
        if self.ddp is not None:
            return bool(self.ddp.require_backward_grad_sync)
        if self.strategy is TorchFSDP2 and self.module is not None:
            states = [m._get_fsdp_state() for m in self.module.modules() if isinstance(m, FSDPModule)]
            return any(group.reduce_grads for state in states if (group := state._fsdp_param_group) is not None)
        return True


def _holder(model: nn.Module) -> nn.Module | None:
    """The DDP or FSDP2 model of which `model` is a part, where there is exactly one."""
    if not dist.is_initialized() or any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        return None
    inner = uncompiled(model)
    # `type`, because asking some objects for their class has effects
    known = [one for one in gc.get_objects() if issubclass(type(one), _HOLDERS)]
    holders = [one for one in known if any(module is inner for module in one.modules())]
    outermost = [one for one in holders if not any(one is part for other in holders for part in _below(other))]
    return outermost[0] if len(outermost) == 1 else None


def _below(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if part is not module]


def _fsdp2_roots(module: nn.Module) -> list[nn.Module]:
    """The outermost sharded modules."""
    if isinstance(module, FSDPModule):
        return [module]
    return list(dict.fromkeys(root for child in module.children() for root in _fsdp2_roots(child)))


def _fsdp2_units(root: nn.Module) -> list[Unit]:
    """Modules that were sharded together form one unit, such as `norm, output`; all other parameters are the root's.

    Source: `_init_fqns`, torch/distributed/fsdp/_fully_shard/_fsdp_state.py.
    """
    states = {name: id(m._get_fsdp_state()) for name, m in root.named_modules() if isinstance(m, FSDPModule)}
    units_by_state = {state: Unit("", [], {}) for state in states.values()}
    for state, unit in units_by_state.items():
        together = ", ".join(name for name, its_state in states.items() if its_state == state)
        unit.name = _WRAPPERS.sub("", together).removeprefix(".") or "root"
    for name, parameter in root.named_parameters():
        innermost = max((module for module in states if not module or name.startswith(f"{module}.")), key=len)
        units_by_state[states[innermost]].parameters[name] = parameter
    return [unit for unit in units_by_state.values() if unit.parameters]
