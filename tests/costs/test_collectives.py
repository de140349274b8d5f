"""Formulas of collectives, against messages that are sent one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

import pytest
from msgspec.structs import replace

from overlaplab.costs import collective_ns, transfer_ns
from overlaplab.costs.link import tree_ns
from overlaplab.manifest import Link

LINK = Link(emulated=True, bandwidth_gbps=8.0, latency_us=7.0, world_size=1)  # a byte takes a nanosecond
Message = tuple[int, int, list[int]]  # from, to, blocks
Blocks = list[list[frozenset[int]]]  # of each rank and block, whose contributions it holds


def own_parts(n: int) -> Blocks:
    """Before an all-reduce or a reduce-scatter: each rank holds its own contribution to every block."""
    return [[frozenset({rank})] * n for rank in range(n)]


def own_block(n: int) -> Blocks:
    """Before an all-gather: each rank holds one block, to which all have contributed."""
    return [[frozenset(range(n)) if block == rank else frozenset() for block in range(n)] for rank in range(n)]


def send(held: Blocks, rounds: Sequence[Sequence[Message]], block_bytes: float, link: Link) -> float:
    """Send the rounds one after the other and add up what is received; how long that takes in ns.

    A rank sends one message of a round, and receives one.
    """
    took = 0.0
    for messages in rounds:
        assert len({source for source, _, _ in messages}) == len({to for _, to, _ in messages}) == len(messages)
        before = [list(blocks) for blocks in held]
        for source, to, blocks in messages:
            for block in blocks:
                held[to][block] |= before[source][block]
        longest = max((len(blocks) for _, _, blocks in messages), default=0)
        took += link.latency_us * 1e3 + longest * block_bytes * 8 / link.bandwidth_gbps
    return took


def ring_scatter(n: int) -> list[list[Message]]:
    """Block b ends up complete on rank b."""
    return [[(r, (r + 1) % n, [(r - 1 - turn) % n]) for r in range(n)] for turn in range(n - 1)]


def ring_gather(n: int) -> list[list[Message]]:
    return [[(r, (r + 1) % n, [(r - turn) % n]) for r in range(n)] for turn in range(n - 1)]


def bruck_gather(n: int) -> list[list[Message]]:
    """Each round doubles what a rank holds: its own block and those after it."""
    rounds = []
    held = 1
    while held < n:
        more = min(held, n - held)
        rounds.append([(r, (r - held) % n, [(r + place) % n for place in range(more)]) for r in range(n)])
        held += more
    return rounds


def backwards(rounds: Sequence[Sequence[Message]]) -> list[list[Message]]:
    return [[(to, source, blocks) for source, to, blocks in messages] for messages in reversed(rounds)]


RANKS = [1, 2, 3, 4, 5, 6, 7, 8, 12, 13]


@pytest.mark.parametrize("n", RANKS)
def test_rings(n: int) -> None:
    size, link = 840 * n, replace(LINK, world_size=n)
    for kind, rounds, held in (
        ("reduce_scatter", ring_scatter(n), own_parts(n)),
        ("all_gather", ring_gather(n), own_block(n)),
        ("all_reduce", ring_scatter(n) + ring_gather(n), own_parts(n)),
    ):
        assert send(held, rounds, size / n, link) == pytest.approx(transfer_ns(kind, size, link))
        everything = frozenset(range(n))
        assert all(held[r][b] == everything for r in range(n) for b in range(n) if kind != "reduce_scatter" or b == r)


@pytest.mark.parametrize("n", RANKS)
def test_gathers_that_double(n: int) -> None:
    size, link = 840 * n, replace(LINK, world_size=n)
    held = own_block(n)
    assert send(held, bruck_gather(n), size / n, link) == pytest.approx(tree_ns("all_gather", size, link))
    assert all(block == frozenset(range(n)) for blocks in held for block in blocks)
    held = own_parts(n)
    took = send(held, backwards(bruck_gather(n)), size / n, link)
    assert took == pytest.approx(tree_ns("reduce_scatter", size, link))
    assert all(held[rank][rank] == frozenset(range(n)) for rank in range(n))


def parents(n: int) -> Iterator[list[int | None]]:
    """The two trees of NCCL (src/graph/trees.cc): for each rank its parent."""

    def parent(rank: int) -> int | None:
        if rank == 0:
            return None
        bit = rank & -rank
        up = (rank ^ bit) | (bit << 1)
        return up if up < n else rank ^ bit

    yield [parent(rank) for rank in range(n)]
    turn = (lambda rank: n - 1 - rank) if n % 2 == 0 else (lambda rank: (rank - 1) % n)
    back = (lambda rank: n - 1 - rank) if n % 2 == 0 else (lambda rank: (rank + 1) % n)
    yield [None if (up := parent(turn(rank))) is None else back(up) for rank in range(n)]


def tree_by_messages(n: int, size: int, link: Link, pieces: int) -> float:
    """Pieces go up both trees and down again. A rank sends one message at a time, and receives one at a time.

    A message takes the sender for as long as its bytes take, begins to arrive α later, and is received in turn. Of what
    a rank could send the earliest piece goes first.
    """
    takes = size / 2 / pieces * 8 / link.bandwidth_gbps
    trees = list(parents(n))
    missing = {}
    events: list[tuple[float, int, int, int, int, bool]] = []
    out, into = [0.0] * n, [0.0] * n
    ended: dict[int, float] = defaultdict(float)

    children = [[[r for r in range(n) if up[r] == rank] for rank in range(n)] for up in trees]
    for tree, up in enumerate(trees):
        for piece in range(pieces):
            for rank in range(n):
                missing[tree, piece, rank] = len(children[tree][rank])
                if not children[tree][rank] and (above := up[rank]) is not None:
                    heappush(events, (0.0, piece, tree, rank, above, True))
    while events:
        at, piece, tree, rank, to, up = heappop(events)
        if out[rank] > at:
            heappush(events, (out[rank], piece, tree, rank, to, up))
            continue
        out[rank] = at + takes
        into[to] = received = max(at + link.latency_us * 1e3, into[to]) + takes
        ended[to] = max(ended[to], received)
        if up:
            missing[tree, piece, to] -= 1
            if missing[tree, piece, to]:
                continue
            if (above := trees[tree][to]) is not None:
                heappush(events, (received, piece, tree, to, above, True))
                continue
        for child in children[tree][to]:
            heappush(events, (received, piece, tree, to, child, False))
    return max(ended.values(), default=0.0)


@pytest.mark.parametrize("n", [4, 5, 6, 8, 11, 16])
@pytest.mark.parametrize(
    ("size", "least", "most"),
    [
        (200, 0.98, 1.02),  # the messages' latency alone
        (20_000, 0.75, 1.05),  # as long as the latency: the formula adds up what overlaps in part
        (14_000_000, 0.93, 1.08),  # the bytes alone
    ],
)
def test_two_trees(n: int, size: int, least: float, most: float) -> None:
    """Of two and three ranks, which do not send everything twice, a ring is faster anyway."""
    link = replace(LINK, world_size=n)
    assert least < tree_by_messages(n, size, link, 64) / tree_ns("all_reduce", size, link) < most


def test_one_rank_sends_nothing() -> None:
    link = replace(LINK, world_size=1)
    assert transfer_ns("all_reduce", 1000, link) == tree_ns("all_reduce", 1000, link) == 0


def test_auto_leaves_the_ring_where_messages_would_queue_for_minutes() -> None:
    """10,000 ranks with 1 ms per message: a ring takes 20 s before a byte is sent."""
    link = replace(LINK, world_size=10_000, latency_us=1000.0)
    assert collective_ns("all_reduce", 1 << 20, link, algorithm="ring") > 19e9
    assert collective_ns("all_reduce", 1 << 20, link) == tree_ns("all_reduce", 1 << 20, link) < 31e6
    assert collective_ns("all_gather", 1 << 20, link) < 16e6


def test_auto_takes_the_ring_where_bytes_decide() -> None:
    link = replace(LINK, world_size=4)
    assert collective_ns("all_reduce", 1 << 30, link) == transfer_ns("all_reduce", 1 << 30, link)
    assert collective_ns("all_to_all", 1 << 20, link) == transfer_ns("all_to_all", 1 << 20, link)


def test_what_has_no_formula() -> None:
    with pytest.raises(ValueError, match="no model of broadcast"):
        collective_ns("broadcast", 1000, replace(LINK, world_size=8))
    with pytest.raises(ValueError, match="no tree for all_to_all"):
        tree_ns("all_to_all", 1, LINK)
