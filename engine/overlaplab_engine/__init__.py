"""An instrumented data-parallel engine on torch.distributed, and a recorder for any training loop.

`docs/engine.md` shows how to train a model of one's own with it.
"""

from typing import TYPE_CHECKING

from overlaplab_engine.lazily import lazy_getattr

if TYPE_CHECKING:
    from overlaplab_engine.errors import EngineError as EngineError
    from overlaplab_engine.models.units import Unit as Unit
    from overlaplab_engine.models.units import by_block as by_block
    from overlaplab_engine.models.units import by_size as by_size
    from overlaplab_engine.network.communicator import Communicator as Communicator
    from overlaplab_engine.network.communicator import connect as connect
    from overlaplab_engine.network.link import Link as Link
    from overlaplab_engine.network.mesh import Mesh as Mesh
    from overlaplab_engine.optimizer import AdamW as AdamW
    from overlaplab_engine.recording.recorder import Recorder as Recorder
    from overlaplab_engine.recording.trace_handler import trace_handler as trace_handler
    from overlaplab_engine.strategies import Options as Options
    from overlaplab_engine.strategies import Strategy as Strategy
    from overlaplab_engine.strategies import register as register
    from overlaplab_engine.strategies.bucketed import Bucketed as Bucketed
    from overlaplab_engine.strategies.local_sgd import LocalSGD as LocalSGD
    from overlaplab_engine.strategies.naive import Naive as Naive
    from overlaplab_engine.strategies.per_param import PerParam as PerParam
    from overlaplab_engine.strategies.ring import Ring as Ring
    from overlaplab_engine.strategies.tensor import TensorParallel as TensorParallel
    from overlaplab_engine.strategies.torch_ddp import TorchDDP as TorchDDP
    from overlaplab_engine.strategies.torch_fsdp2 import TorchFSDP2 as TorchFSDP2
    from overlaplab_engine.strategies.torch_tensor import TorchTensorParallel as TorchTensorParallel
    from overlaplab_engine.strategies.tree import Tree as Tree
    from overlaplab_engine.strategies.zero1 import Zero1 as Zero1
    from overlaplab_engine.strategies.zero2 import Zero2 as Zero2
    from overlaplab_engine.strategies.zero3 import Zero3 as Zero3
    from overlaplab_engine.watching.watch import Watch as Watch
    from overlaplab_engine.watching.watch import watch as watch

_HOMES = {
    "AdamW": "optimizer",
    "Bucketed": "strategies.bucketed",
    "Communicator": "network.communicator",
    "EngineError": "errors",
    "Link": "network.link",
    "LocalSGD": "strategies.local_sgd",
    "Mesh": "network.mesh",
    "Naive": "strategies.naive",
    "Options": "strategies",
    "PerParam": "strategies.per_param",
    "Recorder": "recording.recorder",
    "Ring": "strategies.ring",
    "Strategy": "strategies",
    "TensorParallel": "strategies.tensor",
    "TorchDDP": "strategies.torch_ddp",
    "TorchFSDP2": "strategies.torch_fsdp2",
    "TorchTensorParallel": "strategies.torch_tensor",
    "Tree": "strategies.tree",
    "Unit": "models.units",
    "Watch": "watching.watch",
    "Zero1": "strategies.zero1",
    "Zero2": "strategies.zero2",
    "Zero3": "strategies.zero3",
    "by_block": "models.units",
    "by_size": "models.units",
    "connect": "network.communicator",
    "register": "strategies",
    "trace_handler": "recording.trace_handler",
    "watch": "watching.watch",
}
"""The module of each name, imported on first access: torch takes seconds, and the command line's help needs none."""

__all__ = list(_HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__getattr__ = lazy_getattr(__name__, _HOMES)
