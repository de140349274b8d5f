"""What benchmarks of the engine share: ranks, models that are trained step by step, and the line that is printed."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
import typer
from _shared import line, take_turns
from overlaplab_engine.cli import AUTO_LINK
from overlaplab_engine.config import Config, Device
from overlaplab_engine.models.batches import Batches
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.link import Link
from overlaplab_engine.strategy_names import StrategyName
from overlaplab_engine.train import build, make_model, train_step
from overlaplab_engine.worker import finish

LAYERS = Annotated[int, typer.Option(help="Layers.")]
WIDTH = Annotated[int, typer.Option(help="Features.")]
SEQ = Annotated[int, typer.Option(help="Tokens per sample.")]
BATCH = Annotated[int, typer.Option(help="Samples per rank.")]
PAIRS = Annotated[int, typer.Option(help="Pairs of steps.")]
LINK = Annotated[str, typer.Option(help="none, auto or a link.")]

WARMUP = 3
"""Pairs that do not count."""


def torchrun(count: int) -> list[str]:
    """This script's command line on so many ranks, which share the cores."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ["OMP_NUM_THREADS"] = str(_threads(count))
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    return [sys.executable, *run, *sys.argv]


def ranks(count: int) -> None:
    """Become a torchrun of this script, unless started by one."""
    if "RANK" not in os.environ:
        os.execv(sys.executable, torchrun(count))
    torch.set_num_threads(_threads(count))


def end_rank(comm: Communicator) -> NoReturn:
    """Leave the other ranks, and end as the engine's ranks do (`overlaplab_engine.worker.finish`)."""
    comm.close()
    finish()


def _threads(count: int) -> int:
    return max(1, len(os.sched_getaffinity(0)) // count)


def parse_link(text: str) -> Link | None:
    """The link of the option's value."""
    return None if text == "none" else AUTO_LINK if text == "auto" else Link.parse(text)


class Side:
    """A model that is trained step by step."""

    def __init__(self, config: Config, comm: Communicator) -> None:
        """Build it as configured."""
        with comm.device:  # a GPU draws many weights at once
            model = make_model(config)
        self.strategy, self.optimizer, _ = build(config, comm, model)
        self._batches = Batches(seed=0, vocab=config.vocab, seq=config.seq, batch=config.batch)
        self._accumulate = config.accumulate
        self._numbers = count()

    def __call__(self) -> None:
        """Train a step."""
        number = next(self._numbers)
        train_step(self.strategy, self.optimizer, self._batches, number, accumulate=self._accumulate, clip_norm=None)


def make_side(
    strategy: StrategyName, comm: Communicator, layers: int, width: int, seq: int, batch: int, **more: Any
) -> Side:
    """A model of this size, with `more` of the configuration."""
    sizes = {"layers": layers, "width": width, "seq": seq, "batch": batch}
    return Side(Config(strategy=strategy, out=Path(), device=Device(comm.device.type), **sizes, **more), comm)


def seconds(side: Side) -> float:
    """How long the slowest rank takes for a step."""
    comm = side.strategy.comm
    comm.barrier()
    start = time.perf_counter()
    side()
    if comm.device.type == "cuda":
        torch.cuda.synchronize()
    return max(comm.gather_objects(time.perf_counter() - start))


def compare(
    what: str,
    sides: Sequence[Callable[[], float]],
    pairs: int,
    comm: Communicator,
    *,
    unit: str = "ms",
    scale: float = 1e3,
) -> list[list[float]]:
    """What two sides find that take turns; rank 0 prints it as one line, values times `scale` being in the unit."""
    ours, theirs = take_turns(sides, pairs, warmup=WARMUP)
    if comm.rank == 0:
        print(line(what, ours, theirs, unit=unit, scale=scale), flush=True)
    return [ours, theirs]
