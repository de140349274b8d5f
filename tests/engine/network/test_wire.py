"""What is booked on a rank's end of the link."""

import random
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from overlaplab_engine.network.link import Kind, Link
from overlaplab_engine.network.wire import BOTH_WAYS, IN, KEPT_NS, OUT, Wire

LINK = Link(bandwidth_gbps=1, latency_us=1)


def test_what_is_free_first_is_booked() -> None:
    wire = Wire(LINK)
    assert wire.book("a", 100, 50) == 100
    assert wire.book("b", 100, 50) == 150
    assert wire.book("c", 0, 100) == 0  # before them
    assert wire.book("d", 0, 101) == 200
    assert wire.book("b", 400, 50) == 400  # moved
    assert wire.book("e", 0, 40) == 150  # where it was
    wire.correct_booking("e", 150, 195)  # later than it had booked
    assert wire.book("f", 0, 6) == 301
    assert wire.book("g", 0, 5) == 195


def test_a_rank_sends_and_receives_at_once() -> None:
    wire = Wire(LINK)
    assert wire.book("out", 0, 10, OUT) == 0
    assert wire.book("in", 0, 10, IN) == 0
    assert wire.book("out again", 0, 10, OUT) == 10
    assert wire.book("collective", 0, 10) == 20
    assert wire.book("in again", 0, 10, IN) == 10


def test_what_is_long_over_is_forgotten() -> None:
    wire = Wire(LINK)
    for number in range(1000):
        wire.book(number, number * KEPT_NS // 10, 5)
    assert len(wire._booked) == 11


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8), st.sampled_from([OUT, IN, BOTH_WAYS])), max_size=12))
def test_bookings_are_those_of_brute_force(requests: list[tuple[int, int, int]]) -> None:
    wire, taken = Wire(LINK), set[tuple[int, int]]()
    for key, (earliest, duration, ways) in enumerate(requests):
        directions = [way for way in (OUT, IN) if way & ways]
        begin = earliest
        while any((ns, way) in taken for ns in range(begin, begin + duration) for way in directions):
            begin += 1
        assert wire.book(key, earliest, duration, ways) == begin
        taken |= {(ns, way) for ns in range(begin, begin + duration) for way in directions}


@pytest.mark.parametrize("seed", range(5))
def test_ranks_agree_on_times_that_are_free_on_all(seed: int) -> None:
    """Three ranks, each pair of which and all of which are a group; each rank takes the groups in its own order."""
    dice, wires = random.Random(seed), [Wire(LINK) for _ in range(3)]
    clocks = [0, 1_000_000, -5]  # how far the common clock is ahead of each rank's
    groups = [(0, 1), (1, 2), (0, 2), (0, 1, 2)]
    durations = {(group, number): dice.randint(1, 50) for group in groups for number in range(5)}
    arrivals = {key: dice.randint(0, 300) for key in durations}
    began: dict[tuple[object, int], int] = {}

    def member(group: tuple[int, ...], rank: int, barrier: threading.Barrier, told: list[int]) -> None:
        def latest(ns: int) -> int:
            told[group.index(rank)] = ns
            barrier.wait()
            most = max(told)
            barrier.wait()
            return most

        for number in range(5):
            key = group, number
            began[key, rank] = wires[rank].agree(key, arrivals[key], durations[key], BOTH_WAYS, latest, clocks[rank])

    threads = []
    for group in groups:
        shared = threading.Barrier(len(group)), [0] * len(group)
        threads += [threading.Thread(target=member, args=(group, rank, *shared)) for rank in group]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for key in durations:
        assert len({began[key, rank] for rank in key[0]}) == 1
    for rank, wire in enumerate(wires):
        booked = sorted(wire._booked.values())
        assert len(booked) == 15
        assert all(end <= begin for (_, end, _), (begin, _, _) in pairwise(booked))
        for (group, number), (begin, end, _) in wire._booked.items():  # type: ignore[misc]
            key = group, number
            assert (begin + clocks[rank], end - begin) == (began[key, rank], durations[key])


@pytest.mark.parametrize(
    ("kind", "ns"),
    [
        (Kind.BROADCAST, 3 * 10_000 + 8000),
        (Kind.REDUCE, 3 * 10_000 + 8000),
        (Kind.GATHER, 3 * 10_000 + 6000),
        (Kind.SCATTER, 3 * 10_000 + 6000),
        (Kind.ALL_TO_ALL, 3 * 10_000 + 6000),
        (Kind.SEND_RECV, 10_000 + 8000),
    ],
)
def test_the_formulas_of_rooted_collectives_and_messages(kind: Kind, ns: int) -> None:
    """A kilobyte among four ranks: 10 us per message, a byte in 8 ns."""
    assert Link(bandwidth_gbps=1, latency_us=10).modelled_ns(kind, 1000, 4) == ns
