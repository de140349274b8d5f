"""The options of a recording, from which the command line is derived."""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from overlaplab_engine.errors import EngineError
from overlaplab_engine.models.times import Sleep
from overlaplab_engine.network.link import HOST_LINK, Link, LinkWait
from overlaplab_engine.network.mesh import Mesh
from overlaplab_engine.options import STAGES, Dtype, Need, Option, StrategyOptions
from overlaplab_engine.strategy_names import StrategyName


class Device(StrEnum):
    """Where to compute."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


AUTO_LINK = Link(bandwidth_gbps=1, latency_us=500, auto=True)
"""What `--link auto` emulates on the CPU: a network that two cores attain; elsewhere the latency may be higher."""


_SIZE = re.compile(r"(?P<count>\d+(?:\.\d+)?) ?(?P<unit>[kMGT]?B)")
_FACTORS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


class Bytes(int):
    """A number of bytes."""

    @classmethod
    def parse(cls, text: str) -> "Bytes":
        """Read `64MB` or `1.5GB`, decimal. EngineError for anything else, and below one byte."""
        match = _SIZE.fullmatch(text.strip())
        size = 0 if match is None else round(float(match["count"]) * _FACTORS[match["unit"]])
        if size < 1:
            raise EngineError(f"--memory-limit {text!r} is not a size such as 64MB or 24GB")
        return cls(size)

    def __str__(self) -> str:
        """In the largest unit of which there is one: `64 MB`, `1.5 GB`."""
        unit, factor = next((u, f) for u, f in reversed(_FACTORS.items()) if self >= f or f == 1)
        return f"{self / factor:.4g} {unit}"


PIPELINE = Need("--pp: this strategy does not cut the model into stages", lambda traits: traits.stages)
TENSOR = Need("--tp is for tensor and torch-tensor: no other strategy cuts layers", lambda traits: traits.cuts_layers)
HSDP = Need(
    "--hsdp is for zero3 and torch-fsdp2: no other strategy shards parameters",
    lambda traits: "parameters" in traits.sharded,
)
COMMUNICATORS = Need("--communicators 2 is for zero3: no other strategy of ours gathers and reduces at once")


@dataclass(frozen=True, kw_only=True)
class _RunOptions:
    """What trains, and where; and what a step is."""

    strategy: Annotated[str, Option(", ".join(StrategyName))]
    """A `StrategyName`, or another strategy that is registered."""
    out: Annotated[Path, Option("Directory of the run; an older run in it is replaced.")]
    device: Annotated[Device, Option("auto, cpu or cuda; auto: GPUs if there are two or more, one per rank.")] = (
        Device.AUTO
    )
    dp: Annotated[int | None, Option("Data-parallel size; default: the ranks that --pp and --tp leave.")] = None
    pp: Annotated[
        int | None,
        Option("Ranks of each pipeline; default 1, with --strategy pipeline those that --dp leaves."),
        PIPELINE,
    ] = None
    tp: Annotated[int | None, Option("Tensor-parallel size, neighbouring ranks; default 1."), TENSOR] = None
    hsdp: Annotated[
        tuple[int, int] | None,
        Option("REPLICAS x SHARDS such as 2x2: parameters are sharded among neighbouring ranks, and replicated."),
        HSDP,
    ] = None
    layers: Annotated[int, Option("Layers of the transformer.")] = 8
    width: Annotated[int, Option("Features.")] = 256
    heads: Annotated[int, Option("Attention heads.")] = 4
    seq: Annotated[int, Option("Tokens per sample.")] = 64
    vocab: Annotated[int, Option("Size of the vocabulary.")] = 1000
    tied: Annotated[bool, Option("Output projection = embedding.", "--tied/--untied")] = False
    dtype: Annotated[Dtype, Option("float32, bfloat16 or float64.")] = Dtype.FLOAT32
    batch: Annotated[int, Option("Samples per rank and microbatch.")] = 4
    memory_limit: Annotated[
        Bytes | None,
        Option(
            "Such as 64MB: two steps are rehearsed first, and nothing is recorded if any rank's peak of memory exceeds "
            "it; the host's does not count with --offload."
        ),
    ] = None
    largest_batch: Annotated[
        bool, Option("In place of --batch, the largest that --memory-limit leaves room for, found by rehearsing.")
    ] = False
    steps: Annotated[int, Option("Recorded steps.")] = 3
    warmup: Annotated[int, Option("Steps before the recorded ones.")] = 2
    """At least 1, after which buckets are rebuilt; torch-ddp needs 2."""
    accumulate: Annotated[
        int, Option("Microbatches per step; zero2, zero3, torch-fsdp2 send gradients with each, others with the last.")
    ] = 1


@dataclass(frozen=True, kw_only=True)
class Config(StrategyOptions, _RunOptions):
    """One recording. Each field is an option of the command line; those of the last base come first."""

    microbatches: Annotated[
        int,
        Option("pipeline: microbatches per step; with 1 the ranks take turns, as in plain model parallelism."),
        STAGES,
    ] = 8
    checkpointing: Annotated[
        str, Option("Activation checkpointing: all (layers), K (every K-th layer, from the first on) or none.")
    ] = "none"
    """A checkpointed layer's forward pass runs again in the backward pass."""
    clip_norm: Annotated[float | None, Option("Clip gradients to this global norm.")] = None
    lr: Annotated[float, Option("AdamW's learning rate.")] = 1e-3
    link: Annotated[
        Link | None,
        Option(
            f"Emulated link: none, auto (on the CPU {AUTO_LINK}, or the least latency above it that this machine can "
            "keep), BANDWIDTH,LATENCY such as 1Gbps,200us, or a run's directory, whose link is taken; with --nproc 1, "
            "on a CPU or a GPU, BANDWIDTH,LATENCY,WORLD records one rank of an emulated group of WORLD.",
            default="none",
        ),
    ] = None
    link_wait: Annotated[
        LinkWait,
        Option(
            "What holds up a GPU's stream behind an emulated link: a kernel, which occupies a place on the GPU, or the "
            "host, where a process occupies a core."
        ),
    ] = LinkWait.KERNEL
    compute: Annotated[
        Sleep | None,
        Option(
            "real, or sleep: each unit takes a time without using a core, so that many ranks run on few cores; all "
            "else is real. The times follow from the units' sizes, or are given: sleep:FORWARD,BACKWARD[,UPDATE] per "
            "unit, such as sleep:20ms,40ms, or sleep:RUN, those that were measured in a run.",
            default="real",
        ),
    ] = None
    slow_rank: Annotated[
        tuple[int, float] | None,
        Option("With --compute sleep: RANK:FACTOR such as 1:1.5; the rank takes FACTOR times as long."),
    ] = None
    pause_ms: Annotated[
        float | None,
        Option("With --compute sleep: the host pauses for this many ms in the middle of each backward pass."),
    ] = None
    attempts: Annotated[
        int,
        Option(
            "Behind an emulated link on the CPU: how often the steps are recorded anew, as long as the link was not "
            "attained in all of them; the best recording is kept. With --save it is 1, so that the number of updates "
            "does not depend on the machine."
        ),
    ] = 5
    communicators: Annotated[
        int,
        Option(
            "zero3 over NCCL: 2 gives gathers a communicator of their own, so that they may run beside reductions. The "
            "default is 1, as no GPU has shown yet that 2 are faster and safe."
        ),
        COMMUNICATORS,
    ] = 1
    seed: Annotated[int, Option("Seed of weights and batches.")] = 0
    trace: Annotated[bool, Option("Record, or only run the steps.")] = True
    trace_ranks: Annotated[tuple[int, ...] | None, Option("Ranks that leave a trace, such as 0,8; default all.")] = None
    save: Annotated[Path | None, Option("Leave a checkpoint in this directory after the last step.")] = None
    resume: Annotated[Path | None, Option("Go on from a checkpoint that --save left.")] = None
    """Training steps are counted on from it, too."""

    def __post_init__(self) -> None:
        """Refuse what cannot run. EngineError names the option and what it must be."""
        self._require_numbers()
        self._require_combinations()
        # torch takes a while to import, and the command line's help needs none of this
        from overlaplab_engine.models.units import policy
        from overlaplab_engine.strategies import class_of

        class_of(self.strategy).require(self)
        policy(self.units)
        self._require_folders()

    def _require_numbers(self) -> None:
        """Each option by itself."""
        model = ("layers", "width", "heads", "seq", "vocab", "batch")
        for name in (*model, "steps", "warmup", "accumulate", "every", "attempts", "microbatches"):
            _require(getattr(self, name) >= 1, f"--{name} must be 1 or more")
        _require(self.width % self.heads == 0, f"--heads {self.heads} must divide --width {self.width}")
        _require(self.bucket_cap_mb > 0, "--bucket-cap-mb must be above 0")
        _require(self.first_bucket_mb is None or self.first_bucket_mb > 0, "--first-bucket-mb must be above 0")
        _require(self.clip_norm is None or self.clip_norm > 0, "--clip-norm must be above 0")
        _require(self.lr > 0, "--lr must be above 0")
        _require(self.slow_rank is None or self.slow_rank[1] > 0, "--slow-rank's FACTOR must be above 0")
        _require(self.pause_ms is None or self.pause_ms > 0, "--pause-ms must be above 0")
        _require(
            self.checkpointing in ("all", "none") or (self.checkpointing.isdecimal() and int(self.checkpointing) > 0),
            f"--checkpointing {self.checkpointing!r} is none of all, none, or a number K such as 2",
        )
        _require(self.prefetch >= 0, "--prefetch must be 0 or more")
        _require(self.communicators in (1, 2), "--communicators must be 1 or 2")

    def _require_combinations(self) -> None:
        """Options that need another option, or exclude it."""
        _require(
            not self.main_grad or self.dtype is Dtype.BFLOAT16, "--main-grad is for --dtype bfloat16: others have it"
        )
        for name in ("slow_rank", "pause_ms"):
            option = name.replace("_", "-")
            _require(self.compute is not None or getattr(self, name) is None, f"--{option} is for --compute sleep")
        keeps_no_state = self.save is None and self.resume is None
        _require(
            self.compute is None or keeps_no_state,
            "with --compute sleep losses and parameters are meaningless: leave --save and --resume out",
        )
        _require(self.offload or self.host_link == HOST_LINK, "--host-link is for --offload")
        _require(
            self.asynchronous or self.max_staleness is None,
            "--max-staleness is for --asynchronous: otherwise ranks wait for each other",
        )
        _require(
            not self.asynchronous or self.clip_norm is None,
            "--asynchronous applies each rank's gradients by themselves: leave --clip-norm out",
        )
        _require(
            not self.asynchronous or keeps_no_state,
            "--asynchronous: updates are always under way, and no state can be kept; leave --save and --resume out",
        )
        _require(self.memory_limit is not None or not self.largest_batch, "--largest-batch is for --memory-limit SIZE")
        _require(
            self.memory_limit is None or (self.compute is None and not self.asynchronous),
            "--memory-limit goes without --compute sleep and --asynchronous, whose peak is not measured",
        )
        _require(
            self.communicators == 1 or self.link is None,
            "--communicators 2 is for NCCL: an emulated link carries one collective at a time",
        )
        _require(
            self.communicators == 1 or self.hsdp is None, "--communicators 2 goes without --hsdp, which makes its own"
        )
        _require(
            keeps_no_state or (self.tp is None and self.pp is None and self.hsdp is None),
            "--save and --resume are for data parallelism alone: leave --tp, --pp and --hsdp out",
        )
        _require(self.trace or self.trace_ranks is None, "--trace-ranks and --no-trace exclude each other")

    def _require_folders(self) -> None:
        out = self.out.resolve()
        _require(
            self.save is None or self.save.resolve() not in (out, *out.parents),
            f"--save {self.save} would replace --out {self.out}; name a directory of its own",
        )
        _require(not self.out.exists() or self.out.is_dir(), f"--out {self.out} is a file; name a directory")

    @property
    def checkpoint_every(self) -> int:
        """Every how many layers one is checkpointed; 0: none."""
        return int({"none": "0", "all": "1"}.get(self.checkpointing, self.checkpointing))

    def mesh(self, ranks: int) -> Mesh:
        """How so many ranks share the work. EngineError if the sizes asked for do not fit them."""
        pp = self.pp
        if pp is None and self.strategy == StrategyName.PIPELINE:
            pp = max(1, ranks // (self.dp or 1))
        return Mesh.of(ranks, dp=self.dp, pp=pp, tp=self.tp, hsdp=self.hsdp)

    @property
    def microbatches_per_step(self) -> int:
        """How many a rank computes before each update."""
        return self.microbatches if self.strategy == StrategyName.PIPELINE else self.accumulate

    def traces(self, rank: int) -> bool:
        """Whether this rank leaves a trace."""
        return self.trace and (self.trace_ranks is None or rank in self.trace_ranks)

    def model(self) -> dict[str, object]:
        """The fields that describe the model and its batches, for the manifest."""
        names = ("layers", "width", "heads", "seq", "vocab", "tied", "batch", "dtype")
        return {name: getattr(self, name) for name in names}


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


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise EngineError(message)
