"""The network model: how long a collective takes, around a ring or in trees (docs/design.md, "The link, emulated")."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from statistics import NormalDist, median
from typing import Literal, TypeAlias

from overlaplab.errors import OverlaplabError
from overlaplab.manifest import Link

ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""How many times a collective goes around the ring. Each time a rank sends n-1 messages of 1/n of the full tensor."""

MESSAGE = "send_recv"
"""The kind of a message from one rank to another."""
Algorithm: TypeAlias = Literal["auto", "ring"]
_SPEC = re.compile(r"(?P<rate>\d+(\.\d+)?|\.\d+)Gbps,(?P<latency>\d+(\.\d+)?|\.\d+)us")


def parse_link(text: str, ranks: int) -> Link:
    """`1Gbps,200us` as an emulated link of so many ranks. Raises `OverlaplabError` for anything else."""
    match = _SPEC.fullmatch(text.strip())
    if match is None or not (rate := float(match["rate"])):
        raise OverlaplabError(f"--link {text}: not BANDWIDTH,LATENCY", remedy="As in --link 1Gbps,200us.")
    return Link(emulated=True, bandwidth_gbps=rate, latency_us=float(match["latency"]), world_size=ranks)


def transfer_ns(kind: str, num_bytes: int, link: Link, hops: str | None = None) -> int:
    """T = s·α + f·bytes ÷ bandwidth in ns, for `num_bytes` of the full (gathered) tensor.

    For n ranks, each rank sends s = n-1 messages one after the other, and f = (n-1)/n of the tensor; an all-reduce
    twice as much. `hops_ns` has those made by hand, `message_ns` a `send_recv`. Raises ValueError for a kind
    without a model.
    """
    if kind == MESSAGE:
        return message_ns(num_bytes, link)
    if hops is not None:
        return hops_ns(num_bytes, link, hops)
    if kind not in ROUNDS:
        raise ValueError(f"no model of {kind}")
    messages = ROUNDS[kind] * (link.world_size - 1)
    return round(messages * link.latency_us * 1e3 + messages / link.world_size * num_bytes * 8 / link.bandwidth_gbps)


def tree_ns(kind: str, num_bytes: int, link: Link) -> int:
    """T of `num_bytes` of the full (gathered) tensor in ns, where messages in a row grow with log2 n instead of n.

    An all-reduce goes up and down two binary trees at once. Each carries half of the tensor, in small pieces one after
    the other, and ranks with children in one tree have none in the other, so that a rank sends and receives the tensor
    twice: 2·⌈log2 n⌉·α + 2·bytes ÷ bandwidth. Sources: Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth
    broadcast, reduction and scan" (2009); NCCL's src/graph/tuning.cc (`ncclTopoTuneModel`), which takes log2 of the
    nodes, half of the bandwidth, and a correction for each protocol that is left out here.

    An all-gather doubles in each round what a rank holds, and a reduce-scatter does the same backwards:
    ⌈log2 n⌉·α + (n-1)/n·bytes ÷ bandwidth. Sources: Bruck et al., "Efficient algorithms for all-to-all communications
    in multiport message-passing systems" (1997); Jeaugey, "PAT" (arXiv 2506.20252), as NCCL has it.

    n is `link.world_size`. Raises ValueError for other kinds.
    """
    rounds, n = (link.world_size - 1).bit_length(), link.world_size
    if kind == "all_reduce":
        messages, share = 2 * rounds, 2.0 if n > 1 else 0.0
    elif kind in ("all_gather", "reduce_scatter"):
        messages, share = rounds, (n - 1) / n
    else:
        raise ValueError(f"no tree for {kind}")
    return round(messages * link.latency_us * 1e3 + share * num_bytes * 8 / link.bandwidth_gbps)


def collective_ns(kind: str, num_bytes: int, link: Link, *, algorithm: Algorithm = "auto") -> int:
    """T in ns around a ring, or, with `auto`, by the faster of a ring and trees.

    So NCCL chooses, by its own model of each (`ncclTopoGetAlgoTime` in src/graph/tuning.cc, and the least of them in
    src/enqueue.cc). Raises ValueError for a kind without a model.
    """
    ring_ns = transfer_ns(kind, num_bytes, link)
    if algorithm == "ring" or kind == "all_to_all":
        return ring_ns
    return min(ring_ns, tree_ns(kind, num_bytes, link))


def message_ns(num_bytes: int, link: Link) -> int:
    """T in ns of a message from one rank to another: α + its bytes ÷ bandwidth."""
    return round(link.latency_us * 1e3 + num_bytes * 8 / link.bandwidth_gbps)


def server_ns(gradient_bytes: int, parameter_bytes: int, link: Link) -> int:
    """T in ns of a step's messages to and from a parameter server on one of the n ranks.

    Its link carries the others' gradients one after another, and then, as often, the parameters:
    2(n-1)(α + Ψ ÷ bandwidth) if both have Ψ bytes.
    """
    return (link.world_size - 1) * (message_ns(gradient_bytes, link) + message_ns(parameter_bytes, link))


def hops_ns(num_bytes: int, link: Link, hops: str) -> int:
    """T in ns of an all-reduce that is made by hand of messages, each of α + its bytes ÷ bandwidth.

    Around a `ring`: 2(n-1) hops of 1/n of the tensor, as `transfer_ns`. Up a binomial `tree` and down again: 2⌈log2 n⌉
    hops of the whole tensor. Raises ValueError for others.
    """
    number = hop_count(link.world_size, hops)
    share = link.world_size if hops == "ring" else 1
    return round(number * (link.latency_us * 1e3 + num_bytes / share * 8 / link.bandwidth_gbps))


def hop_count(ranks: int, hops: str) -> int:
    """How many messages one after another an all-reduce by hand takes, see `hops_ns`. Raises ValueError as there."""
    match hops:
        case "ring":
            return 2 * (ranks - 1)
        case "tree":
            return 2 * (ranks - 1).bit_length()
    raise ValueError(f"no model of {hops}")


_LARGE = 10**12
"""Bytes of a tensor so large that latency does not count."""


def tree_until(link: Link) -> int:
    """Up to how many bytes a tree's all-reduce takes no longer than a ring's, both made by hand; 0 if it never does."""
    lead, large_lead = (hops_ns(size, link, "ring") - hops_ns(size, link, "tree") for size in (0, _LARGE))
    return int(_LARGE * lead / (lead - large_lead)) if large_lead < 0 < lead else 0  # a tree's lead shrinks linearly


def ring_factor(kind: str | None, world_size: int) -> float:
    """Bytes that each rank of a ring sends for each byte of the full tensor; 1 for kinds without a ring."""
    rounds = ROUNDS.get(kind or "")
    return 1.0 if rounds is None else rounds * (world_size - 1) / world_size


UNSTEADY = 0.25
"""Transfers do not take as long as their sizes say where a line deviates by a larger share of all measured time."""
_MOST_SIZES = 32
"""Sizes through whose medians lines are tried; of more, every n-th."""

_Z = NormalDist().inv_cdf(0.975)
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t for 95 %, two-sided, with 1 to 10 degrees of freedom."""


def fit_line(num_bytes: Sequence[int], times_ns: Sequence[int]) -> tuple[float, float]:
    """`(latency_ns, ns_per_byte)`, neither negative: the line with the least sum of absolute deviations.

    Of the lines that are tried, each goes through the median times of two sizes, or through one of them with no latency
    or no time per byte: a line of least absolute deviation goes through two points (Bloomfield and Steiger, 1983), and
    medians keep single outliers from being such points. With one size the whole time is taken to be proportional.
    Raises ValueError without measurements.
    """
    if not num_bytes:
        raise ValueError("no transfers to fit")
    by_size: dict[int, list[int]] = {}
    for size, took in zip(num_bytes, times_ns, strict=True):
        by_size.setdefault(size, []).append(took)
    points = [(size, float(median(by_size[size]))) for size in sorted(by_size)]
    if len(points) == 1:
        ((size, time),) = points
        return (0.0, time / size) if size else (time, 0.0)
    points = points[:: -(-len(points) // _MOST_SIZES)]
    lines = [(0.0, time / size) for size, time in points if size] + [(time, 0.0) for _, time in points]
    for (size, time), (larger, longer) in combinations(points, 2):
        slope = (longer - time) / (larger - size)
        if slope >= 0 and time >= slope * size:
            lines.append((time - slope * size, slope))
    return min(lines, key=lambda line: deviation_ns(line, num_bytes, times_ns))


def deviation_ns(line: tuple[float, float], num_bytes: Sequence[int], times_ns: Sequence[int]) -> float:
    """By how much a line of `fit_line` misses the times: the sum of absolute deviations."""
    latency, slope = line
    return sum(abs(latency + slope * size - took) for size, took in zip(num_bytes, times_ns, strict=True))


def students_t(freedom: int) -> float:
    """Student's t for 95 %, two-sided: by the table, then by the first term of its expansion around the normal."""
    return _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _Z + (_Z**3 + _Z) / (4 * freedom)
