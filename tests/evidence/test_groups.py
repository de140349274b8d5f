"""In which process group a collective is, where its trace does not name one, or ranks name it differently."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made.ranks import group
from made.traces import event, launched, op, step, write
from pandas.testing import assert_frame_equal
from ranks.warm_ranks import run_warm

import overlaplab
from overlaplab import Run, load_run, volume
from overlaplab.evidence.alignment import NEAR_NS, allows_one_group, has_waited_for_others
from overlaplab.findings import run_warnings, unmatched_notes
from overlaplab.load.cut import slice_run
from overlaplab.report.perfetto import write_perfetto

PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "gloo_groups.py"
WORLD = group("0", [0, 1, 2, 3], "default_pg")
PAIRS = [group("1", [0, 1], "undefined"), group("2", [2, 3], "undefined")]
UNNAMED = "its trace does not say in which process group it was"


def on_gloo(start: float, end: float, kind: str = "all_reduce", operator: str = "allreduce_", **dims: Any) -> list[Any]:
    """A collective of a million bytes as gloo records it."""
    shapes = {"Input Dims": [[250_000]], "Input type": ["float"]}
    call = event(f"c10d::{operator}", start - 1, start - 0.5, **dims)
    return [call, event(f"gloo:{kind}", start, end, cat="user_annotation", tid=7, **shapes)]


def ranks_of(folder: Path, *ranks: list[Any], groups: Sequence[Sequence[Any]], hosts: str = "aaaa") -> Run:
    """A run of four gloo ranks with these events, of three steps each, and groups."""
    folder.mkdir(exist_ok=True)
    for rank, (events, listed, host) in enumerate(zip(ranks, groups, hosts, strict=True)):
        info = {"rank": rank, "world_size": 4, "backend": "gloo", "pg_config": listed}
        steps = [step(number, 10_000 * number, 10_000 * number + 9_999) for number in range(3)]
        own = [*steps, op("mm", 1, 20_000), *events]
        write(folder / f"rank{rank}.json", own, distributedInfo=info, host_name=host)
    return load_run(folder)


IN_PAIRS = [[WORLD, PAIRS[rank // 2]] for rank in range(4)]


def reduced(starts: Sequence[float], end: float) -> list[list[Any]]:
    """For each rank an all-reduce in each of three steps, from these µs of the step to the end that all share."""
    return [[part for at in (0, 10_000, 20_000) for part in on_gloo(at + start, at + end)] for start in starts]


def test_pairs_that_reduce_one_after_the_other_are_no_group_of_four(tmp_path: Path) -> None:
    first, second = reduced([1000, 1100], 2100), reduced([5000, 5400], 6400)
    table = overlaplab.collectives(ranks_of(tmp_path, *first, *second, groups=IN_PAIRS))
    assert table["group"].tolist() == ["1", "1", "2", "2"] * 3
    assert table["group_size"].eq(2).all()
    assert table["wait_ns"].tolist() == [100_000, 0, 400_000, 0] * 3
    assert table["bus_gb_per_s"].tolist() == [1.0] * 12  # as a group of four it would be 1.5
    assert not table["bus_is_lower_bound"].any()


def test_all_are_one_group_where_some_waited_for_the_others(tmp_path: Path) -> None:
    ranks = reduced([1000, 1000, 1010, 1020], 2020)
    for place in (0, 1):  # in the last step these wait for 5 ms
        ranks[place] = [*ranks[place][:-2], *on_gloo(21_000, 27_000)]
    for place in (2, 3):
        ranks[place] = [*ranks[place][:-2], *on_gloo(26_000, 27_000)]
    table = overlaplab.collectives(ranks_of(tmp_path, *ranks, groups=IN_PAIRS))
    assert table["group"].eq("0").all()
    assert table["group_size"].eq(4).all()
    assert table["wait_ns"].tolist()[-4:] == [5_000_000, 5_000_000, 0, 0]


def test_an_exported_run_and_a_slice_tell_the_same_groups(tmp_path: Path) -> None:
    """The export is one file with all ranks' groups; a slice keeps the machine's name and the arguments."""
    run = ranks_of(tmp_path / "run", *reduced([1000, 1100], 2100), *reduced([5000, 5400], 6400), groups=IN_PAIRS)
    with (tmp_path / "exported.json").open("wb") as file:
        write_perfetto(run, file)
    slice_run(run, 0, 3, tmp_path / "slice")
    told = ["rank", "group", "group_size", "wait_ns"]
    for copy in ("exported.json", "slice"):
        again = overlaplab.collectives(load_run(tmp_path / copy))
        assert_frame_equal(again[told], overlaplab.collectives(run)[told])
    assert [trace.host for trace in load_run(tmp_path / "slice").traces] == ["a"] * 4


@pytest.mark.parametrize("hosts", ["aaaa", "aabb", ["", "", "", ""]])
def test_what_nothing_tells_is_unknown_and_has_no_bound(tmp_path: Path, hosts: str) -> None:
    """All ranks begin and end together: pairs would, too, after what kept them in step."""
    run = ranks_of(tmp_path, *reduced([1000, 1000, 1010, 1020], 2020), groups=IN_PAIRS, hosts=hosts)
    table = overlaplab.collectives(run)
    assert table[["group", "group_size", "bus_gb_per_s", "wait_ns"]].isna().all(axis=None)
    assert not table["bus_is_lower_bound"].any()
    assert unmatched_notes(table) == (f"12 times a collective of one rank has no counterpart on the others: {UNNAMED}",)
    sent = volume(run)
    assert sent["bytes"].eq(1_000_000).all()
    assert sent["sent_bytes"].isna().all()


def test_a_known_rank_tells_its_partner_and_sizes_that_all_candidates_have_are_known(tmp_path: Path) -> None:
    """Of a mesh of two by two: rank 0 is done before ranks 1 and 3 begin, so it is with rank 2, and these together.

    Where all begin together the groups may run along either axis; both are of two ranks.
    """
    mesh = [
        [group(f"{r % 2}r", [r % 2, r % 2 + 2]), group(f"{r // 2}c", [r // 2 * 2, r // 2 * 2 + 1])] for r in range(4)
    ]
    early, late = reduced([1000], 2000)[0], reduced([3000], 4000)[0]
    table = overlaplab.collectives(ranks_of(tmp_path / "a", early, late, early, late, groups=mesh))
    assert table["group"].tolist() == ["0r", "0r", "1r", "1r"] * 3
    table = overlaplab.collectives(ranks_of(tmp_path / "b", *reduced([1000] * 4, 2000), groups=mesh))
    assert table["group"].isna().all()
    assert table["group_size"].eq(2).all()
    assert table["bus_is_lower_bound"].all()


def test_the_sizes_of_gathers_tell_their_group(tmp_path: Path) -> None:
    dims = {"Input Dims": [[1000], [500], [], []], "Input type": ["float", "float", "", "Scalar"]}
    gathers = [
        part
        for at in (0, 10_000, 20_000)
        for part in on_gloo(at + 9, at + 12, "all_gather", "_allgather_base_", **dims)
    ]
    table = overlaplab.collectives(ranks_of(tmp_path, *[gathers] * 4, groups=IN_PAIRS))
    assert table.groupby("rank")["group"].unique().map(list).tolist() == [["1"], ["1"], ["2"], ["2"]]
    assert table["group_size"].eq(2).all()
    assert table["wait_ns"].notna().all()


def test_without_a_list_of_groups_all_ranks_that_carried_it_out_tell(tmp_path: Path) -> None:
    """As torch before 2.3 writes it."""
    ranks = reduced([1000, 1000, 1010, 1020], 2020)
    assert overlaplab.collectives(ranks_of(tmp_path / "a", *ranks, groups=[[]] * 4))["group_size"].eq(4).all()
    folder = tmp_path / "b"
    ranks_of(folder, *ranks, groups=[[]] * 4)
    (folder / "rank3.json").unlink()
    table = overlaplab.collectives(load_run(folder))
    assert table[["group_size", "bus_gb_per_s"]].isna().all(axis=None)


def nccl(number: int, start: float, end: float, name: str, comms_id: int, **more: Any) -> list[Any]:
    """An all-reduce of two ranks on a GPU, with torch 2.13's arguments."""
    call, kernel = launched(
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL", start - 5, start, end, stream=9, correlation=number
    )
    sizes = {"In msg nelems": 100, "Out msg nelems": 100, "dtype": "Float", "Group size": 2}
    told = {"Collective name": "allreduce", "Process Group Name": name, "Seq": number, "Comms Id": comms_id}
    kernel["args"] |= sizes | told | more
    return [call, kernel]


def nccl_run(folder: Path, *ranks: list[Any], groups: Sequence[Sequence[Any]]) -> Run:
    folder.mkdir(exist_ok=True)
    for rank, (events, listed) in enumerate(zip(ranks, groups, strict=True)):
        info = {"rank": rank, "world_size": len(ranks), "backend": "nccl", "pg_config": listed}
        own = [*launched("gemm", 1, 2, 5, correlation=99), *events]
        write(folder / f"rank{rank}.json", own, distributedInfo=info)
    return load_run(folder)


def matches(run: Run) -> list[tuple[int, ...]]:
    """The ranks that share each collective."""
    table = overlaplab.collectives(run)
    return [tuple(own["rank"]) for _, own in table.groupby("index")]


def test_groups_that_ranks_name_differently_match_by_comms_id(tmp_path: Path) -> None:
    """Numbers of 64 bits without a sign."""
    hashes = [2**64 - 1, 2**63 + 5, 7]
    ranks = [
        [part for n, own in enumerate(hashes) for part in nccl(n, 100 * n + 10 * r, 100 * n + 60, f"of rank {r}", own)]
        for r in range(2)
    ]
    run = nccl_run(tmp_path, *ranks, groups=[[], []])
    assert matches(run) == [(0, 1)] * 3
    assert overlaplab.collectives(run)["wait_ns"].tolist() == [10_000, 0] * 3


def test_comms_id_tells_groups_of_one_name_apart(tmp_path: Path) -> None:
    ranks = [nccl(1, 10, 60, "tp", 1000 + r // 2) + nccl(2, 100, 160, "tp", 2000 + r // 2) for r in range(4)]
    assert sorted(matches(nccl_run(tmp_path, *ranks, groups=[[]] * 4))) == [(0, 1), (0, 1), (2, 3), (2, 3)]


def test_one_comms_id_of_groups_with_other_members_joins_nothing(tmp_path: Path) -> None:
    """A hash that leaves the members out, as where torch does not know the group's first rank."""
    pairs = [group("tp", [0, 1]), group("tp", [2, 3])]
    ranks = [nccl(1, 10 + 5 * r, 60, "tp", 1000) for r in range(4)]
    run = nccl_run(tmp_path, *ranks, groups=[[pairs[r // 2]] for r in range(4)])
    assert sorted(matches(run)) == [(0, 1), (2, 3)]


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(
            st.lists(st.tuples(*[st.integers(0, 9)] * 2), min_size=n, max_size=n), min_size=1, max_size=4
        )
    ),
    st.text("ab", min_size=4),
)
def test_allows_one_group_against_every_pair_and_offset(ranks: list[list[tuple[int, int]]], hosts: str) -> None:
    """In units of 60 µs; one rank's clock may be ahead of another host's by any of them."""
    spans = np.array([[(start, start + took) for start, took in own] for own in ranks], dtype=np.int64) * 60_000
    own_hosts = [*hosts[: len(ranks)]]

    def fits(ahead: int) -> bool:
        moved = spans + np.array([ahead * (host == "b") for host in own_hosts]).reshape(-1, 1, 1)
        return all(
            start <= end + NEAR_NS
            for column in moved.transpose(1, 0, 2).tolist()
            for start, _ in column
            for _, end in column
        )

    offsets = range(-40 * 60_000, 40 * 60_000, 10_000) if len({*own_hosts}) > 1 else [0]
    assert allows_one_group(spans, own_hosts) == any(map(fits, offsets))


def test_has_waited_for_others() -> None:
    """The first two ranks need 100 µs alone, and take 400 in the last one, to which the third comes 300 µs late."""
    spans = np.array([[(0, 100), (0, 400)], [(0, 100), (0, 400)], [(0, 100), (300, 400)]]) * 1000
    assert has_waited_for_others(spans, np.array([True, True, False]))
    assert not has_waited_for_others(spans[:, 1:], np.array([True, True, False]))  # they may just take that long
    assert not has_waited_for_others(spans, np.array([True, False, True]))


def test_torch_on_gloo_in_pairs(tmp_path: Path) -> None:
    """No shapes are recorded; what two ranks do before a barrier, and the others after it, all four did not do."""
    for rank in run_warm(4, str(PROGRAM), str(tmp_path), "pairs"):
        assert rank.code == 0, rank.stderr
    run = load_run(tmp_path)
    table = overlaplab.collectives(run)
    reduces = table[table["kind"] == "all_reduce"].sort_values(["rank", "start_ns"]).groupby(["rank", "step"])
    first, last = reduces.head(1), reduces.tail(1)
    assert first["group"].tolist() == ["1"] * 6 + ["2"] * 6
    assert first["group_size"].eq(2).all()
    assert first["wait_ns"].notna().all()
    assert set(last["group"].dropna()) <= {"0"}
    # on busy cores one rank's threads may end all collectives a fifth of a ms late, which is what a clock behind does
    assert not [warning for warning in run_warnings(run) if "clock" not in warning]


def test_torchs_fsdp2_on_a_mesh_on_gloo(tmp_path: Path) -> None:
    for rank in run_warm(4, str(PROGRAM), str(tmp_path), "hsdp"):
        assert rank.code == 0, rank.stderr
    table = overlaplab.collectives(load_run(tmp_path))
    gathers = table["kind"].isin(["all_gather", "reduce_scatter"])
    assert set(table["kind"][~gathers]) == {"all_reduce"}
    assert table["group_size"][gathers].eq(2).all()
    assert set(table["axis"][gathers].dropna()) <= {"shard"}
    assert set(table["axis"][~gathers].dropna()) <= {"replicate"}
    assert set(table["unmatched"].dropna()) <= {UNNAMED}
    assert pd.isna(table["axis"]).mean() < 0.5
