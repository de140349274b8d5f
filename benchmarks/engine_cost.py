"""What the engine costs, as ratios; the two sides of each alternate step by step in one run.

    python benchmarks/engine_cost.py step-time               bucketed ÷ torch-ddp on gloo
    python benchmarks/engine_cost.py step-time --link auto   the same behind the emulated link
    python benchmarks/engine_cost.py recording               recording on ÷ off, and µs per event
    python benchmarks/engine_cost.py labels                  labels with the profiler off ÷ labels removed

Each prints one line per figure: median of the pairs' ratios, and their quartiles. Run them on an idle machine.
"""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import typer
from _common import (
    BATCH,
    LAYERS,
    LINK,
    PAIRS,
    SEQ,
    WIDTH,
    alternate,
    cpu_side,
    end_rank,
    parse_link,
    ranks,
    report,
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
        cpu_side(name, comm, layers, width, seq, batch, bucket_cap_mb=bucket_cap_mb)
        for name in (StrategyName.BUCKETED, StrategyName.TORCH_DDP)
    ]
    report(f"bucketed ÷ torch-ddp, link {emulated or 'none'}", *alternate(sides, pairs), comm)
    end_rank(comm)


@app.command()
def recording(pairs: PAIRS = 15, layers: LAYERS = 6, width: WIDTH = 768, seq: SEQ = 128, batch: BATCH = 8) -> None:
    """Recording on ÷ off at world size 1; steps should take 0.5 s or more."""
    ranks(1)
    comm = connect(torch.device("cpu"))
    side = cpu_side(StrategyName.BUCKETED, comm, layers, width, seq, batch)
    times: list[list[float]] = [[], []]
    per_event: list[float] = []
    for number in range(pairs + 2):
        for recorded in (False, True) if number % 2 else (True, False):
            if recorded:
                with profile(activities=[ProfilerActivity.CPU]) as profiler:
                    on = seconds(side, number)
            else:
                off = seconds(side, number)
        if number >= 2:
            events = len(profiler.profiler.kineto_results.events())  # type: ignore[union-attr]
            per_event.append((on - off) * 1e6 / events)
            times[0].append(on)
            times[1].append(off)
    report("recording on ÷ off", *times, comm)
    print(f"recording: {statistics.median(per_event):.2f} µs per event, {events} events in the last step")
    end_rank(comm)


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@contextmanager
def without_labels() -> Iterator[None]:
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
    labelled = cpu_side(StrategyName.BUCKETED, comm, layers, width, seq, batch)
    with without_labels():
        bare = cpu_side(StrategyName.BUCKETED, comm, layers, width, seq, batch)
    times: list[list[float]] = [[], []]
    for number in range(pairs + 3):
        for with_them in (False, True) if number % 2 else (True, False):
            if with_them:
                with_labels = seconds(labelled, number)
            else:
                with without_labels():
                    without = seconds(bare, number)
        if number >= 3:
            times[0].append(with_labels)
            times[1].append(without)
    report("labels, profiler off ÷ labels removed", *times, comm)
    end_rank(comm)


if __name__ == "__main__":
    app()
