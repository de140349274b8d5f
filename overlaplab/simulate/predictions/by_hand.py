"""The messages of a predicted collective that is made by hand, as the engine makes them and labels them.

Its hops follow each other and take equal parts of its time (overlaplab_engine/collectives/ring.py and tree.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from msgspec import Struct

from overlaplab.costs import hop_count, message_ns
from overlaplab.manifest import Link
from overlaplab.simulate.player import Launch
from overlaplab.simulate.predictions.trace_event import BY_HAND, INSTANT_NS, LANES, Event
from overlaplab.vocabulary import label_text


class Hop(Struct, frozen=True):
    """What a rank sends and receives at once; chunks are numbered by their places in the tensor."""

    number: int
    """From 0; a rank may have nothing to do in some."""
    kind: str
    """The collective that the hop's half makes."""
    sends: tuple[int, int] | None = None
    """A chunk, and the rank that it goes to."""
    receives: tuple[int, int] | None = None
    """A chunk, and the rank that it comes from."""


def rank_hops(launch: Launch, rank: int, ranks: int) -> Iterator[Hop]:
    """One rank's hops of a collective by hand, in order."""
    match launch.hops:
        case "ring":
            for hop in range(2 * (ranks - 1)):
                gathers, half_hop = divmod(hop, ranks - 1)  # 0 while it reduce-scatters, 1 while it all-gathers
                sends = (rank - half_hop - 1 + gathers) % ranks
                kind = "all_gather" if gathers else "reduce_scatter"
                yield Hop(hop, kind, (sends, (rank + 1) % ranks), ((sends - 1) % ranks, (rank - 1) % ranks))
        case "tree":
            yield from _tree_hops(rank, ranks)


def _tree_hops(rank: int, ranks: int) -> Iterator[Hop]:
    """Up a binomial tree to rank 0, each odd multiple of a distance sending to the rank so far before it; then down."""
    distances = [1 << power for power in range((ranks - 1).bit_length())]
    for hop, distance in enumerate((*distances, *reversed(distances))):
        up = hop < len(distances)
        times, remainder = divmod(rank, distance)
        peer = rank - distance if times % 2 else rank + distance
        if remainder or peer >= ranks:
            continue
        is_child = times % 2 == 1
        sends = is_child == up
        kind = "reduce" if up else "broadcast"
        yield Hop(hop, kind, *(((0, peer), None) if sends else (None, (0, peer))))


def chunk_bytes(launch: Launch, chunk: int, ranks: int, item: int) -> int:
    """The bytes of a ring's chunk, whose elements of `item` bytes differ by one in number; else of the whole tensor."""
    if launch.hops != "ring":
        return launch.bytes
    each, more = divmod(launch.bytes // item, ranks)
    return (each + (chunk < more)) * item


class HopEvents:
    """One rank's events of collectives by hand."""

    def __init__(self, rank: int, ranks: int, dtype: str, item: int, link: Link | None) -> None:
        """`item`: the bytes of an element, whose type is `dtype`."""
        self._rank, self._ranks, self._dtype, self._item, self._link = rank, ranks, dtype, item, link
        self._numbers: dict[tuple[int, int], int] = {}

    def events(self, launch: Launch, ran: tuple[int, int]) -> Iterator[Event]:
        """Those of a collective that ran from start to end, made by a thread beside the one that computes."""
        start, end = ran
        count = hop_count(self._ranks, launch.hops or "")
        for hop in rank_hops(launch, self._rank, self._ranks):
            hop_ns = start + (end - start) * hop.number // count, start + (end - start) * (hop.number + 1) // count
            sends, receives = (
                message and (message[0], message[1], chunk_bytes(launch, message[0], self._ranks, self._item))
                for message in (hop.sends, hop.receives)
            )
            sends, receives = (message if message and message[2] else None for message in (sends, receives))
            if sends is None and receives is None:
                continue
            yield Event(BY_HAND, _label(launch, hop, sends, receives), *hop_ns)
            if sends is not None:
                yield from self._message(hop_ns, (self._rank, sends[1]), sends[2])
            if receives is not None:
                yield from self._message(hop_ns, (receives[1], self._rank), receives[2])

    def _message(self, ran: tuple[int, int], lane: tuple[int, int], num_bytes: int) -> Iterator[Event]:
        number = self._numbers.get(lane, 0)
        self._numbers[lane] = number + 1
        group = quote("0:{}-{}".format(*lane))
        yield Event(BY_HAND, label_text("launch", seq=number, group=group), ran[0], ran[0] + INSTANT_NS)
        fields: dict[str, str | int] = {"seq": number, "kind": "send_recv", "dtype": self._dtype, "bytes": num_bytes}
        fields["group"] = group
        if self._link is not None:
            fields |= {"link": quote(str(self._link)), "modelled_ns": message_ns(num_bytes, self._link)}
        yield Event(LANES + lane[0] * self._ranks + lane[1], label_text("comm", **fields), *ran)


def _label(launch: Launch, hop: Hop, sends: tuple[int, int, int] | None, receives: tuple[int, int, int] | None) -> str:
    fields: dict[str, str | int] = {"bucket": launch.what or "0", "kind": hop.kind, "hop": hop.number}
    fields["bytes"] = 0 if sends is None else sends[2]
    if sends is not None:
        fields |= {"sends": sends[0], "to": sends[1]}
    if receives is not None:
        fields |= {"receives": receives[0], "source": receives[1]}
    return label_text("hop", **fields)
