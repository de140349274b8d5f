"""The parameters that are cut among a tensor-parallel group, and what must hold for that; a base for strategies."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from overlaplab_engine import labels
from overlaplab_engine.errors import EngineError
from overlaplab_engine.labels import Word
from overlaplab_engine.models.deferred import materialise
from overlaplab_engine.models.transformer import Transformer
from overlaplab_engine.network.communicator import Communicator, Work
from overlaplab_engine.strategies.base import Options, Strategy, require_same_model

COLUMNS, ROWS = ("attention.qkv", "up"), ("attention.output", "down")
"""A layer's modules whose weights are cut: by columns of the transposed weight, as papers write it, and by rows."""
NORMS = ("attention_norm", "mlp_norm")


class CutsLayers(Strategy):
    """Layers cut among the ranks of a tensor-parallel group."""

    def __init__(self, model: nn.Module, comm: Communicator, options: Options) -> None:
        super().__init__(model, comm, options)
        self._tensor = tensor_group(self.name, comm)
        self._cut = cut_parameters(model)

    @classmethod
    def require(cls, config: Any) -> None:
        """See `Strategy`. EngineError, too, for a mesh that does not cut layers, or not equally."""
        super().require(config)
        if not hasattr(config, "tp"):  # the strategy's own Options
            return
        if config.tp is None or config.tp < 2:
            raise EngineError(f"--strategy {cls.name} cuts layers among --tp ranks: 2 or more")
        if config.heads % config.tp:
            raise EngineError(f"--tp {config.tp} must divide --heads {config.heads}")
        if config.sequence_parallel and config.seq % config.tp:
            raise EngineError(f"--sequence-parallel: --tp {config.tp} must divide --seq {config.seq}")

    @property
    def _has_replicas(self) -> bool:
        """Whether other ranks hold the same parts."""
        return self.comm.world_size > 1

    @torch.no_grad()
    def full_parameters(self) -> dict[str, torch.Tensor]:
        """See `Strategy`; those that are cut are put together."""
        return {name: self.gather_whole(name, p.detach()) for name, p in self.model.named_parameters()}

    @abstractmethod
    def gather_whole(self, name: str, part: torch.Tensor) -> torch.Tensor:
        """A parameter, or its gradient, of which this rank has `part`; every rank must call it."""

    def _part_holders(self) -> Communicator | None:
        return self._tensor

    def _holds_part(self, name: str) -> bool:
        return name in self._cut


def cut_parameters(model: nn.Module) -> dict[str, int]:
    """The parameters of which a rank holds a part, and the dimension that is cut. Biases of `ROWS` are whole."""
    dimensions = {}
    for name, _ in model.named_parameters():
        module, _, kind = name.rpartition(".")
        if module.endswith(tuple(f".{column}" for column in COLUMNS)):
            dimensions[name] = 0
        elif module.endswith(tuple(f".{row}" for row in ROWS)) and kind == "weight":
            dimensions[name] = 1
    return dimensions


def tensor_group(strategy: str, comm: Communicator) -> Communicator:
    """The ranks that cut the layers. EngineError if there are none."""
    tensor = comm.axis("tp")
    if tensor is None:
        raise EngineError(f"{strategy} needs a tensor-parallel group: connect(…).along(Mesh(…, tp=2))")
    return tensor


def shared_layers(strategy: str, model: nn.Module, tensor: Communicator) -> list[nn.Module]:
    """The model's layers, with the values of rank 0 of `tensor`, the group that will cut them.

    EngineError on all ranks for a model that cannot be cut, or if the ranks' models differ.
    """
    if not isinstance(model, Transformer):
        raise EngineError(f"{strategy} cuts overlaplab_engine's Transformer, not a {type(model).__name__}")
    layers = list(model.layers)
    heads = layers[0].attention.qkv.out_features // (3 * layers[0].attention.head_width)  # type: ignore[union-attr, operator]
    if heads % tensor.world_size:
        raise EngineError(f"{strategy}: {tensor.world_size} ranks cannot share {heads} attention heads equally")
    require_same_model(model, tensor)
    for parameter in model.parameters():
        materialise(parameter)
    tensor.broadcast(list(model.parameters()))
    return layers


def reduce_together(
    grads: Sequence[torch.Tensor], reduce: Callable[[torch.Tensor], Work], prescale: float = 1.0
) -> None:
    """One collective for all these gradients, in place; returns when it has ended."""
    flat = torch.cat([grad.flatten() for grad in grads]).mul_(prescale)
    with labels.span(Word.WAIT):
        reduce(flat).wait()
    for grad, values in zip(grads, torch.split(flat, [grad.numel() for grad in grads]), strict=True):
        grad.copy_(values.view_as(grad))
