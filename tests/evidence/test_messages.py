"""Messages by NCCL are matched by group, sender, receiver, step and order, and waited for kernel by kernel."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made import strangers
from made.strangers import PIPELINE, Groups, Rank, one_f_one_b, run_of

import overlaplab
from overlaplab import Run
from overlaplab.evidence.waits import arrivals

FOUR: Groups = {"1": ("mesh_pp", (0, 1, 2, 3))}


def rows(run: Run, *names: str) -> list[list[Any]]:
    table = overlaplab.collectives(run)[list(names)]
    return [[None if pd.isna(value) else value for value in row] for row in table.to_numpy().tolist()]


@pytest.mark.parametrize("kernel", [strangers.SEND_RECV, "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"])
def test_each_receive_belongs_to_its_send(tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two messages of a batch are two rows, and their wait is that of the kernel, which RCCL calls generic."""
    monkeypatch.setattr(strangers, "SEND_RECV", kernel)
    run = run_of(tmp_path, *one_f_one_b())
    assert rows(run, "index", "rank", "axis", "kind", "bytes", "wait_ns", "transfer_ns", "last_rank") == [
        [0, 0, "pp", "send_recv", 1000, 0, 4000, 0],
        [0, 1, "pp", "send_recv", 1000, 8000, 4000, 0],
        [1, 0, "pp", "send_recv", 1000, 20_000, 16_000, 1],
        [1, 1, "pp", "send_recv", 1000, 0, 16_000, 1],
        [2, 0, "pp", "send_recv", 1000, 20_000, 16_000, 1],
        [2, 1, "pp", "send_recv", 1000, 0, 16_000, 1],
        [3, 0, "pp", "send_recv", 1000, 10_000, 6000, 1],
        [3, 1, "pp", "send_recv", 1000, 0, 6000, 1],
    ]
    assert overlaplab.collectives(run)["unmatched"].isna().all()
    ends = arrivals(run).groupby("match")[["source", "destination"]].max().to_numpy().tolist()
    assert sorted(ends) == [[0, 1], [0, 1], [1, 0], [1, 0]]
    (summary,) = overlaplab.summary(run).query("rank == 0").to_dict("records")
    assert (summary["exposed_wait_ns"], summary["exposed_transfer_ns"]) == (30_000, 26_000)


def test_a_kernel_waits_for_the_last_of_its_messages_ends(tmp_path: Path) -> None:
    """Rank 1 sends to rank 2, which comes at 50, and receives from rank 0, which comes at 20, in one kernel."""
    first, second, third = (Rank(rank, FOUR) for rank in (0, 1, 2))
    for rank in (first, second, third):
        rank.step(3, 0, 90)
        rank.compute(1, 2, 10)
    first.message(("send", 1), 5, 20, 40)
    second.batch([("send", 2), ("recv", 0)], 5, 10, 60)
    third.message(("recv", 1), 5, 50, 60)
    run = run_of(tmp_path, first, second, third, world_size=4)
    assert rows(run, "rank", "wait_ns", "transfer_ns", "last_rank", "unmatched") == [
        [0, 0, 20_000, 0, None],
        [1, 40_000, 20_000, 0, None],
        [1, 40_000, 10_000, 2, None],
        [2, 0, 10_000, 2, None],
    ]


def test_the_message_that_was_not_waited_for_has_no_transfer(tmp_path: Path) -> None:
    """Rank 0's message came second to last in rank 1's kernel: it may have moved while that waited for rank 2."""
    first, second, third = (Rank(rank, FOUR) for rank in (0, 1, 2))
    for rank in (first, second, third):
        rank.step(3, 0, 90)
        rank.compute(1, 2, 10)
    first.message(("send", 1), 5, 8, 40)
    second.batch([("recv", 0), ("send", 2)], 5, 10, 60)
    third.message(("recv", 1), 5, 50, 60)
    run = run_of(tmp_path, first, second, third, world_size=4)
    found = rows(run, "rank", "wait_ns", "transfer_ns", "bus_gb_per_s")
    assert found[:2] == [[0, 2000, None, None], [1, 40_000, None, None]]
    assert found[2:] == [[1, 40_000, 10_000, 0.1], [2, 0, 10_000, 0.1]]


def test_where_the_other_trace_is_missing_nothing_is_said(tmp_path: Path) -> None:
    _, second = one_f_one_b()
    run = run_of(tmp_path, second, world_size=2)
    table = overlaplab.collectives(run)
    assert table[["wait_ns", "transfer_ns", "last_rank", "unmatched"]].isna().all(axis=None)
    assert table["axis"].tolist() == ["pp"] * 4


def test_of_a_batch_with_a_missing_rank_no_wait_is_known(tmp_path: Path) -> None:
    """Rank 2's trace is not here; the message between ranks 0 and 1 is matched, its wait known on rank 0 alone."""
    first, second = (Rank(rank, FOUR) for rank in (0, 1))
    for rank in (first, second):
        rank.step(3, 0, 90)
        rank.compute(1, 2, 10)
    first.message(("send", 1), 5, 8, 40)
    second.batch([("recv", 0), ("send", 2)], 5, 10, 60)
    run = run_of(tmp_path, first, second, world_size=4)
    assert rows(run, "index", "rank", "wait_ns", "transfer_ns") == [
        [0, 0, 2000, None],
        [0, 1, None, None],
        [1, 1, None, None],
    ]


def test_where_counts_differ_the_step_is_not_matched(tmp_path: Path) -> None:
    """Rank 1's second step lacks a receive; the first step is matched."""
    first, second = (Rank(rank, PIPELINE) for rank in (0, 1))
    for number, at in ((3, 0), (4, 100)):
        for rank, kind in ((first, "send"), (second, "recv")):
            rank.step(number, at, at + 90)
            rank.compute(at + 1, at + 2, at + 10)
            rank.message((kind, 1 - rank.rank), at + 5, at + 10, at + 20)
            if rank is first or number == 3:
                rank.message((kind, 1 - rank.rank), at + 8, at + 30, at + 40)
    found = rows(run_of(tmp_path, first, second), "index", "rank", "step", "unmatched")
    assert found[:4] == [[0, 0, 3, None], [0, 1, 3, None], [1, 0, 3, None], [1, 1, 3, None]]
    reason = "in its step rank 0 sent 2 to rank 1, which received 1"
    assert [row[1:] for row in found[4:]] == [[0, 4, reason], [1, 4, reason], [0, 4, reason]]
    assert len({row[0] for row in found[4:]}) == 3


def test_where_sizes_differ_the_step_is_not_matched(tmp_path: Path) -> None:
    first, second = (Rank(rank, PIPELINE) for rank in (0, 1))
    for rank, kind, sizes in ((first, "send", (500, 7)), (second, "recv", (7, 500))):
        rank.step(3, 0, 90)
        rank.compute(1, 2, 10)
        for place, size in enumerate(sizes):
            rank.message((kind, 1 - rank.rank), 5 + 3 * place, 10 + 20 * place, 20 + 20 * place, size=size)
    reason = "in its step rank 1 received other types or sizes than rank 0 sent it"
    assert overlaplab.collectives(run_of(tmp_path, first, second))["unmatched"].tolist() == [reason] * 4


def test_what_would_be_received_before_it_was_sent_is_not_matched(tmp_path: Path) -> None:
    """Both ways, by 1 ms in all: no offset between the clocks explains that."""
    first, second = (Rank(rank, PIPELINE) for rank in (0, 1))
    for rank in (first, second):
        rank.step(3, 0, 3000)
        rank.compute(1, 2, 10)
    first.message(("send", 1), 20, 1000, 1010)
    second.message(("recv", 0), 20, 490, 500)
    second.message(("send", 0), 30, 2000, 2010)
    first.message(("recv", 1), 30, 1490, 1500)
    reason = "in their order, messages between ranks 0 and 1 would end before they began"
    assert overlaplab.collectives(run_of(tmp_path, first, second))["unmatched"].tolist() == [reason] * 4


def test_clocks_may_differ(tmp_path: Path) -> None:
    """Rank 1's clock is 5 ms ahead: what rank 0 sends ends late there, what it receives began late there."""
    first, second = one_f_one_b()
    for one in second.events:
        one["ts"] += 5000
    assert overlaplab.collectives(run_of(tmp_path, first, second))["unmatched"].isna().all()


def test_traces_that_name_no_ends_say_so(tmp_path: Path) -> None:
    """Before torch 2.5 `Src Rank` and `Dst Rank` are missing; kernels of batches have no arguments at all."""
    table = overlaplab.collectives(run_of(tmp_path, *one_f_one_b(names_peers=False)))
    singles = table[table["group"].notna()]
    assert set(singles["unmatched"]) == {"its trace does not say between which ranks it was sent"}
    assert len(singles) == 4
    assert table["wait_ns"].isna().all()


def brute_force(sent: list[float], received: list[float]) -> list[tuple[float, float]]:
    """The only pairing in which messages do not overtake one another: the n-th with the n-th."""
    pairs = list(zip(sorted(sent), sorted(received), strict=True))
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(pairs))
    return pairs


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_order_is_that_of_the_calls(tmp_path: Path, order: tuple[int, ...]) -> None:
    """Whatever the order of the events in the file."""
    first, second = (Rank(rank, PIPELINE) for rank in (0, 1))
    for rank, kind in ((first, "send"), (second, "recv")):
        rank.step(3, 0, 90)
        rank.compute(1, 2, 10)
        for place in order:
            rank.message((kind, 1 - rank.rank), 5 + 3 * place, 10 + 20 * place + rank.rank, 25 + 20 * place)
    run = run_of(tmp_path, first, second)
    table = overlaplab.collectives(run).pivot(index="index", columns="rank", values="start_ns")
    found = [(int(a), int(b)) for a, b in table.to_numpy()]
    assert found == brute_force([10_000, 30_000, 50_000], [11_000, 31_000, 51_000])
