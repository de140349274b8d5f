"""A strategy whose ranks compute each layer together: the options that it takes, and where it holds parts."""

from typing import Any

from overlaplab_engine.errors import EngineError
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.strategies.base import Strategy


class CutsLayers(Strategy):
    """Layers cut among the ranks of a tensor-parallel group."""

    _tensor: Communicator
    """The ranks that cut the layers."""
    _cut: dict[str, int]
    """The parameters of which this rank holds a part, and the dimension that is cut."""

    @classmethod
    def require(cls, config: Any) -> None:
        """See `Strategy`; nor a mesh that does not cut layers, or not equally."""
        super().require(config)
        if not hasattr(config, "tp"):  # the strategy's own Options
            return
        if config.tp is None or config.tp < 2:
            raise EngineError(f"--strategy {cls.name} cuts layers among --tp ranks: 2 or more")
        if config.heads % config.tp:
            raise EngineError(f"--tp {config.tp} must divide --heads {config.heads}")
        if config.sequence_parallel and config.seq % config.tp:
            raise EngineError(f"--sequence-parallel: --tp {config.tp} must divide --seq {config.seq}")

    def _parts_among(self) -> Communicator | None:
        return self._tensor

    def _holds_part(self, name: str) -> bool:
        return name in self._cut
