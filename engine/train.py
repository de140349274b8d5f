"""Train and record: the loop over steps, on one rank."""

import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime

import torch

from engine import faults, labels
from engine.comm import Communicator, connect
from engine.config import Config, Dtype
from engine.data import Batches
from engine.devices import gpus, on_gpus
from engine.errors import EngineError
from engine.labels import Word
from engine.manifest import manifest
from engine.model import Transformer
from engine.optimizer import AdamW
from engine.record import MANIFEST, Recorder, clear, label_gradients, write_json
from engine.strategies import Options, Strategy, make

__all__ = ["record", "train_step"]

_DTYPES = {Dtype.FLOAT32: torch.float32, Dtype.BFLOAT16: torch.bfloat16, Dtype.FLOAT64: torch.float64}


def train_step(
    strategy: Strategy, optimizer: AdamW, batches: Batches, step: int, *, accumulate: int, clip_norm: float | None
) -> None:
    """One update: forward and backward of each microbatch, gradients sent with the last, then the optimizer."""
    optimizer.zero_grad()
    for microbatch in range(accumulate):
        last = microbatch == accumulate - 1
        tokens, targets = (t.to(strategy.comm.device) for t in batches.of_rank(step, microbatch, strategy.comm.rank))
        with nullcontext() if last else strategy.no_sync():
            with labels.span(Word.FORWARD, microbatch=microbatch):
                loss = strategy(tokens, targets) / accumulate
            strategy.backward(loss, microbatch)
    if clip_norm is not None:
        strategy.clip(clip_norm)
    with labels.span(Word.OPTIMIZER):
        optimizer.step()


def record(config: Config, argv: list[str]) -> None:
    """Train on this rank as configured, and leave a run in `config.out`. Every rank of the job calls this.

    Raises EngineError for what the user can mend.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    device = _device(config)
    with _connected(device, config) as comm:
        if config.trace:
            if int(os.environ["LOCAL_RANK"]) == 0:
                clear(config.out)
            comm.barrier()
        strategy, optimizer = build(config, comm)
        carried = _run(config, comm, strategy, optimizer)
        if not config.trace:
            return
        first, end = carried
        everyones = comm.gather_objects(list(comm.carried[first:end]))
        if comm.rank == 0:
            document = manifest(
                config,
                comm,
                strategy,
                everyones,
                command=shlex.join(["overlaplab", "record", *argv]),
                started_at=started_at,
            )
            write_json(config.out / MANIFEST, document)
        comm.barrier()  # nobody leaves before the run is complete


def build(config: Config, comm: Communicator) -> tuple[Strategy, AdamW]:
    """The model in its strategy, its gradients labelled, and the optimizer."""
    model = Transformer(
        layers=config.layers,
        width=config.width,
        heads=config.heads,
        seq=config.seq,
        vocab=config.vocab,
        tied=config.tied,
        seed=config.seed,
    ).to(device=comm.device, dtype=_DTYPES[config.dtype])
    label_gradients(model)  # before the strategy's hooks: ready comes before launch
    options = Options(
        bucket_cap_mb=config.bucket_cap_mb, first_bucket_mb=config.first_bucket_mb, main_grad=config.main_grad
    )
    return make(config.strategy, model, comm, options), AdamW(model.parameters(), lr=config.lr)


def _run(config: Config, comm: Communicator, strategy: Strategy, optimizer: AdamW) -> tuple[int, int]:
    """The loop; returns which of the link's collectives belong to the recorded steps, as first and end."""
    batches = Batches(seed=config.seed, vocab=config.vocab, seq=config.seq, batch=config.batch)
    recorder = (
        Recorder(
            config.out,
            comm.rank,
            warmup=config.warmup,
            steps=config.steps,
            cuda=comm.device.type == "cuda",
            all_threads=comm.link is not None,
        )
        if config.trace
        else None
    )
    first = 0
    strategy.on_error = faults.tell  # here nobody catches it
    with recorder or nullcontext(), _progress(config, comm) as advance:
        try:
            for step in range(config.warmup + config.steps):
                if step == config.warmup:
                    first = len(comm.carried)
                train_step(strategy, optimizer, batches, step, accumulate=config.accumulate, clip_norm=config.clip_norm)
                advance()
                if recorder is not None:
                    recorder.step()
        except BaseException as error:
            faults.tell(error)  # before the recording is closed, which takes a while
            raise
    return first, len(comm.carried)


@contextmanager
def _progress(config: Config, comm: Communicator) -> Iterator[Callable[[], None]]:
    """A bar on rank 0's stderr if that is a terminal, redrawn between steps only."""
    if comm.rank != 0 or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as bar:
        task = bar.add_task(f"{config.strategy}, {comm.world_size} ranks", total=config.warmup + config.steps)
        bar.refresh()

        def advance() -> None:
            bar.advance(task)
            bar.refresh()

        yield advance


@contextmanager
def _connected(device: torch.device, config: Config) -> Iterator[Communicator]:
    comm = connect(device, config.link)
    yield comm
    comm.close()  # not after an error: others may be waiting in a collective, and the process ends anyway


def _device(config: Config) -> torch.device:
    local_rank, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if not on_gpus(config.device, local_size, int(os.environ["WORLD_SIZE"])):
        # Ranks share the cores; more threads than cores would only get in each other's way.
        torch.set_num_threads(max(1, math.floor(_cores() / local_size)))
        return torch.device("cpu")
    if config.link is not None:
        raise EngineError("--link is emulated on the CPU so far; use --device cpu or --link none")
    count = gpus(config.device)
    if local_rank >= count:
        raise EngineError(
            f"rank {local_rank} of this machine has no GPU of its own ({count} GPUs); use --nproc {count}"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
