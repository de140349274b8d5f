"""The command line of `python -m overlaplab_engine`, which `overlaplab record` forwards to."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from overlaplab_engine.config import Config, Device, Dtype, defaults
from overlaplab_engine.devices import gpus, on_gpus
from overlaplab_engine.errors import EngineError
from overlaplab_engine.network.link import Link, LinkWait
from overlaplab_engine.strategy_names import StrategyName

__all__ = ["main"]

AUTO_LINK = Link(bandwidth_gbps=1, latency_us=500)
"""What `--link auto` emulates on the CPU: a network that two cores attain."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def main(argv: list[str]) -> int:
    """Run; the exit code: 0 done, 2 bad input or a fault, with one line on stderr."""
    try:
        app(argv, standalone_mode=False, prog_name="overlaplab record", obj=argv)
    except EngineError as error:
        return _complain(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted")
    except Exception as error:
        if hasattr(error, "format_message"):  # the command line's own errors, typer's or click's by version
            return _complain(error.format_message())
        raise
    return 0


def _complain(message: str) -> int:
    if os.environ.get("RANK", "0") == "0":  # under torchrun every rank reads the same command line
        print(f"overlaplab record: {message}", file=sys.stderr)
    return 2


def _option(help_: str, *names: str) -> Any:
    return typer.Option(*names, help=help_)


def _sized(help_: str, name: str) -> Any:
    """An option whose default depends on where the ranks compute."""
    return _option(f"{help_}; default {defaults(cuda=False)[name]}, on GPUs {defaults(cuda=True)[name]}.")


@app.command(epilog="Example: overlaplab record --strategy bucketed --bucket-cap-mb 4 --link auto --out runs/bucketed")
def record(
    context: typer.Context,
    strategy: Annotated[str, _option(", ".join(StrategyName))],
    out: Annotated[Path, _option("Directory of the run; an older run in it is replaced.")],
    nproc: Annotated[
        int | None, _option("Ranks to start here; default 2, on GPUs one for each. torchrun starts its own.")
    ] = None,
    device: Annotated[str, _option("auto, cpu or cuda; auto: GPUs if there are two or more, one per rank.")] = "auto",
    layers: Annotated[int, _option("Layers of the transformer.")] = 8,
    width: Annotated[int | None, _sized("Features", "width")] = None,
    heads: Annotated[int | None, _sized("Attention heads", "heads")] = None,
    seq: Annotated[int | None, _sized("Tokens per sample", "seq")] = None,
    vocab: Annotated[int | None, _sized("Size of the vocabulary", "vocab")] = None,
    tied: Annotated[bool, _option("Output projection = embedding.", "--tied/--untied")] = False,
    dtype: Annotated[str | None, _sized("float32, bfloat16 or float64", "dtype")] = None,
    main_grad: Annotated[bool, _option("fp32 gradients beside bfloat16 parameters.", "--main-grad")] = False,
    batch: Annotated[int | None, _sized("Samples per rank and microbatch", "batch")] = None,
    steps: Annotated[int, _option("Recorded steps.")] = 3,
    warmup: Annotated[int | None, _sized("Steps before them", "warmup")] = None,
    accumulate: Annotated[
        int, _option("Microbatches per step; zero2, zero3, torch-fsdp2 send gradients with each, others with the last.")
    ] = 1,
    bucket_cap_mb: Annotated[float, _option("A bucket closes once it holds so many MiB.")] = 25.0,
    first_bucket_mb: Annotated[float | None, _option("Another cap for the first bucket, in MiB.")] = None,
    prefetch: Annotated[int, _option("zero3, torch-fsdp2: units gathered ahead; 0: none.")] = 1,
    overlap_param_gather: Annotated[
        bool,
        _option(
            "zero1, zero2: gather updated parameters during the next forward.",
            "--overlap-param-gather/--no-overlap-param-gather",
        ),
    ] = True,
    keep_last: Annotated[
        bool, _option("torch-fsdp2: keep the last layer from forward into backward, as zero3 does.", "--keep-last")
    ] = False,
    checkpointing: Annotated[bool, _option("Activation checkpointing of each layer.", "--checkpointing")] = False,
    clip_norm: Annotated[float | None, _option("Clip gradients to this global norm.")] = None,
    lr: Annotated[float, _option("AdamW's learning rate.")] = 1e-3,
    link: Annotated[
        str,
        _option(
            f"Emulated link: none, auto ({AUTO_LINK} on the CPU), or BANDWIDTH,LATENCY such as 1Gbps,200us; with "
            "--nproc 1, on a CPU or a GPU, BANDWIDTH,LATENCY,WORLD records one rank of an emulated group of WORLD."
        ),
    ] = "none",
    link_wait: Annotated[
        str,
        _option(
            "What holds up a GPU's stream behind an emulated link: a kernel, which occupies a place on the GPU, or the "
            "host, where a process occupies a core."
        ),
    ] = "kernel",
    communicators: Annotated[
        int,
        _option(
            "zero3 over NCCL: 2 gives gathers a communicator of their own, so that they may run beside reductions. The "
            "default is 1, as no GPU has shown yet that 2 are faster and safe."
        ),
    ] = 1,
    seed: Annotated[int, _option("Seed of weights and batches.")] = 0,
    trace: Annotated[bool, _option("Record, or only run the steps.", "--trace/--no-trace")] = True,
    trace_ranks: Annotated[str | None, _option("Ranks that leave a trace, such as 0,8; default all.")] = None,
    save: Annotated[Path | None, _option("Leave a checkpoint in this directory after the last step.")] = None,
    resume: Annotated[Path | None, _option("Go on from a checkpoint that --save left.")] = None,
) -> None:
    """Train a small transformer with data parallelism, and record a trace per rank.

    Starts the ranks itself; under torchrun, on one machine or several, this process is one rank.
    """
    where = _member(Device, device, "--device")
    under_torchrun = "RANK" in os.environ
    ranks = int(os.environ.get("WORLD_SIZE", 1)) if under_torchrun else _ranks(nproc, where)
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if under_torchrun else ranks
    cuda = on_gpus(where, ranks_here, ranks)
    sizes = {
        "width": width,
        "heads": heads,
        "seq": seq,
        "vocab": vocab,
        "dtype": None if dtype is None else _member(Dtype, dtype, "--dtype"),
        "batch": batch,
        "warmup": warmup,
    }
    config = Config(
        **defaults(cuda) | {name: value for name, value in sizes.items() if value is not None},
        strategy=strategy,
        out=out,
        device=where,
        layers=layers,
        tied=tied,
        main_grad=main_grad,
        steps=steps,
        accumulate=accumulate,
        bucket_cap_mb=bucket_cap_mb,
        first_bucket_mb=first_bucket_mb,
        prefetch=prefetch,
        overlap_param_gather=overlap_param_gather,
        keep_last=keep_last,
        checkpointing=checkpointing,
        clip_norm=clip_norm,
        lr=lr,
        link=_link(link, cuda),
        link_wait=_member(LinkWait, link_wait, "--link-wait"),
        communicators=communicators,
        seed=seed,
        trace=trace,
        trace_ranks=None if trace_ranks is None else _trace_ranks(trace_ranks, ranks),
        save=save,
        resume=resume,
    )
    if config.link_wait is LinkWait.HOST and (config.link is None or not cuda):
        raise EngineError("--link-wait host is for an emulated link on a GPU; leave it out")
    if communicators == 2 and not cuda:
        raise EngineError("--communicators 2 is for NCCL, and these ranks are to run on the CPU; leave it out")
    alone = config.link is not None and config.link.stands_alone(ranks)
    if alone and (save is not None or resume is not None):
        raise EngineError("one rank of an emulated group has no numerics to keep: leave --save and --resume out")
    if save is not None or resume is not None:  # what is amiss is said before the ranks start
        from overlaplab_engine.checkpoint import require_checkpoint, require_place

        if save is not None:
            require_place(save)
        if resume is not None:
            require_checkpoint(resume)
    if under_torchrun:
        from overlaplab_engine.worker import work

        work(config, context.obj)
        return
    from overlaplab_engine.launch import launch

    launch(ranks, context.obj, config.out)
    what = f"one rank of an emulated group of {config.link.world_size}" if alone and config.link else f"{ranks} ranks"
    print(f"overlaplab record: {strategy}, {steps} steps on {what} → {out}", file=sys.stderr)


def _member(kind: Any, value: str, option: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise EngineError(f"{option} {value!r} is none of {', '.join(kind)}") from None


def _trace_ranks(text: str, ranks: int) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) < 10 for word in words):
        raise EngineError(f"--trace-ranks {text!r} is not a list of ranks such as 0,8")
    chosen = sorted({int(word) for word in words})
    if chosen[-1] >= ranks:
        raise EngineError(f"--trace-ranks {text}: there is no rank {chosen[-1]}, ranks count from 0 to {ranks - 1}")
    return tuple(chosen)


def _link(text: str, cuda: bool) -> Link | None:
    if text == "none" or (text == "auto" and cuda):
        return None
    return AUTO_LINK if text == "auto" else Link.parse(text)


def _ranks(nproc: int | None, device: Device) -> int:
    if nproc is not None and nproc < 1:
        raise EngineError("--nproc must be 1 or more")
    count = 0 if device is Device.CPU else gpus(device)  # asked with --nproc too: it may say that there are none
    return nproc or (count if device is Device.CUDA or count >= 2 else 2)
