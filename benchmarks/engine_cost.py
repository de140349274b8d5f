"""What the engine costs, as ratios; the two sides of each alternate step by step in one run.

    python benchmarks/engine_cost.py step-time               bucketed ÷ torch-ddp on gloo
    python benchmarks/engine_cost.py step-time --link auto   the same behind the emulated link
    python benchmarks/engine_cost.py recording               recording on ÷ off, and µs per event
    python benchmarks/engine_cost.py labels                  labels with the profiler off ÷ labels removed

Each prints one line per figure: median of the pairs' ratios, and their quartiles. Run them on an idle machine.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch.profiler import ProfilerActivity, profile

from engine import labels, record
from engine.cli import AUTO_LINK
from engine.comm import Communicator, connect
from engine.config import Config, Device, StrategyName
from engine.data import Batches
from engine.link import Link
from engine.train import build, train_step

app = typer.Typer(add_completion=False, no_args_is_help=True)
Step = Callable[[int], None]

LAYERS = Annotated[int, typer.Option(help="Layers.")]
WIDTH = Annotated[int, typer.Option(help="Features.")]
SEQ = Annotated[int, typer.Option(help="Tokens per sample.")]
BATCH = Annotated[int, typer.Option(help="Samples per rank.")]
PAIRS = Annotated[int, typer.Option(help="Pairs of steps.")]


def ranks(count: int) -> None:
    """Become a torchrun of this script, unless started by one."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    threads = max(1, len(os.sched_getaffinity(0)) // count)
    if "RANK" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        os.execv(sys.executable, [sys.executable, *run, *sys.argv])
    torch.set_num_threads(threads)


def stepper(config: Config, comm: Communicator) -> Step:
    """A function that trains one step."""
    strategy, optimizer = build(config, comm)
    batches = Batches(seed=0, vocab=config.vocab, seq=config.seq, batch=config.batch)

    def step(number: int) -> None:
        train_step(strategy, optimizer, batches, number, accumulate=config.accumulate, clip_norm=None)

    return step


def seconds(step: Step, number: int, comm: Communicator) -> float:
    """How long the slowest rank takes."""
    comm.barrier()
    start = time.perf_counter()
    step(number)
    return max(comm.gather_objects(time.perf_counter() - start))


def report(what: str, ours: list[float], theirs: list[float], comm: Communicator) -> None:
    """One line."""
    if comm.rank == 0:
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"{what}: {middle:.3f} ({low:.3f} to {high:.3f}, {len(ratios)} pairs; "
            f"medians {statistics.median(ours) * 1e3:.1f} and {statistics.median(theirs) * 1e3:.1f} ms)",
            flush=True,
        )


@app.command()
def step_time(
    link: Annotated[str, typer.Option(help="none, auto or a link.")] = "none",
    bucket_cap_mb: float = 5.0,
    nproc: int = 2,
    pairs: PAIRS = 30,
    layers: LAYERS = 8,
    width: WIDTH = 256,
    seq: SEQ = 64,
    batch: BATCH = 8,
) -> None:
    """Step time of bucketed ÷ torch-ddp."""
    ranks(nproc)
    emulated = None if link == "none" else AUTO_LINK if link == "auto" else Link.parse(link)
    comm = connect(torch.device("cpu"), emulated)
    sides = [
        stepper(
            Config(
                strategy=name,
                out=Path(),
                device=Device.CPU,
                bucket_cap_mb=bucket_cap_mb,
                layers=layers,
                width=width,
                seq=seq,
                batch=batch,
            ),
            comm,
        )
        for name in (StrategyName.BUCKETED, StrategyName.TORCH_DDP)
    ]
    times: list[list[float]] = [[], []]
    for number in range(pairs + 3):
        for side in (0, 1) if number % 2 else (1, 0):  # neither always goes first
            took = seconds(sides[side], number, comm)
            if number >= 3:
                times[side].append(took)
    report(f"bucketed ÷ torch-ddp, link {emulated or 'none'}", *times, comm)
    comm.close()


@app.command()
def recording(pairs: PAIRS = 15, layers: LAYERS = 6, width: WIDTH = 768, seq: SEQ = 128, batch: BATCH = 8) -> None:
    """Recording on ÷ off at world size 1; steps should take 0.5 s or more."""
    ranks(1)
    comm = connect(torch.device("cpu"))
    config = Config(
        strategy=StrategyName.BUCKETED,
        out=Path(),
        device=Device.CPU,
        layers=layers,
        width=width,
        seq=seq,
        batch=batch,
    )
    step = stepper(config, comm)
    times: list[list[float]] = [[], []]
    per_event: list[float] = []
    for number in range(pairs + 2):
        for recorded in (False, True) if number % 2 else (True, False):
            if recorded:
                with profile(activities=[ProfilerActivity.CPU]) as profiler:
                    on = seconds(step, number, comm)
            else:
                off = seconds(step, number, comm)
        if number >= 2:
            events = len(profiler.profiler.kineto_results.events())  # type: ignore[union-attr]
            per_event.append((on - off) * 1e6 / events)
            times[0].append(on)
            times[1].append(off)
    report("recording on ÷ off", *times, comm)
    print(f"recording: {statistics.median(per_event):.2f} µs per event, {events} events in the last step")
    comm.close()


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@contextmanager
def _without_labels() -> Iterator[None]:
    """Spans are empty contexts, instants do nothing, and gradients have no hooks for labels."""
    before = labels.span, labels.instant, record.after_accumulation
    labels.span = lambda *_, **__: _Nothing()  # type: ignore[assignment,return-value]
    labels.instant = lambda _: None
    record.after_accumulation = lambda *_: None
    try:
        yield
    finally:
        labels.span, labels.instant, record.after_accumulation = before


@app.command(name="labels")
def labels_(pairs: PAIRS = 30, layers: LAYERS = 8, width: WIDTH = 256, seq: SEQ = 64, batch: BATCH = 8) -> None:
    """Labels with the profiler off ÷ labels removed, world size 1."""
    ranks(1)
    comm = connect(torch.device("cpu"))
    config = Config(
        strategy=StrategyName.BUCKETED,
        out=Path(),
        device=Device.CPU,
        layers=layers,
        width=width,
        seq=seq,
        batch=batch,
    )
    labelled = stepper(config, comm)
    with _without_labels():
        bare = stepper(config, comm)
    times: list[list[float]] = [[], []]
    for number in range(pairs + 3):
        for with_them in (False, True) if number % 2 else (True, False):
            if with_them:
                with_labels = seconds(labelled, number, comm)
            else:
                with _without_labels():
                    without = seconds(bare, number, comm)
        if number >= 3:
            times[0].append(with_labels)
            times[1].append(without)
    report("labels, profiler off ÷ labels removed", *times, comm)
    comm.close()


if __name__ == "__main__":
    app()
