"""What a stranger's model is: torch's DDP, FSDP2, or neither; how its parameters are grouped and called."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from overlaplab_engine.errors import EngineError
from overlaplab_engine.models.units import Unit, by_child
from overlaplab_engine.strategies import Strategy
from overlaplab_engine.strategies.ddp_buckets import uncompiled
from overlaplab_engine.strategies.torch_ddp import TorchDDP
from overlaplab_engine.strategies.torch_fsdp2 import TorchFSDP2

__all__ = ["Subject"]

_WRAPPERS = re.compile(r"(?:^|\.)(?:_checkpoint_wrapped_module|_orig_mod)(?=\.|$)")
"""What checkpointing and compiling put between names; readers of FSDP2's ranges leave it out, too."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The model that trains under a Recorder."""

    strategy: type[Strategy] | None = None
    """The strategy of the engine that does the same: `TorchDDP`, `TorchFSDP2`, or None."""
    module: nn.Module | None = None
    """The one whose names parameters go by: inside DDP, or FSDP2's root; None if the model is not known."""
    units: Sequence[Unit] = ()
    """For FSDP2 what is gathered together, named as in its ranges; else the module's layers and other children."""
    ddp: DistributedDataParallel | None = None

    @classmethod
    def of(cls, model: nn.Module) -> "Subject":
        """Look into `model`. EngineError for two DDP models, whose buckets have the same numbers, or FSDP2 models,
        whose ranges have the same names."""
        ddps = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
        if len(ddps) > 1:
            raise EngineError(f"Recorder labels one DDP model, and this has {len(ddps)}; pass the one to look at")
        if ddps:
            inner = uncompiled(ddps[0].module)
            return cls(TorchDDP, inner, by_child(inner), ddps[0])
        roots = _fsdp2_roots(model)
        if len(roots) > 1:
            raise EngineError(
                f"Recorder names the units of one FSDP2 model, and this has {len(roots)}; pass the one to look at, or "
                "fully_shard what holds them all"
            )
        if roots:
            return cls(TorchFSDP2, roots[0], _fsdp2_units(roots[0]))
        inner = uncompiled(model)
        return cls(None, inner, by_child(inner))


def _fsdp2_roots(module: nn.Module) -> list[nn.Module]:
    """The outermost modules that were sharded."""
    if isinstance(module, FSDPModule):
        return [module]
    return list(dict.fromkeys(root for child in module.children() for root in _fsdp2_roots(child)))


def _fsdp2_units(root: nn.Module) -> list[Unit]:
    """Modules that were sharded together are one unit, `norm, output`; what is in none is the root's.

    Source: `_init_fqns`, torch/distributed/fsdp/_fully_shard/_fsdp_state.py.
    """
    names = {name: id(m._get_fsdp_state()) for name, m in root.named_modules() if isinstance(m, FSDPModule)}
    found = {state: Unit("", [], {}) for state in names.values()}
    for state, unit in found.items():
        together = ", ".join(name for name, of in names.items() if of == state)
        unit.name = _WRAPPERS.sub("", together).removeprefix(".") or "root"
    for name, parameter in root.named_parameters():
        innermost = max((own for own in names if not own or name.startswith(f"{own}.")), key=len)
        found[names[innermost]].parameters[name] = parameter
    return [unit for unit in found.values() if unit.parameters]
