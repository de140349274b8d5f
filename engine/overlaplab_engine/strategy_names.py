"""The names of the strategies, in a module without torch, which the command line's help must not import."""

from enum import StrEnum


class StrategyName(StrEnum):
    """The strategies by their names on the command line."""

    NAIVE = "naive"
    PER_PARAM = "per-param"
    BUCKETED = "bucketed"
    RING = "ring"
    TREE = "tree"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    ZERO3 = "zero3"
    PARAMETER_SERVER = "parameter-server"
    LOCAL_SGD = "local-sgd"
    PIPELINE = "pipeline"
    TORCH_DDP = "torch-ddp"
    TORCH_FSDP2 = "torch-fsdp2"
    TENSOR = "tensor"
    TORCH_TENSOR = "torch-tensor"
