"""What is measured before the first step, with nothing in the way: units, collectives, and the machine itself.

So a prediction need not take apart what the steps have mixed: units compute without communication, collectives run
without computation, and a fixed computation, the probe, tells how fast the machine was before and after.
"""

import statistics
import time
from dataclasses import dataclass

import torch

from overlaplab_engine.models.batches import Batches
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.link import Kind, Link
from overlaplab_engine.recording.borders import UnitBorders
from overlaplab_engine.recording.memory import count_saved
from overlaplab_engine.strategies import Strategy

SIZES = 5  # of collectives, from LEAST_BYTES to MOST_BYTES
ROUNDS = 5  # of each size
LEAST_BYTES = 4096
MOST_BYTES = 16 << 20
UNLIMITED = Link(bandwidth_gbps=1e6, latency_us=0)
"""An emulated link that carries everything at once: what remains is the real one."""
PROBE = 256
"""Each side of the matrices that the probe multiplies."""
PROBES = 10
"""Products in a probe, which take about 5 ms on one core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Collectives of one kind and size on this rank, one after the other, while nothing computes."""

    kind: Kind
    bytes: int
    """Bytes of the full tensor."""
    took_ns: list[int]
    """One for each, from its launch to its end."""
    used_ns: list[int]
    """For each, the cores' time that all threads of the process used, but the one that called."""


def probe_ns() -> int:
    """How long a fixed computation takes on this thread: the median of three."""
    a = torch.ones(PROBE, PROBE, dtype=torch.float32, device="cpu")  # whatever the loop has for defaults
    took = []
    for _ in range(3):
        since = time.perf_counter_ns()
        for _ in range(PROBES):
            torch.mm(a, a)
        took.append(time.perf_counter_ns() - since)
    return int(statistics.median(took))


def unit_passes(strategy: Strategy, borders: UnitBorders, batches: Batches) -> tuple[dict[tuple[str, str], int], int]:
    """How long each (unit, phase) of one microbatch takes in ns, whose gradients are not sent but forgotten.

    One microbatch goes before it, as the first takes longer; returns, too, how many bytes autograd saves of that one.
    """
    tokens, targets = batches.rank_batch(0, 0, strategy.comm.rank)
    with strategy.no_sync():
        with count_saved(strategy.model) as saved:
            loss = strategy(tokens, targets)
        strategy.backward(loss)
        strategy.zero_grad()
        with borders.measure_times() as times:
            strategy.backward(strategy(tokens, targets))
        strategy.zero_grad()
    return times, sum(saved.values())


def idle_collectives(comm: Communicator, largest: int) -> list[Idle]:
    """Measure the kinds that strategies use, in sizes up to `largest` bytes; all ranks call it. Empty for one rank, and
    among phantoms.

    An emulated link models nothing meanwhile, so that these are what really moves the data.
    """
    if comm.world_size == 1 or comm.phantom_ranks:
        return []
    link, rows = comm.link, []
    if link is not None:
        comm.set_link(UNLIMITED)
    ratio = max(min(largest, MOST_BYTES) / LEAST_BYTES, 1) ** (1 / (SIZES - 1))
    for place in range(SIZES):
        elements = round(LEAST_BYTES * ratio**place / 4 / comm.world_size)  # of float32
        full, shard = torch.zeros(elements * comm.world_size), torch.zeros(elements)
        for kind, call, tensors in (
            (Kind.ALL_REDUCE, comm.all_reduce_sum, (full,)),
            (Kind.ALL_GATHER, comm.all_gather, (full, shard)),
            (Kind.REDUCE_SCATTER, comm.reduce_scatter_mean, (shard, full)),
        ):
            took, used = [], []
            for _ in range(ROUNDS):
                since, before = time.perf_counter_ns(), _others_ns()
                call(*tensors).wait()
                took.append(time.perf_counter_ns() - since)
                used.append(_others_ns() - before)
            rows.append(Idle(kind=kind, bytes=full.nbytes, took_ns=took, used_ns=used))
    comm.barrier()
    if link is not None:
        comm.set_link(link)
    return rows


def _others_ns() -> int:
    """What the process's threads but this one have used of cores so far."""
    return time.process_time_ns() - time.thread_time_ns()
