"""`--link auto`: measure what this machine can keep, and choose the link's latency accordingly.

Gloo takes time of its own for every collective, and its threads share the cores with the computation. So the ranks
compute while they measure: first how long a small collective takes with no time modelled, the floor; then whether
candidates, from the fastest that is above the floor, keep their model.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from overlaplab_engine.network.carrier import Carried
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.link import Link

LATENCIES_US = (500, 1000, 2000, 5000, 10_000, 20_000)
"""What is tried, in µs; few and far apart, so that repeated measurements choose the same."""
ROUNDS = 20
"""Each round has two collectives."""
MAX_STALLED_SHARE = 0.1
"""The slowest collectives, this share, are left out as stalled: a recording repeats steps that are."""
MAX_RATIO = 1.025
"""The largest ratio of occupied to modelled time; that of a step, which does more, may be larger."""
ELEMENTS = 256
"""Each side of the matrices that are multiplied meanwhile."""


def choose_link(comm: Communicator) -> int:
    """Give the communicator's link the least latency that this machine keeps; returns the floor in ns.

    All ranks call it. If the machine keeps none, the latency is the highest of the list.
    """
    link = comm.link
    assert link is not None
    if comm.world_size == 1:  # nothing is sent
        return 0
    comm.set_link(replace(link, latency_us=0))
    floor = int(max(comm.gather_objects(floor_ns(_measure_small_collectives(comm)))))
    link = next_slower(link, at_least_us=floor / 1000 / (comm.world_size - 1))  # an all-gather has as many latencies
    while True:
        comm.set_link(link)
        if (
            all(comm.gather_objects(keeps_model(_measure_small_collectives(comm))))
            or link.latency_us == LATENCIES_US[-1]
        ):
            break
        link = next_slower(link)
    comm.say(f"the link is {link}; a small collective takes {floor / 1e6:.2f} ms on this machine")
    return floor


def next_slower(link: Link, at_least_us: float | None = None) -> Link:
    """The link with the next latency of the list, or the first that is not below `at_least_us`; at most the last."""
    slower = (
        latency
        for latency in LATENCIES_US
        if (latency > link.latency_us if at_least_us is None else latency >= at_least_us)
    )
    return replace(link, latency_us=next(slower, LATENCIES_US[-1]))


def floor_ns(carried: Sequence[Carried]) -> int:
    """How long collectives take beyond what is modelled, but for the stalled ones."""
    return max((c.occupied_ns - c.modelled_ns for c in _without_stalls(carried)), default=0)


def keeps_model(carried: Sequence[Carried]) -> bool:
    """Whether the collectives, but for the stalled ones, took the time that is modelled."""
    usual = _without_stalls(carried)
    return sum(c.occupied_ns for c in usual) <= MAX_RATIO * sum(c.modelled_ns for c in usual)


def _without_stalls(carried: Sequence[Carried]) -> list[Carried]:
    by_delay = sorted(carried, key=lambda c: c.occupied_ns - c.modelled_ns)
    return by_delay[: len(by_delay) - int(MAX_STALLED_SHARE * len(by_delay))]


def _measure_small_collectives(comm: Communicator) -> list[Carried]:
    """How long small collectives took, one after the other, while this rank computed."""
    a = b = torch.ones(ELEMENTS, ELEMENTS)
    full, shard = torch.ones(64 * comm.world_size), torch.ones(64)
    comm.barrier()
    since = comm.mark_log()
    works = []
    for _ in range(ROUNDS):
        works += [comm.all_reduce_max(full.clone()), comm.all_gather(full.clone(), shard)]
    while not works[-1].is_completed():
        a = a @ b
        a /= ELEMENTS
    for work in works:
        work.wait()
    return comm.carried_between(since, comm.mark_log())
