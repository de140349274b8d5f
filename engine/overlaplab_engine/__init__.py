"""An instrumented data-parallel engine on torch.distributed, and a recorder for any training loop.

`docs/engine.md` shows how to train a model of one's own with it.
"""

from typing import TYPE_CHECKING

from overlaplab_engine.lazily import lazy_getattr

if TYPE_CHECKING:
    from overlaplab_engine.errors import EngineError
    from overlaplab_engine.models.units import Unit, by_block, by_size
    from overlaplab_engine.network.communicator import Communicator, connect
    from overlaplab_engine.network.link import Link
    from overlaplab_engine.network.mesh import Mesh
    from overlaplab_engine.optimizer import AdamW
    from overlaplab_engine.recording.recorder import Recorder
    from overlaplab_engine.recording.trace_handler import trace_handler
    from overlaplab_engine.strategies import Options, Strategy, register
    from overlaplab_engine.strategies.bucketed import Bucketed
    from overlaplab_engine.strategies.local_sgd import LocalSGD
    from overlaplab_engine.strategies.naive import Naive
    from overlaplab_engine.strategies.per_param import PerParam
    from overlaplab_engine.strategies.ring import Ring
    from overlaplab_engine.strategies.tensor import TensorParallel
    from overlaplab_engine.strategies.torch_ddp import TorchDDP
    from overlaplab_engine.strategies.torch_fsdp2 import TorchFSDP2
    from overlaplab_engine.strategies.torch_tensor import TorchTensorParallel
    from overlaplab_engine.strategies.tree import Tree
    from overlaplab_engine.strategies.zero1 import Zero1
    from overlaplab_engine.strategies.zero2 import Zero2
    from overlaplab_engine.strategies.zero3 import Zero3
    from overlaplab_engine.watching.watch import Watch, watch

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

__all__ = [
    "AdamW", "Bucketed", "Communicator", "EngineError", "Link", "LocalSGD", "Mesh", "Naive", "Options", "PerParam",
    "Recorder", "Ring", "Strategy", "TensorParallel", "TorchDDP", "TorchFSDP2", "TorchTensorParallel", "Tree", "Unit",
    "Watch", "Zero1", "Zero2", "Zero3", "by_block", "by_size", "connect", "register", "trace_handler", "watch",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__getattr__ = lazy_getattr(__name__, _HOMES)
