"""The network model: how long a ring collective takes (docs/design.md, "The link, emulated")."""

from __future__ import annotations

import re

from overlaplab.errors import OverlaplabError
from overlaplab.manifest import Link

ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""How many times a collective goes around the ring. Each time a rank sends n-1 messages of 1/n of the full tensor."""


_SPEC = re.compile(r"(?P<rate>\d+(\.\d+)?|\.\d+)Gbps,(?P<latency>\d+(\.\d+)?|\.\d+)us")


def parse_link(text: str, ranks: int) -> Link:
    """`1Gbps,200us` as an emulated link of so many ranks. Raises `OverlaplabError` for anything else."""
    match = _SPEC.fullmatch(text.strip())
    if match is None or not (rate := float(match["rate"])):
        raise OverlaplabError(f"--link {text}: not BANDWIDTH,LATENCY", remedy="As in --link 1Gbps,200us.")
    return Link(emulated=True, bandwidth_gbps=rate, latency_us=float(match["latency"]), world_size=ranks)


def transfer_ns(kind: str, num_bytes: int, link: Link) -> int:
    """T = s·α + f·bytes ÷ bandwidth in ns, for `num_bytes` of the full (gathered) tensor.

    For n ranks, each rank sends s = n-1 messages one after the other, and f = (n-1)/n of the tensor; an all-reduce
    twice as much. Raises ValueError for a kind without a model.
    """
    if kind not in ROUNDS:
        raise ValueError(f"no model of {kind}")
    messages = ROUNDS[kind] * (link.world_size - 1)
    return round(messages * link.latency_us * 1e3 + messages / link.world_size * num_bytes * 8 / link.bandwidth_gbps)


def ring_factor(kind: str | None, world_size: int) -> float:
    """Bytes that each rank of a ring sends for each byte of the full tensor; 1 for kinds without a ring."""
    rounds = ROUNDS.get(kind or "")
    return 1.0 if rounds is None else rounds * (world_size - 1) / world_size
