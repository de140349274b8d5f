"""The network model: how long a collective of a ring takes (docs/design.md, "The link, emulated")."""

from __future__ import annotations

from overlaplab.manifest import Link

__all__ = ["ring_factor", "transfer_ns"]


def transfer_ns(kind: str, num_bytes: int, link: Link) -> int:
    """T = s·α + f·bytes ÷ bandwidth in ns, for `num_bytes` of the full (gathered) tensor.

    Ring all-reduce: s = 2(n-1), f = 2(n-1)/n. Gather and reduce-scatter: s = n-1, f = (n-1)/n. Raises ValueError for
    a kind without a model.
    """
    n = link.world_size
    rounds = {"all_reduce": 2 * (n - 1), "all_gather": n - 1, "reduce_scatter": n - 1}
    if kind not in rounds:
        raise ValueError(f"no model of {kind}")
    latency = rounds[kind] * link.latency_us * 1e3
    return round(latency + rounds[kind] / n * num_bytes * 8 / link.bandwidth_gbps)


def ring_factor(kind: str | None, world_size: int) -> float:
    """Bytes that each rank of a ring sends for each byte of the full tensor."""
    n = world_size
    if kind == "all_reduce":
        return 2 * (n - 1) / n
    return (n - 1) / n if kind in ("all_gather", "reduce_scatter", "all_to_all") else 1.0
