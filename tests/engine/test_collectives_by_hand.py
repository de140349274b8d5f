"""Ring and tree beside the library's collectives, on real processes."""

import math
import time

import pytest
import torch
import torch.distributed as dist
from overlaplab_engine import labels
from overlaplab_engine.bench import ALGORITHMS, measure_algorithm
from overlaplab_engine.collectives import ring, tree
from overlaplab_engine.labels import Word
from overlaplab_engine.network.communicator import Communicator
from ranks.engine_ranks import Scenarios
from ranks.label_texts import parse

from overlaplab.costs import hops_ns
from overlaplab.manifest import Link

scenario = Scenarios(__file__)
BY_HAND = {"ring": ring, "tree": tree}


def values(rank: int, elements: int) -> torch.Tensor:
    return torch.randn(elements, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))


@scenario(*BY_HAND)
def sums_are_the_librarys(comm: Communicator, name: str) -> None:
    """All ranks get the same bits; with two ranks, or where sums are exact, those of the library."""
    for elements in (1, 3, 1001):
        got, want = values(comm.rank, elements), values(comm.rank, elements)
        BY_HAND[name].all_reduce(comm, got)
        dist.all_reduce(want)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
        assert comm.gather_objects(got.tolist()) == [got.tolist()] * comm.world_size
        assert comm.world_size > 2 or torch.equal(got, want)
        whole = torch.arange(elements) * (comm.rank + 1)
        expected = whole.clone()
        BY_HAND[name].all_reduce(comm, whole)
        dist.all_reduce(expected)
        assert torch.equal(whole, expected)


@scenario()
def a_tree_adds_up_pair_by_pair(comm: Communicator) -> None:
    parts = [values(rank, 7) for rank in range(comm.world_size)]
    while len(parts) > 1:
        parts = [sum(parts[i + 1 : i + 2], parts[i]) for i in range(0, len(parts), 2)]
    got = values(comm.rank, 7)
    tree.all_reduce(comm, got)
    assert torch.equal(got, parts[0])


@scenario(*BY_HAND)
def every_hop_is_labelled(comm: Communicator, name: str) -> None:
    """A ring's rank sends 2(n−1)/n of the tensor; over a tree all ranks together send as much."""
    n, texts, span = comm.world_size, [], labels.span

    def kept(word: Word, **values: str | int) -> labels.Span:
        texts.extend([labels.label(word, **values)] if word is Word.HOP else [])
        return span(word, **values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labels, "span", kept)
        BY_HAND[name].all_reduce(comm, torch.ones(16 * n), bucket=3)
    fields = [parse(text)[1] for text in texts]
    assert {field["bucket"] for field in fields} == {"3"}
    sent = [sum(int(field["bytes"]) for field in own) for own in comm.gather_objects(fields)]
    assert sum(sent) == 2 * (n - 1) * 64 * n
    if name == "ring":
        assert sent == [2 * (n - 1) * 64] * n
        assert [int(field["hop"]) for field in fields] == list(range(2 * (n - 1)))
        first = {"bucket": "3", "kind": "reduce_scatter", "hop": "0", "bytes": "64"}
        after, before = (comm.rank + 1) % n, (comm.rank - 1) % n
        neighbours = {
            "sends": str(before),
            "to": str(after),
            "receives": str((comm.rank - 2) % n),
            "source": str(before),
        }
        assert fields[0] == first | neighbours
    else:
        assert max(int(field["hop"]) for own in comm.gather_objects(fields) for field in own) == (
            2 * math.ceil(math.log2(n)) - 1
        )


@scenario()
def an_error_aside_is_raised_by_the_wait(comm: Communicator) -> None:
    def fail() -> None:
        raise ZeroDivisionError("aside")

    work = comm.aside(fail)
    with pytest.raises(ZeroDivisionError, match="aside"):
        work.wait()


@scenario(*BY_HAND)
def behind_a_link_hops_take_the_formulas_time(comm: Communicator, name: str) -> None:
    """Around a ring every rank's messages, and up and down a tree those of rank 0, which takes part in every hop."""
    if comm.link is None:
        return
    link = Link(emulated=True, world_size=comm.world_size, bandwidth_gbps=100, latency_us=1)
    since = len(comm.group.messages)
    begun = time.perf_counter_ns()
    BY_HAND[name].all_reduce(comm, torch.ones(40_000 * comm.world_size))
    took = time.perf_counter_ns() - begun
    carried = sum(message.modelled_ns for message in comm.group.messages[since:])
    wanted = hops_ns(160_000 * comm.world_size, link, name)
    if name == "tree" and comm.rank == 0:
        assert carried == pytest.approx(wanted, abs=20)
    if name == "ring":
        assert carried == pytest.approx(2 * wanted, abs=20)  # it sends and receives at once
    assert took >= wanted


@scenario(*ALGORITHMS)
def they_are_measured_and_right(comm: Communicator, name: str) -> None:
    row = measure_algorithm(comm, name, 1003, 1)
    assert row | {"time_ns": 0} == {"algorithm": name, "bytes": 1000, "time_ns": 0, "wrong": 0}
    assert row["time_ns"] > 0


found = scenario.found


@pytest.mark.parametrize(
    ("found", "name"),
    [
        *(param for count in (2, 3) for param in scenario.on(count, "librarys|pair|labelled")),
        *(param for count in (4, 8) for param in scenario.on(count, "librarys|pair|labelled", slow=True)),
        *(param for count in (5, 6, 7) for param in scenario.on(count, "librarys", slow=True)),
        *scenario.on(4, "formula", link=True),
        *scenario.on(2, "measured|aside"),
    ],
    indirect=["found"],
)
def test_scenario(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


if __name__ == "__main__":
    scenario.main()
