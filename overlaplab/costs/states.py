"""What training keeps of each parameter, by precision and by what ZeRO shards (arXiv 1910.02054, §3.1 and §5)."""

from __future__ import annotations

from bisect import bisect_left

from msgspec import Struct

STAGES = (0, 1, 2, 3)
"""ZeRO's stages: 0 shards nothing, 1 optimizer states, 2 gradients as well, 3 parameters as well."""


class Precision(Struct, frozen=True, kw_only=True):
    """Bytes per parameter."""

    parameters: int
    gradients: int
    optimizer: int
    """AdamW's two moments in fp32, and a master copy of 16-bit parameters."""
    activation: int
    """Bytes per element of an activation."""

    @property
    def total(self) -> int:
        """Bytes of all states: 16, 18 or 20 for each of the Ψ parameters."""
        return self.parameters + self.gradients + self.optimizer


PRECISIONS = {
    "fp32": Precision(parameters=4, gradients=4, optimizer=8, activation=4),
    "bf16": Precision(parameters=2, gradients=2, optimizer=12, activation=2),
    "bf16-fp32-gradients": Precision(parameters=2, gradients=4, optimizer=12, activation=2),
    "bf16-main-grad": Precision(parameters=2, gradients=6, optimizer=12, activation=2),
}
"""Single precision (16Ψ); mixed precision as in ZeRO's paper (16Ψ); with gradients in fp32 (18Ψ); with gradients in 16
bits that are summed into an fp32 copy (20Ψ)."""


class HeldBytes(Struct, frozen=True, kw_only=True):
    """Bytes that a rank holds."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer + self.activations


def held_bytes(parameters: int, precision: Precision, stage: int, ranks: int, activations: int = 0) -> HeldBytes:
    """What each of so many data-parallel ranks holds in a stage of ZeRO; shards are rounded up.

    The units that stage 3 gathers while it uses them are not counted; the engine's recordings show them.
    """
    sharded = {"optimizer": stage >= 1, "gradients": stage >= 2, "parameters": stage >= 3}
    shards = {name: ranks if is_cut else 1 for name, is_cut in sharded.items()}
    held = {name: -(-parameters * getattr(precision, name) // count) for name, count in shards.items()}
    return HeldBytes(**held, activations=activations)


def fits_from(parameters: int, precision: Precision, stage: int, memory: int, activations: int = 0) -> int | None:
    """The smallest number of ranks of which each holds no more than `memory` bytes; None if none does."""
    most = parameters * precision.total  # with more ranks no shard gets smaller
    ranks = range(1, max(most, 1) + 1)

    def fits(count: int) -> bool:
        return held_bytes(parameters, precision, stage, count, activations).total <= memory

    return ranks[bisect_left(ranks, True, key=fits)] if fits(ranks[-1]) else None


def quick_look(parameters: int) -> int:
    """Bytes of the parameters in 16 bits: what loading the model for inference takes, 2Ψ."""
    return 2 * parameters
