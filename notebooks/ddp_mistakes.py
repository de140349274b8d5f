"""Mistakes with data parallelism, made on purpose by two real processes each: what the notebook ddp_lessons shows.

python ddp_mistakes.py                 # makes all of them, and prints what became of each rank, as JSON
python ddp_mistakes.py --record DIR    # records the steps that the notebook's charts show
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from overlaplab_engine import Bucketed, Communicator, Link, Options, PerParam, Recorder, Strategy, connect, labels
from overlaplab_engine.strategies.gradients.buckets import OrderedLauncher
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from overlaplab.ports import free_port

STUCK_S = 10.0
"""How long gloo waits for the other rank where one waits in vain; torch's own default is half an hour."""
LIMIT_S = 120.0
"""After which all processes are ended, whatever they do."""
SMALL_MB = 0.001
"""A cap that gives every layer a bucket of its own."""
LINK = Link.parse("0.2Gbps,2000us")
"""Behind which the charts' steps are recorded."""
LEFT_FIRST, RIGHT_FIRST = ("left", "right"), ("right", "left")


WEIGHTS = {"left": 1.0, "right": 3.0}


class Branches(nn.Module):
    """Two layers of the same shape whose outputs are squared, weighted and added, after one layer that both read."""

    def __init__(self, registered: Sequence[str] = LEFT_FIRST, *, takes_ms: float = 0, norm: bool = False) -> None:
        """`registered`: in which order the module gets its branches; `takes_ms`: what a layer's forward pass takes."""
        super().__init__()
        self.first = nn.Linear(48, 48, bias=False)
        self.norm = nn.BatchNorm1d(48) if norm else nn.Identity()
        made = {name: nn.Linear(48, 48, bias=False) for name in LEFT_FIRST}
        for name in registered:
            self.add_module(name, made[name])
        self._takes_ms = takes_ms

    def forward(self, x: torch.Tensor, branches: Sequence[str] = LEFT_FIRST) -> torch.Tensor:
        """The sum of these branches, which are called in this order."""
        x = self.norm(self._slowly("first", x))
        return torch.stack([WEIGHTS[name] * self._slowly(name, x).square().sum() for name in branches]).sum()

    def _slowly(self, name: str, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.get_submodule(name)(x)
        if self._takes_ms:
            y = _Nap.apply(y, name, self._takes_ms / 1e3)  # type: ignore[no-untyped-call]
        return y


class _Nap(torch.autograd.Function):
    """Time that a layer takes without a core, twice as much in the backward pass as in the forward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, name: str, seconds: float) -> torch.Tensor:
        ctx.name, ctx.seconds = name, seconds
        with labels.Span(f"sleep::{name}"):
            time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> Any:
        with labels.Span(f"sleep::{ctx.name}"):
            time.sleep(2 * ctx.seconds)
        return outputs[0], None, None


def built(registered: Sequence[str] = LEFT_FIRST, **options: Any) -> Branches:
    """The same weights on every rank, by position."""
    torch.manual_seed(0)
    return Branches(registered, **options).double()


def batch(rank: int, step: int = 0) -> torch.Tensor:
    """Other samples on each rank and in each step."""
    return torch.randn(8, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(100 * step + rank)) + rank


def verdict(model: nn.Module, branches: Sequence[Sequence[str]]) -> str:
    """Whether the gradients are the mean over two ranks, of which each has called its `branches`."""
    wanted = built()
    for rank, own in enumerate(branches):
        (wanted(batch(rank), own) / 2).backward()
    off = 0.0
    for name, p in wanted.named_parameters():
        got, want = model.get_parameter(name).grad, p.grad
        assert got is not None
        assert want is not None
        off = max(off, float((got - want).norm() / want.norm()))
    return "no error, and the gradients are right" if off < 1e-12 else f"no error, and gradients are off by {off:.0%}"


# A rank, with each mistake


def hooks_in_own_order(comm: Communicator) -> str:
    """Each gradient is all-reduced the moment it arrives; the ranks call their branches in different orders."""
    model, works = built(), []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p: works.append(dist.all_reduce(p.grad.div_(2), async_op=True))
        )
    model(batch(comm.rank), _own(comm)).backward()
    for work in works:
        work.wait()
    return verdict(model, (LEFT_FIRST, RIGHT_FIRST))


def ddp_with_own_order(comm: Communicator) -> str:
    """The same model and order of calls in DDP."""
    model = DistributedDataParallel(built(), bucket_cap_mb=SMALL_MB)
    model(batch(comm.rank), _own(comm)).backward()
    return verdict(model.module, (LEFT_FIRST, RIGHT_FIRST))


def ours_with_own_order(comm: Communicator) -> str:
    """The same with a hook per parameter that launches in one order on all ranks."""
    strategy = PerParam(built(), comm, Options())
    strategy.backward(strategy(batch(comm.rank), _own(comm)))
    return verdict(strategy.model, (LEFT_FIRST, RIGHT_FIRST))


def ddp_registered_otherwise(comm: Communicator) -> str:
    """Rank 1 has registered its branches in the other order; all shapes are the same."""
    model = DistributedDataParallel(built(_own(comm)))
    model(batch(comm.rank)).backward()
    return verdict(model.module, (LEFT_FIRST, LEFT_FIRST))


def ours_registered_otherwise(comm: Communicator) -> str:
    """The same model in the engine."""
    strategy = Bucketed(built(_own(comm)), comm, Options())
    strategy.backward(strategy(batch(comm.rank)))
    return verdict(strategy.model, (LEFT_FIRST, LEFT_FIRST))


def ddp_unused(comm: Communicator) -> str:
    """Rank 1's batch does not reach the right branch; then both ranks begin another step."""
    model = DistributedDataParallel(built(), bucket_cap_mb=SMALL_MB)
    for _ in range(2):
        model(batch(comm.rank), _used(comm)).backward()
    return verdict(model.module, (LEFT_FIRST, ("left",)))


def ddp_unused_found(comm: Communicator) -> str:
    """The same with DDP's option for it."""
    model = DistributedDataParallel(built(), bucket_cap_mb=SMALL_MB, find_unused_parameters=True)
    model(batch(comm.rank), _used(comm)).backward()
    return verdict(model.module, (LEFT_FIRST, ("left",)))


def ours_unused(comm: Communicator) -> str:
    """The same in the engine, which has no such option."""
    strategy = Bucketed(built(), comm, Options(bucket_cap_mb=SMALL_MB))
    strategy.backward(strategy(batch(comm.rank), _used(comm)))
    return verdict(strategy.model, (LEFT_FIRST, ("left",)))


def ddp_own_buffers(comm: Communicator) -> str:
    """Running means that stay each rank's own."""
    model = DistributedDataParallel(built(norm=True), broadcast_buffers=False)
    return _means_apart(model.module, lambda step: model(batch(comm.rank, step)).backward(), comm)


def ddp_buffers(comm: Communicator) -> str:
    """DDP sends rank 0's before every forward pass, unless it is told not to."""
    model = DistributedDataParallel(built(norm=True))
    return _means_apart(model.module, lambda step: model(batch(comm.rank, step)).backward(), comm)


def ours_buffers(comm: Communicator) -> str:
    """So does the engine."""
    strategy = Bucketed(built(norm=True), comm, Options())
    return _means_apart(strategy.model, lambda step: strategy.backward(strategy(batch(comm.rank, step))), comm)


def ddp_evaluated_alone(comm: Communicator) -> str:
    """After a step rank 0 evaluates, by calling the wrapped model; then both ranks go on training."""
    model = DistributedDataParallel(built(norm=True))
    for step in range(2):
        model(batch(comm.rank, step)).backward()
        if comm.rank == 0:
            model.eval()
            with torch.no_grad():
                model(batch(2))
            model.train()
    return "no error"


def ddp_module_evaluated_alone(comm: Communicator) -> str:
    """The same, but it calls the module inside, which sends nothing."""
    model = DistributedDataParallel(built(norm=True))
    for step in range(2):
        model(batch(comm.rank, step)).backward()
        if comm.rank == 0:
            model.eval()
            with torch.no_grad():
                model.module(batch(2))
            model.train()
    return "no error"


MISTAKES: dict[str, tuple[Callable[[Communicator], str], float]] = {
    "hooks, each rank in its own order": (hooks_in_own_order, LIMIT_S),
    "DDP, same model": (ddp_with_own_order, LIMIT_S),
    "overlaplab, same model": (ours_with_own_order, LIMIT_S),
    "DDP, branches registered in another order": (ddp_registered_otherwise, LIMIT_S),
    "overlaplab, branches registered in another order": (ours_registered_otherwise, LIMIT_S),
    "DDP, a branch unused on rank 1": (ddp_unused, STUCK_S),
    "DDP with find_unused_parameters": (ddp_unused_found, LIMIT_S),
    "overlaplab, a branch unused on rank 1": (ours_unused, LIMIT_S),
    "DDP with broadcast_buffers=False": (ddp_own_buffers, LIMIT_S),
    "DDP, buffers broadcast": (ddp_buffers, LIMIT_S),
    "overlaplab, buffers broadcast": (ours_buffers, LIMIT_S),
    "DDP, rank 0 alone evaluates": (ddp_evaluated_alone, STUCK_S),
    "DDP, rank 0 alone evaluates model.module": (ddp_module_evaluated_alone, LIMIT_S),
}
"""What a rank does, and how long it waits for the other one, by name."""


def _own(comm: Communicator) -> tuple[str, str]:
    return RIGHT_FIRST if comm.rank else LEFT_FIRST


def _used(comm: Communicator) -> tuple[str, ...]:
    return ("left",) if comm.rank else LEFT_FIRST


def _means_apart(model: nn.Module, train: Callable[[int], Any], comm: Communicator) -> str:
    """How far the running means with which the third step's forward pass begins are from rank 0's."""
    seen: list[torch.Tensor] = []
    model.register_forward_pre_hook(lambda module, inputs: seen.append(module.get_buffer("norm.running_mean").clone()))
    for step in range(3):
        train(step)
    means = comm.gather_objects(seen[-1])
    off = float((means[comm.rank] - means[0]).norm() / means[0].norm())
    return (
        "no error, and running means are rank 0's" if off == 0 else f"no error, and running means are off by {off:.0%}"
    )


# The processes


def tried() -> dict[str, list[str]]:
    """Every mistake at once, each in two processes; what became of each rank, by name."""
    started = {name: _started(rank, limit_s) for name, (rank, limit_s) in MISTAKES.items()}
    end = time.monotonic() + LIMIT_S
    found = {name: [_told(*rank, end) for rank in ranks] for name, ranks in started.items()}
    for process, _ in (rank for ranks in started.values() for rank in ranks):
        process.kill()
        process.join()
    return found


def _started(
    rank: Callable[[Communicator], str], limit_s: float, link: Link | None = None
) -> list[tuple[ForkProcess, Connection]]:
    """Two ranks, and where each tells what became of it; forks of this process, which has imported torch."""
    forks, started = multiprocessing.get_context("fork"), []
    port = str(free_port())
    for number in range(2):
        here, there = forks.Pipe()
        process = forks.Process(target=_run, args=(there, rank, limit_s, link, number, port), daemon=True)
        process.start()
        there.close()  # the process alone has it, so that its end is seen here
        started.append((process, here))
    return started


def _told(process: ForkProcess, told: Connection, end: float) -> str:
    """What a rank tells until `end`, or what ended it."""
    if not told.poll(max(end - time.monotonic(), 0)):
        return f"still waiting after {LIMIT_S:g} s"
    try:
        text: str = told.recv()
    except EOFError:
        process.join()
        return f"the process ended by {signal.Signals(-(process.exitcode or 0)).name}"
    return text


def _run(
    there: Connection,
    rank: Callable[[Communicator], str],
    limit_s: float,
    link: Link | None,
    number: int,
    port: str,
) -> None:
    """One rank. It stays until it is ended, so that the other one does not lose it but waits."""
    os.environ |= {"RANK": str(number), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.set_num_threads(1)
    try:
        there.send(rank(connect(torch.device("cpu"), link, timeout_s=limit_s)))
    except Exception as error:
        there.send(f"{type(error).__name__}: {_first_sentences(error)}")
    time.sleep(2 * LIMIT_S)


def _first_sentences(error: Exception) -> str:
    """At most two, without the place in C++ that some begin with, and without ports."""
    text = re.sub(r"^\[[^]]*\] ", "", " ".join(str(error).split()))
    if re.search("onnection (closed|reset)", text):
        return "the connection to the other rank is lost"
    return " ".join(re.split(r"(?<=\.) ", text)[:2])


# The recordings


class OwnOrder(OrderedLauncher[Any]):
    """The mistake of the first lesson: what is ready is launched, whatever comes before it on other ranks."""

    def __init__(self, ordered: OrderedLauncher[Any]) -> None:
        """In place of `ordered`."""
        super().__init__(len(ordered.not_ready), ordered._launch)
        self.reset()

    def mark_ready(self, number: int) -> None:
        """Number `number` may go, and goes."""
        self._ready[number] = True
        self.handles[number] = self._launch(number)

    def reset(self) -> None:
        """Begin again."""
        super().reset()
        self.handles = [None] * len(self._ready)


def record_own_order(comm: Communicator, out: Path) -> None:
    """Hooks that launch in each rank's own order."""
    strategy = PerParam(built(takes_ms=10), comm, Options())
    _train_ours(strategy, out, lambda: _own(comm), lambda: _break(strategy))


def record_one_order(comm: Communicator, out: Path) -> None:
    """Hooks that launch in one order on all ranks."""
    _train_ours(PerParam(built(takes_ms=10), comm, Options()), out, lambda: _own(comm))


def record_unused(comm: Communicator, out: Path) -> None:
    """A branch that rank 1 does not use, in the engine."""
    strategy = Bucketed(built(takes_ms=10), comm, Options(bucket_cap_mb=SMALL_MB))
    _train_ours(strategy, out, lambda: _used(comm))


def record_unused_in_ddp(comm: Communicator, out: Path) -> None:
    """The same in DDP that looks for unused parameters."""
    model = DistributedDataParallel(built(takes_ms=10), bucket_cap_mb=SMALL_MB, find_unused_parameters=True)
    _train_ddp(model, out, lambda: _used(comm))


def record_buffers(comm: Communicator, out: Path) -> None:
    """DDP that sends buffers before each forward pass."""
    _train_ddp(DistributedDataParallel(built(takes_ms=10, norm=True), bucket_cap_mb=SMALL_MB), out, lambda: LEFT_FIRST)


RECORDINGS: dict[str, Callable[[Communicator, Path], None]] = {
    "own-order": record_own_order,
    "one-order": record_one_order,
    "unused": record_unused,
    "unused-in-ddp": record_unused_in_ddp,
    "buffers": record_buffers,
}


def _break(strategy: PerParam) -> None:
    if not isinstance(strategy._launcher, OwnOrder):  # in the first step, and again once the order is learnt
        strategy._launcher = OwnOrder(strategy._launcher)


def _train_ours(
    strategy: Strategy, out: Path, branches: Callable[[], Sequence[str]], before: Callable[[], None] = lambda: None
) -> None:
    with Recorder(out, strategy.model, warmup=2, steps=1) as recorder:
        for step in range(3):
            before()
            strategy.zero_grad()
            strategy.backward(strategy(batch(strategy.comm.rank, step), branches()))
            recorder.step()


def _train_ddp(model: DistributedDataParallel, out: Path, branches: Callable[[], Sequence[str]]) -> None:
    with Recorder(out, model, warmup=2, steps=1) as recorder:
        for step in range(3):
            model.zero_grad()
            model(batch(dist.get_rank(), step), branches()).backward()
            recorder.step()


def recorded(folder: Path) -> None:
    """Record every one of `RECORDINGS` into a folder of its own, one after another, behind an emulated link."""
    for name, record in RECORDINGS.items():
        ranks = [process for process, _ in _started(partial(_record, record, folder / name), LIMIT_S, LINK)]
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            sys.exit(f"{name} was not recorded")


def _record(record: Callable[[Communicator, Path], None], out: Path, comm: Communicator) -> str:
    record(comm, out)
    comm.close()
    os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", metavar="DIR", type=Path, help="record the steps of the charts into this folder")
    if (folder := parser.parse_args().record) is not None:
        recorded(folder)
    else:
        print(json.dumps(tried(), indent=1))
