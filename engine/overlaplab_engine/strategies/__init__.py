"""The strategies, by the names that the command line knows."""

from torch import nn

from overlaplab_engine.config import StrategyName
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.strategies.base import Options, Strategy
from overlaplab_engine.strategies.bucketed import Bucketed
from overlaplab_engine.strategies.naive import Naive
from overlaplab_engine.strategies.per_param import PerParam
from overlaplab_engine.strategies.torch_ddp import TorchDDP
from overlaplab_engine.strategies.torch_fsdp2 import TorchFSDP2
from overlaplab_engine.strategies.zero1 import Zero1
from overlaplab_engine.strategies.zero2 import Zero2
from overlaplab_engine.strategies.zero3 import Zero3

__all__ = ["Options", "Strategy", "make"]


_CLASSES: dict[StrategyName, type[Strategy]] = {
    StrategyName.NAIVE: Naive,
    StrategyName.PER_PARAM: PerParam,
    StrategyName.BUCKETED: Bucketed,
    StrategyName.ZERO1: Zero1,
    StrategyName.ZERO2: Zero2,
    StrategyName.ZERO3: Zero3,
    StrategyName.TORCH_DDP: TorchDDP,
    StrategyName.TORCH_FSDP2: TorchFSDP2,
}


def make(name: StrategyName, model: nn.Module, comm: Communicator, options: Options) -> Strategy:
    """The strategy of that name around `model`. EngineError on all ranks if their models differ."""
    return _CLASSES[name](model, comm, options)
