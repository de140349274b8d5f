"""What a recording is told."""

from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from overlaplab_engine.errors import EngineError
from overlaplab_engine.network.link import Link, LinkWait

__all__ = ["ON_GPUS", "Config", "Device", "Dtype", "defaults"]


class Device(StrEnum):
    """Where to compute."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Dtype(StrEnum):
    """Type of parameters and activations, by torch's names."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT64 = "float64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One recording."""

    strategy: str
    """How gradients are averaged: a `StrategyName`, or another that is registered."""
    out: Path
    """The run's directory; it is made, and an older run in it is replaced."""
    device: Device = Device.AUTO
    """auto: GPUs if two or more ranks have one each on this machine, else the CPU."""
    layers: int = 8
    """Layers of the transformer."""
    width: int = 256
    """Features."""
    heads: int = 4
    """Attention heads; they divide the width."""
    seq: int = 64
    """Tokens per sample."""
    vocab: int = 1000
    """Size of the vocabulary."""
    tied: bool = False
    """Whether the output projection is the embedding."""
    batch: int = 4
    """Samples per rank and microbatch."""
    steps: int = 3
    """Recorded steps."""
    warmup: int = 2
    """Steps before the recorded ones; at least 1, after which buckets are rebuilt; torch-ddp needs 2."""
    accumulate: int = 1
    """Microbatches per step; zero2, zero3 and torch-fsdp2 send gradients with each, others with the last."""
    bucket_cap_mb: float = 25.0
    """A bucket closes once it holds so many MiB."""
    first_bucket_mb: float | None = None
    """Another cap for the first bucket, in MiB; None: the same."""
    dtype: Dtype = Dtype.FLOAT32
    """Type of parameters and activations."""
    main_grad: bool = False
    """Accumulate and send gradients in fp32; with bfloat16."""
    prefetch: int = 1
    """zero3 and torch-fsdp2: units gathered ahead of the one in use; 0: none, gathers and computation take turns."""
    overlap_param_gather: bool = True
    """zero1 and zero2: gather updated parameters during the next forward pass, or else before it."""
    keep_last: bool = False
    """torch-fsdp2: keep the last layer gathered from its forward into its backward, as zero3 always does."""
    checkpointing: bool = False
    """Activation checkpointing: each layer's forward pass runs again in the backward pass."""
    clip_norm: float | None = None
    """Clip gradients to this global norm; None: not at all."""
    lr: float = 1e-3
    """AdamW's learning rate."""
    link: Link | None = None
    """The emulated link; None: the real one."""
    link_wait: LinkWait = LinkWait.KERNEL
    """What holds up a GPU's stream behind it."""
    communicators: int = 1
    """zero3 over NCCL: 2 gives all-gathers a communicator of their own, so that they may run beside reductions."""
    seed: int = 0
    """Seed of weights and batches."""
    trace: bool = True
    """Whether to record; without, only the steps run."""
    trace_ranks: tuple[int, ...] | None = None
    """The ranks that leave a trace; None: all."""
    save: Path | None = None
    """Where to leave a sharded checkpoint after the last step; a directory."""
    resume: Path | None = None
    """The checkpoint to go on from; training steps are counted on from it, too."""

    def __post_init__(self) -> None:
        """Refuse what cannot run. EngineError names the option and what it must be."""
        for name in ("layers", "width", "heads", "seq", "vocab", "batch", "steps", "warmup", "accumulate"):
            _require(getattr(self, name) >= 1, f"--{name} must be 1 or more")
        _require(self.width % self.heads == 0, f"--heads {self.heads} must divide --width {self.width}")
        _require(self.bucket_cap_mb > 0, "--bucket-cap-mb must be above 0")
        _require(self.first_bucket_mb is None or self.first_bucket_mb > 0, "--first-bucket-mb must be above 0")
        _require(self.clip_norm is None or self.clip_norm > 0, "--clip-norm must be above 0")
        _require(self.lr > 0, "--lr must be above 0")
        _require(
            not self.main_grad or self.dtype is Dtype.BFLOAT16, "--main-grad is for --dtype bfloat16: others have it"
        )
        _require(self.prefetch >= 0, "--prefetch must be 0 or more")
        _require(self.communicators in (1, 2), "--communicators must be 1 or 2")
        _require(
            self.communicators == 1 or self.link is None,
            "--communicators 2 is for NCCL: an emulated link carries one collective at a time",
        )
        from overlaplab_engine.strategies import class_of  # torch takes a while, and the command line's help needs none

        class_of(self.strategy).require(self)
        out = self.out.resolve()
        _require(
            self.save is None or self.save.resolve() not in (out, *out.parents),
            f"--save {self.save} would replace --out {self.out}; name a directory of its own",
        )
        _require(self.trace or self.trace_ranks is None, "--trace-ranks and --no-trace exclude each other")
        _require(not self.out.exists() or self.out.is_dir(), f"--out {self.out} is a file; name a directory")

    def traces(self, rank: int) -> bool:
        """Whether this rank leaves a trace."""
        return self.trace and (self.trace_ranks is None or rank in self.trace_ranks)

    def model(self) -> dict[str, object]:
        """The fields that describe the model and its batches, for the manifest."""
        names = ("layers", "width", "heads", "seq", "vocab", "tied", "batch", "dtype")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name in names}


ON_GPUS: dict[str, Any] = {
    "width": 1024,
    "heads": 16,
    "seq": 512,
    "vocab": 8000,
    "batch": 32,
    "dtype": Dtype.BFLOAT16,
    "warmup": 12,  # in its first ten steps there, DDP's host waits for the step before, to time it
}
"""What `overlaplab record` takes on GPUs for options that are left out: a model that keeps an H100 busy."""


def defaults(cuda: bool) -> dict[str, Any]:
    """What it takes for these options, on GPUs (`cuda`) or on the CPU."""
    return ON_GPUS if cuda else {f.name: f.default for f in fields(Config) if f.name in ON_GPUS}


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise EngineError(message)
