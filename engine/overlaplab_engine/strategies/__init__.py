"""The strategies, by name. Each that `StrategyName` lists is in the module of its name, which is imported on demand."""

from importlib import import_module

from torch import nn

from overlaplab_engine.errors import EngineError
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.strategies.base import REGISTERED, Options, Strategy, Traits, register
from overlaplab_engine.strategy_names import StrategyName

__all__ = ["Options", "Strategy", "Traits", "class_of", "make", "register"]


def class_of(name: str) -> type[Strategy]:
    """The class that is registered by this name. EngineError if there is none."""
    if name in list(StrategyName):
        import_module(f"{__name__}.{name.replace('-', '_')}")
    if name not in REGISTERED:
        names = dict.fromkeys([*StrategyName, *REGISTERED])
        raise EngineError(f"--strategy {name!r} is none of {', '.join(names)}")
    return REGISTERED[name]


def make(name: str, model: nn.Module, comm: Communicator, options: Options) -> Strategy:
    """The strategy of that name around `model`. EngineError on all ranks if their models differ."""
    return class_of(name).variant(options)(model, comm, options)
