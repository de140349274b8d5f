"""The names of the strategies: apart from them, since they import torch, and the command line's help does not."""

from enum import StrEnum

__all__ = ["StrategyName"]


class StrategyName(StrEnum):
    """The strategies, as the command line knows them."""

    NAIVE = "naive"
    PER_PARAM = "per-param"
    BUCKETED = "bucketed"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    ZERO3 = "zero3"
    TORCH_DDP = "torch-ddp"
    TORCH_FSDP2 = "torch-fsdp2"
