"""One rank of an emulated group trained beside one process, its phantoms stepped with it.

All ranks get the same batch, so that phantoms' gradients are this rank's own; the parameters that they would gather to
it are those of the one process, which takes each update before they are asked for.
"""

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
import torch.distributed as dist
from overlaplab_engine.network import process_group
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.link import Link
from overlaplab_engine.network.phantoms import Phantoms
from overlaplab_engine.network.process_group import BACKEND, Emulation, register
from overlaplab_engine.optimizer import AdamW, gradient
from overlaplab_engine.strategies import Options, Strategy, make
from overlaplab_engine.strategies.sharding.sharded import Sharded
from overlaplab_engine.strategies.sharding.shards import Flat
from overlaplab_engine.strategy_names import StrategyName

from ranks.engine_trials import BATCHES, SMALL_CAP_MB, transformer

CPU = torch.device("cpu")
FAST = Link(bandwidth_gbps=100, latency_us=1)


@contextmanager
def group_of(size: int, rank: int = 0, device: torch.device = CPU, link: Link = FAST) -> Iterator[Communicator]:
    """This process as one rank of a group of phantoms."""
    register()
    emulation = Emulation(link=link, alone_on=device)
    store = torch._C._distributed_c10d.HashStore()
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=size, pg_options=emulation)
    comm = Communicator(dist.group.WORLD, device)
    interval, threads = sys.getswitchinterval(), torch.get_num_threads()
    sys.setswitchinterval(1e-4)  # as `connect` does
    torch.set_num_threads(1)
    try:
        yield comm
    finally:
        comm.close()
        sys.setswitchinterval(interval)
        torch.set_num_threads(threads)


class Stepped(Phantoms):
    """Phantoms that send what `alone`, the one process, has."""

    strategy: Strategy
    alone: dict[str, torch.Tensor]

    def _receive(self, output: torch.Tensor, begin: int, end: int) -> None:
        full = torch.zeros_like(output)
        for view, name in zip(*self._whose(output, full), strict=True):
            view.copy_(self.alone[name])
        output.data[begin:end].copy_(full[begin:end])

    def _whose(self, output: torch.Tensor, full: torch.Tensor) -> tuple[list[torch.Tensor], list[str]]:
        holders = [*getattr(self.strategy, "sharded_units", ()), *getattr(self.strategy, "_buckets", ())]
        (flat,) = (holder.flat for holder in holders if holder.full is output)
        return flat.layout.views(full), flat.names


def train(
    strategy_name: StrategyName,
    rank: int,
    size: int,
    *,
    peers: type[Stepped] = Stepped,
    steps: int = 3,
    accumulate: int = 1,
    device: torch.device = CPU,
) -> int:
    """Some updates in float64, of which this rank's gradients and parameters are compared with the one process's.

    The number of parameters compared; AssertionError where they differ.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_group, "Phantoms", peers)
        with group_of(size, rank, device) as comm:
            model = transformer().to(device)
            alone = copy.deepcopy(model)
            peers.alone = {name: p.detach() for name, p in alone.named_parameters()}
            strategy = make(strategy_name, model, comm, Options(bucket_cap_mb=SMALL_CAP_MB))
            peers.strategy = strategy
            optimizer, reference = AdamW(strategy.optimized(), lr=1e-3), AdamW(alone.parameters(), lr=1e-3)
            for step in range(steps):
                strategy.zero_grad()
                alone.zero_grad()
                for microbatch in range(accumulate):
                    batch = [t.to(device) for t in BATCHES.rank_batch(step, microbatch, 0)]
                    send = strategy.sends_every_microbatch or microbatch == accumulate - 1
                    with nullcontext() if send else strategy.no_sync():
                        strategy.backward(strategy(*batch) / accumulate, microbatch)
                    (alone(*batch) / accumulate).backward()
                _compare(strategy, {name: p.grad for name, p in alone.named_parameters()}, gradients=True, within=1e-12)
                optimizer.step()
                reference.step()  # all that reads its parameters has been waited for
                strategy.updated()
            strategy.settle()
            return _compare(strategy, peers.alone, gradients=False, within=1e-10)


def _compare(strategy: Strategy, wanted: dict[str, torch.Tensor], *, gradients: bool, within: float) -> int:
    """What this rank owns, against the one process's tensors, to a share of the largest of them."""
    largest = max(float(t.abs().max()) for t in wanted.values())
    compared = 0
    for name, got, want in _owned(strategy, wanted, gradients):
        off = float((got - want).abs().max())
        assert off <= within * largest, f"{name}: off by {off / largest:.1e}"
        compared += got.numel()
    return compared


def _owned(
    strategy: Strategy, wanted: dict[str, torch.Tensor], gradients: bool
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    if not isinstance(strategy, Sharded):
        for name, p in strategy.model.named_parameters():
            yield name, gradient(p) if gradients else p.detach(), wanted[name]
        return
    for flat in strategy.flats:
        full = torch.cat([wanted[name].flatten() for name in flat.names])
        begin = strategy.comm.rank * flat.layout.chunk
        yield ", ".join(flat.names), *_shards(flat, full[begin : begin + flat.layout.chunk], gradients)


def _shards(flat: Flat, want: torch.Tensor, gradients: bool) -> tuple[torch.Tensor, torch.Tensor]:
    got = torch.cat([gradient(piece) if gradients else piece.detach() for piece in flat.pieces.values()])
    return got, want
