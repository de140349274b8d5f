"""What the engine costs, as ratios; the two sides of each alternate step by step in one run.

    python benchmarks/engine_cost.py step-time               bucketed ÷ torch-ddp on gloo
    python benchmarks/engine_cost.py step-time --link auto   the same behind the emulated link
    python benchmarks/engine_cost.py recording               recording on ÷ off, and µs per event
    python benchmarks/engine_cost.py labels                  labels with the profiler off ÷ labels removed

Each prints one line per figure: median of the pairs' ratios, and their quartiles. Run them on an idle machine.
"""

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
import typer
from _common import (
    BATCH,
    LAYERS,
    LINK,
    PAIRS,
    SEQ,
    WARMUP,
    WIDTH,
    Side,
    compare,
    end_rank,
    make_side,
    parse_link,
    ranks,
    seconds,
)
from overlaplab_engine import labels
from overlaplab_engine.network.communicator import connect
from overlaplab_engine.recording import trace_file as record
from overlaplab_engine.strategy_names import StrategyName
from torch.profiler import ProfilerActivity, profile

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.command()
def step_time(
    link: LINK = "none",
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
    emulated = parse_link(link)
    comm = connect(torch.device("cpu"), emulated)
    sides = [
        partial(seconds, make_side(name, comm, layers, width, seq, batch, bucket_cap_mb=bucket_cap_mb))
        for name in (StrategyName.BUCKETED, StrategyName.TORCH_DDP)
    ]
    compare(f"bucketed ÷ torch-ddp, link {emulated or 'none'}", sides, pairs, comm)
    end_rank(comm)


@app.command()
def recording(pairs: PAIRS = 15, layers: LAYERS = 6, width: WIDTH = 768, seq: SEQ = 128, batch: BATCH = 8) -> None:
    """Recording on ÷ off at world size 1; steps should take 0.5 s or more."""
    ranks(1)
    comm = connect(torch.device("cpu"))
    side = make_side(StrategyName.BUCKETED, comm, layers, width, seq, batch)
    events: list[int] = []

    def record_step() -> float:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            took = seconds(side)
        events.append(len(profiler.profiler.kineto_results.events()))  # type: ignore[union-attr]
        return took

    on, off = compare("recording on ÷ off", (record_step, partial(seconds, side)), pairs, comm)
    per_event = [(a - b) * 1e6 / count for a, b, count in zip(on, off, events[WARMUP:], strict=True)]
    print(f"recording: {statistics.median(per_event):.2f} µs per event, {events[-1]} events in the last step")
    end_rank(comm)


@contextmanager
def without_labels() -> Iterator[None]:
    """Spans are empty contexts, instants do nothing, and gradients have no hooks for labels."""
    before = labels.span, labels.instant, record.after_accumulation
    labels.span = lambda *_, **__: nullcontext()  # type: ignore[assignment,return-value]
    labels.instant = lambda _: None
    record.after_accumulation = lambda *_: None
    try:
        yield
    finally:
        labels.span, labels.instant, record.after_accumulation = before


def with_and_without_labels(
    make: Callable[[], Side], measure: Callable[[Side], float]
) -> tuple[Callable[[], float], Callable[[], float]]:
    """What measures a side that is made with labels, and one that is made and trained without."""
    without = without_labels()
    return partial(measure, make()), without(partial(measure, without(make)()))


@app.command(name="labels")
def labels_(pairs: PAIRS = 30, layers: LAYERS = 8, width: WIDTH = 256, seq: SEQ = 64, batch: BATCH = 8) -> None:
    """Labels with the profiler off ÷ labels removed, world size 1."""
    ranks(1)
    comm = connect(torch.device("cpu"))
    sides = with_and_without_labels(partial(make_side, StrategyName.BUCKETED, comm, layers, width, seq, batch), seconds)
    compare("labels, profiler off ÷ labels removed", sides, pairs, comm)
    end_rank(comm)


if __name__ == "__main__":
    app()
