"""Which recorded collectives of different ranks are one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made.ranks import carried, carried_all, group, groups_of
from made.traces import event, gloo, launched, run_of, step

import overlaplab
from overlaplab import Run, load_run
from overlaplab.evidence.matching import match_collectives
from overlaplab.evidence.recorded import recorded_collectives
from overlaplab.findings import unmatched_notes


def matches(run: Run) -> list[tuple[tuple[int, float], ...]]:
    """Every match as (trace, start in µs) of its members, in order."""
    table = match_collectives(run)
    starts = [
        recorded_collectives(run.traces[t])["start_ns"].iloc[row] / 1000
        for t, row in table[["trace", "row"]].to_numpy()
    ]
    members: dict[int, list[tuple[int, float]]] = {}
    for match, trace, start in zip(table["match"], table["trace"], starts, strict=True):
        members.setdefault(match, []).append((trace, start))
    return sorted(tuple(sorted(found)) for found in members.values())


def reasons(run: Run) -> list[str | None]:
    return [None if pd.isna(reason) else reason for reason in match_collectives(run)["reason"]]


def kernels(
    *ends: float, kind: str = "AllReduce_Sum_f32", first: float = 0, length: float = 50, stream: int = 9
) -> list[dict[str, Any]]:
    """NCCL kernels that end at these µs, without any arguments."""
    found = launched("gemm", first, first, first + 5, correlation=10_000)
    for number, end in enumerate(ends):
        name = f"ncclDevKernel_{kind}_RING_LL"
        found += launched(name, end - length - 1, end - length, end, stream=stream, correlation=number + 1)
    return found


def test_by_number(tmp_path: Path) -> None:
    rank0 = carried(4, 0, 10) + carried(5, 20, 30) + carried(6, 40, 50)
    rank1 = carried(5, 25, 30) + carried(6, 41, 50)
    run = run_of(tmp_path, rank0, rank1)
    assert matches(run) == [((0, 0),), ((0, 20), (1, 25)), ((0, 40), (1, 41))]
    assert reasons(run) == ["rank 1 did not record it", None, None, None, None]
    assert match_collectives(run)["complete"].tolist() == [False, True, True, True, True]


def test_ends_of_one_number_may_lie_apart(tmp_path: Path) -> None:
    run = run_of(tmp_path, carried(0, 0, 10), carried(0, 9000, 9900))
    assert matches(run) == [((0, 0), (1, 9000))]


def test_one_number_for_several_collectives(tmp_path: Path) -> None:
    """Coalesced collectives share a number and match by their order, if every rank has the same number of them."""
    two = carried(7, 0, 5, num_bytes=8) + carried(7, 5, 9, num_bytes=16)
    assert matches(run_of(tmp_path / "a", two, two)) == [((0, 0), (1, 0)), ((0, 5), (1, 5))]
    run = run_of(tmp_path / "b", two, carried(7, 5, 9, num_bytes=16))
    assert set(reasons(run)) == {"several have its number, and not as many on every rank"}
    assert len(matches(run)) == 3


@pytest.mark.parametrize(
    "other", [{"kind": "all_gather"}, {"num_bytes": 16}, {"dtype": "float16"}], ids=["kind", "bytes", "dtype"]
)
def test_ranks_that_disagree_are_no_match(tmp_path: Path, other: dict[str, Any]) -> None:
    run = run_of(tmp_path, carried(0, 0, 5), carried(0, 0, 5, **other))
    assert set(reasons(run)) == {"the ranks that have its number disagree on what it is"}


def test_an_all_to_all_may_be_uneven(tmp_path: Path) -> None:
    run = run_of(tmp_path, *(carried(0, 0, 5, kind="all_to_all", num_bytes=size) for size in (8, 24)))
    assert reasons(run) == [None, None]
    assert overlaplab.collectives(run)["bytes"].tolist() == [24, 24]


def test_sends_and_receives_are_listed_and_not_matched(tmp_path: Path) -> None:
    run = run_of(tmp_path, carried(0, 0, 5, kind="send_recv"), carried(0, 0, 5, kind="send_recv"))
    assert reasons(run) == ["its trace does not say between which ranks it was sent"] * 2
    assert len(matches(run)) == 2


def test_the_two_ends_of_a_message_match_by_lane_and_number(tmp_path: Path) -> None:
    """The first waited from 0 to 3 for the second; a third rank's message lacks its other end."""
    one = carried(0, 0, 5, kind="send_recv", group="0%3A0-1") + carried(0, 0, 9, kind="send_recv", group="0%3A1-0")
    other = carried(0, 3, 5, kind="send_recv", group="0%3A0-1") + carried(0, 6, 9, kind="send_recv", group="0%3A1-0")
    run = run_of(tmp_path, one, other, carried(0, 0, 5, kind="send_recv", group="0%3A2-1"))
    assert sorted(map(str, reasons(run))) == ["None"] * 4 + ["its other end was not recorded"]
    table = overlaplab.collectives(run).dropna(subset=["wait_ns"])
    assert sorted(table["wait_ns"]) == [0, 0, 3000, 6000]
    assert set(table["transfer_ns"]) == {2000, 3000}


def test_what_did_not_run_in_the_recording(tmp_path: Path) -> None:
    rank0 = [*carried(0, 0, 5, launch=0), event("engine::launch seq=1", 6, 7)]
    run = run_of(tmp_path, rank0, carried_all([(0, 5), (7, 9)]))
    assert sorted(map(str, reasons(run))) == sorted(
        ["None", "None", "when it ran was not recorded", "rank 0 did not record it"]
    )


def test_groups_of_one_name_are_distinguished_by_their_members(tmp_path: Path) -> None:
    pairs = [group("1", [0, 1], "mesh_tp"), group("1", [2, 3], "mesh_tp")]
    run = groups_of(tmp_path, *((carried(0, rank, 9, group="1"), [pairs[rank // 2]]) for rank in range(4)))
    assert matches(run) == [((0, 0), (1, 1)), ((2, 2), (3, 3))]
    assert match_collectives(run)["complete"].all()
    table = overlaplab.collectives(run)
    assert table["group_description"].tolist() == ["mesh_tp"] * 4
    assert table["group_size"].tolist() == [2] * 4
    assert table["last_rank"].tolist() == [1, 1, 3, 3]


def test_groups_of_one_name_with_unknown_members(tmp_path: Path) -> None:
    told = [{"pg_name": "1", "pg_desc": "mesh_tp", "pg_size": 2, "ranks": []}]
    run = groups_of(tmp_path, *((carried(0, rank, 9, group="1"), told) for rank in range(4)))
    assert set(reasons(run)) == {"several groups are called '1', and their members are unknown"}
    assert len(matches(run)) == 4


def test_a_member_without_a_trace_here(tmp_path: Path) -> None:
    told = [group("1", [0, 1, 5])]
    run = groups_of(tmp_path, *((carried(0, rank, 9, group="1"), told) for rank in range(2)))
    assert matches(run) == [((0, 0), (1, 1))]
    assert reasons(run) == [None, None]
    assert not match_collectives(run)["complete"].any()


def test_without_numbers_by_alignment(tmp_path: Path) -> None:
    """Rank 1 began to record one collective later, and its clock is ahead by 5 ms."""
    ends = [1000, 2700, 3100, 6000, 9500]
    run = run_of(tmp_path, kernels(*ends), kernels(*(end + 5000 for end in ends[1:]), first=5000), backend="nccl")
    pairs = [((0, end - 50), (1, end + 5000 - 50)) for end in ends[1:]]
    assert matches(run) == [((0, 950),), *pairs]
    assert reasons(run)[0] == "rank 1 did not record it"
    assert overlaplab.clocks(run)["offset_ns"].tolist() == [0, 5_000_000]


def test_ends_further_apart_than_a_millisecond_are_no_match(tmp_path: Path) -> None:
    run = run_of(tmp_path, kernels(1000, 5000, 9000, 14000), kernels(1000, 5000, 10001.5, 14000), backend="nccl")
    far = "the ends of those in its place lie 1.0 ms apart"
    assert reasons(run) == [None, None, far, None] * 2
    assert len(matches(run)) == 5


def test_sequences_of_other_kinds_do_not_fit(tmp_path: Path) -> None:
    run = run_of(tmp_path, kernels(1000, 5000), kernels(1000, 5000, kind="AllGather"), backend="nccl")
    assert reasons(run) == [
        f"its rank's collectives differ from rank {other}'s in kind, type, size or label" for other in (1, 1, 0, 0)
    ]


def test_a_rank_that_fits_no_other_is_named_as_missing(tmp_path: Path) -> None:
    odd = kernels(1000, 5000, 7000, kind="AllGather")
    run = run_of(tmp_path, odd, kernels(1000, 5000), kernels(1001, 5001), backend="nccl")
    odd_one = "its rank's collectives differ from rank 1's in kind, type, size or label"
    assert reasons(run) == [odd_one] * 3 + ["rank 0 could not be matched"] * 4
    assert [len(found) for found in matches(run)] == [1] * 7


def test_a_rank_that_fits_no_other_is_named_by_its_rank(tmp_path: Path) -> None:
    odd = kernels(1000, 5000, 7000, kind="AllGather")
    run_of(tmp_path, [], odd, kernels(1000, 5000), kernels(1001, 5001), backend="nccl")
    (tmp_path / "rank0.pt.trace.json.gz").unlink()  # so that ranks are not the traces' places
    assert "rank 1 could not be matched" in reasons(load_run(tmp_path))


def gloo_rank(*spans: tuple[float, float], steps: Sequence[tuple[int, float]] = (), sizes: Sequence[int] = ()) -> Any:
    """All-reduces of plain gloo, launched 5 µs before they start; steps as (number, start) until 100 ms."""
    found = []
    for number, (start, end) in enumerate(spans):
        shape = [[sizes[number]]] if sizes else []
        told: dict[str, Any] = {"Input Dims": [shape], "Input type": ["TensorList"]} if sizes else {}
        found += [event("c10d::allreduce_", start - 5, start - 4, **told), gloo(start, end)]
    for (number, start), end in zip(steps, [*(start for _, start in steps[1:]), 100_000.0], strict=False):
        found.append(step(number, start, end))
    return found


SPANS = [(1000, 1900), (4000, 9000), (11_000, 15_000), (20_000, 20_800), (30_000, 39_000)]
LOADED = [(1200, 6000), (6300, 9900), (14_000, 18_000), (20_100, 29_000), (38_000, 39_100)]
"""As one rank has them, and another one that has to share its cores: ends differ by up to 8 ms."""


def test_on_a_loaded_machine_equal_sequences_match(tmp_path: Path) -> None:
    run = run_of(tmp_path, gloo_rank(*SPANS), gloo_rank(*LOADED))
    assert matches(run) == [((0, mine[0]), (1, other[0])) for mine, other in zip(SPANS, LOADED, strict=True)]
    assert reasons(run) == [None] * 10
    table = overlaplab.collectives(run)
    assert table["wait_ns"].tolist()[:4] == [200_000, 0, 2_300_000, 0]
    assert not table["doubtful"].any()


def test_a_range_that_begins_late_was_launched_before(tmp_path: Path) -> None:
    """On rank 0 the thread of the first lost its core, so that its range begins after rank 1's second has ended."""

    def calls(*spans: tuple[float, float]) -> list[dict[str, Any]]:
        return [event("c10d::allreduce_", 1010 + 10 * n, 1012 + 10 * n) for n in range(2)] + [gloo(*s) for s in spans]

    run = run_of(tmp_path, calls((9000, 9500), (5000, 6000)), calls((1020, 9500), (1030, 4000)))
    assert reasons(run) == [None] * 4
    assert matches(run) == [((0, 5000), (1, 1020)), ((0, 9000), (1, 1030))]  # equal sizes: nothing tells them apart


def test_equal_sequences_of_different_steps_are_told_apart(tmp_path: Path) -> None:
    """Rank 1 has recorded one step more and one less: by kind and size every step is as the next."""
    steps = [(number, 1000.0 * (10 * number)) for number in range(1, 6)]
    spans = [(start + 1000, start + 1900) for _, start in steps]
    loaded = [(start + 1200, start + 6000) for _, start in steps]
    run = run_of(tmp_path, gloo_rank(*spans[:4], steps=steps[:4]), gloo_rank(*loaded[1:], steps=steps[1:]))
    assert [pair for pair in matches(run) if len(pair) > 1] == [
        ((0, mine[0]), (1, other[0])) for mine, other in zip(spans[1:4], loaded[1:4], strict=True)
    ]
    assert reasons(run) == ["rank 1 did not record it", *[None] * 6, "rank 0 did not record it"]


@pytest.mark.parametrize("label", ["engine::bucket_launch bucket={}", "FSDP::post_backward_reduce (layers.{})"])
def test_labels_tell_collectives_of_equal_size_apart(tmp_path: Path, label: str) -> None:
    def rank(number: int) -> list[dict[str, Any]]:
        return [event(label.format(number), 990, 998, cat="user_annotation"), *gloo_rank(SPANS[0])]

    assert len(matches(run_of(tmp_path / "a", rank(1), rank(1)))) == 1
    run = run_of(tmp_path / "b", rank(1), rank(2))
    assert reasons(run) == [
        f"its rank's collectives differ from rank {other}'s in kind, type, size or label" for other in (1, 0)
    ]


def test_what_ended_before_another_rank_began_is_another_collective(tmp_path: Path) -> None:
    """By one clock, all 20 ms apart: the ranks recorded different stretches of the same length."""
    ends = [20_000.0 * number + 1000 for number in range(5)]
    one, other = ([(end - 300 + shift, end + shift) for end in ends] for shift in (0, 40_000))
    run = run_of(tmp_path, gloo_rank(*one), gloo_rank(*other))
    pairs = [pair for pair in matches(run) if len(pair) > 1]
    assert pairs == [((0, mine[0]), (1, mine[0])) for mine in one[2:]]


def busy(seed: int) -> list[tuple[float, float]]:
    """Twelve that begin every 10 ms, and end whenever the rank gets a core again."""
    chance = random.Random(seed)
    return [(10_000.0 * n + 1000, 10_000.0 * n + 2000 + chance.randint(0, 70) * 100) for n in range(12)]


def test_steps_that_differ_leave_the_others_matched(tmp_path: Path) -> None:
    """Rank 1 lacks one of step 8."""
    steps = [(7, 0.0), (8, 40_000.0), (9, 80_000.0)]
    mine, other = busy(1), busy(2)
    run = run_of(tmp_path, gloo_rank(*mine, steps=steps), gloo_rank(*other[:5], *other[6:], steps=steps))
    pairs = [pair for pair in matches(run) if len(pair) > 1]
    assert pairs == [((0, start), (1, start)) for start, _ in (*mine[:4], *mine[8:])]
    assert set(reasons(run)) == {None, "the ranks launched different collectives in its step"}


def test_where_one_rank_recorded_fewer_those_match_that_overlap(tmp_path: Path) -> None:
    """By kind and size each is as the next, and the ends differ at random."""
    mine, other = busy(1), busy(2)
    run = run_of(tmp_path, gloo_rank(*mine), gloo_rank(*other[1:]))
    assert [pair for pair in matches(run) if len(pair) > 1] == [((0, start), (1, start)) for start, _ in mine[1:]]
    assert reasons(run) == ["rank 1 did not record it", *[None] * 22]


def test_times_that_fit_no_clock_are_the_reason(tmp_path: Path) -> None:
    rank0, rank1 = (0, 31_000, 60_000, 75_000, 190_000), (900_000, 950_000, 1_500_000, 1_504_000, 1_790_000)
    run = run_of(tmp_path, kernels(*(end + 100 for end in rank0)), kernels(*rank1), backend="nccl")
    fits = "its rank's collectives are as rank {}'s, but end at times that fit no offset between the clocks"
    assert reasons(run) == [fits.format(1)] * 5 + [fits.format(0)] * 5


@pytest.mark.parametrize(("apart", "doubtful"), [(99, False), (101, True), (913, True)])
def test_a_match_whose_ends_lie_apart_is_doubtful(tmp_path: Path, apart: float, doubtful: bool) -> None:
    """It is left out of bandwidths and waits."""
    ends = [1000, 5000, 9000, 14_000]
    run = run_of(tmp_path, kernels(*ends), kernels(1000, 5000, 9000 + apart, 14_000, length=1000), backend="nccl")
    table = overlaplab.collectives(run)
    assert table["doubtful"].tolist() == [False] * 4 + [doubtful] * 2 + [False] * 2
    assert table["unmatched"].isna().all()
    assert table["wait_ns"].isna().tolist() == table["doubtful"].tolist()
    assert table["transfer_ns"].isna().tolist() == table["doubtful"].tolist()
    assert table["last_rank"].isna().tolist() == table["doubtful"].tolist()
    lost = "1 collective matched in doubt, as their ends lie more than 0.10 ms apart on the ranks"
    assert [note.partition(":")[0] for note in unmatched_notes(table)] == ([lost] if doubtful else [])


def test_a_doubtful_match_has_no_bandwidth(tmp_path: Path) -> None:
    ranks = []
    for late in (0, 369):
        ranks.append([])
        for number, end in enumerate((1000, 5000 + late, 9000)):
            kernel = launched("ncclDevKernel_AllReduce", end - 900, end - 800, end, correlation=number + 1)
            kernel[1]["args"] |= {"Collective name": "allreduce", "In msg nelems": 1 << 20, "dtype": "Float"}
            ranks[-1] += kernel
    table = overlaplab.collectives(run_of(tmp_path, *ranks, backend="nccl"))
    assert table["bytes"].tolist() == [4 << 20] * 6
    assert table["bus_gb_per_s"].isna().tolist() == table["doubtful"].tolist() == [False] * 2 + [True] * 2 + [False] * 2


def test_a_kernel_whose_launch_was_not_recorded_counts(tmp_path: Path) -> None:
    rank1 = [e for e in kernels(1000, 2700, 6000) if e["args"]["correlation"] != 1 or "stream" in e["args"]]
    run = run_of(tmp_path, kernels(1000, 2700, 6000), rank1, backend="nccl")
    assert len(matches(run)) == 3
    table = overlaplab.collectives(run)
    assert table["launch_ns"].isna().tolist() == [False, True, False, False, False, False]


def test_one_rank_alone_matches_itself(tmp_path: Path) -> None:
    run = run_of(tmp_path, carried(0, 0, 5) + carried(1, 6, 9))
    assert reasons(run) == [None, None]
    assert match_collectives(run)["complete"].all()


def test_against_the_truth_of_simulated_ranks(tmp_path: Path) -> None:
    """The true matches are known: each rank records another part of one job, by its own clock."""
    for case in range(12):
        chance = random.Random(case)
        times = list(accumulate(chance.randint(3, 90) * 100 for _ in range(30)))
        kinds = [chance.choice(["all_reduce", "all_gather", "reduce_scatter"]) for _ in times]
        numbered = case % 2 == 0
        ranks, truth = [], {}
        for rank in range(3):
            first, last = chance.randint(0, 6), chance.randint(22, 30)
            ahead = 0 if rank == 0 else chance.randint(-40, 40) * 100
            events: list[dict[str, Any]] = launched("gemm", 0, ahead, ahead + 5, correlation=9999)
            for number in range(first, last):
                end = times[number] + ahead + chance.randint(0, 8)
                truth.setdefault(number, set()).add((rank, end - 50))
                if numbered:
                    events += carried(number, end - 50, end, kind=kinds[number])
                else:
                    name = f"ncclDevKernel_{kinds[number].title().replace('_', '')}"
                    events += launched(name, end - 60, end - 50, end, stream=9, correlation=number + 1)
            ranks.append([e for e in events if not numbered or e["name"].startswith("engine")])
        run = run_of(tmp_path / str(case), *ranks, backend="gloo" if numbered else "nccl")
        whole = [tuple(sorted(members)) for members in truth.values() if len(members) == 3]
        assert [found for found in matches(run) if len(found) > 1] == sorted(whole)
