"""The network model: how long a collective occupies a rank's link.

T = s·α + f·bytes ÷ bandwidth, where α is the latency, s the number of messages in a row, f the share of the tensor that
a rank sends, and bytes those of the full (gathered) tensor. s and f are those of a ring of n ranks (Thakur,
Rabenseifner, Gropp 2005, "Optimization of collective communication operations in MPICH").
"""

import re
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction

from overlaplab_engine.errors import EngineError


class Kind(StrEnum):
    """The kind of a collective, as spelled in labels and run.json."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    BROADCAST = "broadcast"
    ALL_TO_ALL = "all_to_all"
    BARRIER = "barrier"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    SEND_RECV = "send_recv"
    """A message between two ranks, on either."""


class LinkWait(StrEnum):
    """What holds up a GPU's stream until the emulated link would have carried a collective."""

    KERNEL = "kernel"
    """A one-thread kernel, by the device's clock; it occupies a place on the GPU. See `network.device_clock`."""
    HOST = "host"
    """A process on the host, by the host's clock; nothing occupies the GPU. See `network.host_clock`."""


_SPEC = re.compile(r"(\d+(?:\.\d+)?)Gbps,(\d+(?:\.\d+)?)us(?:,(\d+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Bandwidth per rank and latency per message of a network."""

    bandwidth_gbps: float
    """Bandwidth of each rank, in Gbit/s (decimal)."""
    latency_us: float
    """Latency of each message, in µs."""
    world_size: int | None = None
    """Number of ranks to model; None: the ranks that exist."""
    auto: bool = field(default=False, compare=False)
    """Whether the latency is to be chosen by what the machine can keep; see `network.calibration`."""

    def __post_init__(self) -> None:
        if self.bandwidth_gbps <= 0:
            raise EngineError("--link needs a bandwidth above 0, such as 1Gbps,200us")
        if self.world_size is not None and self.world_size < 1:
            raise EngineError("--link's WORLD is a number of ranks, 1 or more, such as 1Gbps,200us,8")

    @classmethod
    def parse(cls, text: str) -> "Link":
        """Read `1Gbps,200us` or `400Gbps,10us,8`. EngineError for anything else."""
        match = _SPEC.fullmatch(text.strip())
        if match is None:
            raise EngineError(f"--link {text!r} is not BANDWIDTH,LATENCY[,WORLD] such as 1Gbps,200us or 400Gbps,10us,8")
        rate, latency, world = match.groups()
        return cls(bandwidth_gbps=float(rate), latency_us=float(latency), world_size=int(world) if world else None)

    def __str__(self) -> str:
        """The text that `parse` reads."""
        world = "" if self.world_size is None else f",{self.world_size}"
        rate, latency = (f"{Decimal(repr(value)).normalize():f}" for value in (self.bandwidth_gbps, self.latency_us))
        return f"{rate}Gbps,{latency}us{world}"

    def stands_alone(self, ranks: int) -> bool:
        """Whether a single rank stands for a larger group, whose other ranks are phantoms.

        EngineError if there are several ranks, but not as many as the link names.
        """
        if self.world_size in (None, ranks):
            return False
        if ranks == 1:
            return True
        raise EngineError(
            f"--link {self}: WORLD does not match the {ranks} ranks that are recorded; leave WORLD out, "
            f"or record one rank of {self.world_size} with --nproc 1"
        )

    def modelled_ns(self, kind: Kind, nbytes: int, world_size: int) -> int:
        """T of one collective in ns. `nbytes` are the full tensor's; the link's own world size, if any, comes first."""
        n = self.world_size or world_size
        steps, share = _ring(kind, n)
        latency_ns = Fraction(self.latency_us) * 1000
        transfer_ns = share * nbytes * 8 / Fraction(self.bandwidth_gbps)  # a bit at 1 Gbit/s takes 1 ns
        return round(steps * latency_ns + transfer_ns)


HOST_LINK = Link(bandwidth_gbps=200, latency_us=5)
"""What stands for the link between a device and its host: PCIe 4.0 with 16 lanes carries some 25 GB/s."""


def _ring(kind: Kind, n: int) -> tuple[int, Fraction]:
    """The number of messages in a row, and the share of the full tensor that each rank sends."""
    match kind:
        case Kind.ALL_REDUCE | Kind.BARRIER:
            return 2 * (n - 1), Fraction(2 * (n - 1), n)
        case Kind.ALL_GATHER | Kind.REDUCE_SCATTER | Kind.ALL_TO_ALL | Kind.GATHER | Kind.SCATTER:
            return n - 1, Fraction(n - 1, n)
        case Kind.BROADCAST | Kind.REDUCE:
            return n - 1, Fraction(min(n - 1, 1))
        case Kind.SEND_RECV:
            return 1, Fraction(1)
