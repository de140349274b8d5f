"""Flight Recorder dumps of several ranks side by side, of given ones and of real gloo processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made.dumped import MS, dump_entry, dumps_of_a_stopped_rank, write_dumps
from ranks.warm_ranks import run_warm
from schemas import expect_schema

from overlaplab.analyses import dumped_collectives, dumped_stopped
from overlaplab.analyses.watched.dumped import dumped_groups
from overlaplab.load.flight_recorder import load_dumps

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1], group_desc="pair")
tensor = torch.ones(100)
for _ in range(3):
    time.sleep(0.3 * (rank == 1))
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0, group=pair)
if rank == 0:
    dist.send(tensor, 1)
    work = dist.all_reduce(tensor, async_op=True)
else:
    dist.recv(tensor, 0)
torch_dist = torch._C._distributed_c10d
os.makedirs(sys.argv[1], exist_ok=True)
if sys.argv[2] == "json":
    content, name = torch_dist._dump_fr_trace_json(True, False), f"rank{rank}.json"
else:
    content, name = torch_dist._dump_fr_trace(True, False, False), f"rank_{rank}"
with open(os.path.join(sys.argv[1], name), "wb") as file:
    file.write(content)
# Rank 1 joins what rank 0 waits in, so that both end.
if rank == 1:
    dist.all_reduce(tensor)
dist.barrier()
"""


def rows(table: Any) -> list[list[Any]]:
    return table.astype(object).where(table.notna(), None).to_numpy().tolist()  # type: ignore[no-any-return]


def test_who_came_last_and_who_lacks_a_collective(tmp_path: Path) -> None:
    dumps = dumps_of_a_stopped_rank(tmp_path)
    assert rows(dumped_collectives(dumps)) == [
        ["default", 1, ("all_reduce",), (0, 1), (), 1, 5 * MS, None, True],
        ["default", 2, ("all_reduce",), (0, 1), (), 1, 5 * MS, None, True],
        ["default", 3, ("all_reduce",), (0,), (1,), None, None, None, True],
    ]
    assert rows(dumped_stopped(dumps)) == [[1, None, True, None, "default", 2, None, 3, False]]


def test_what_a_ring_has_forgotten_tells_nothing(tmp_path: Path) -> None:
    ranks = [[dump_entry(n, n) for n in (1, 2, 3)], [dump_entry(n, n) for n in (3, 4)]]
    dumps = load_dumps(write_dumps(tmp_path, *ranks))
    assert dumped_collectives(dumps)["sequence"].tolist() == [3, 4]


def test_groups_of_one_name_on_other_ranks_are_groups_of_their_own(tmp_path: Path) -> None:
    """As in NCCL's `split_group`: the second pair has done more, and is no reason to wait for the first."""
    pairs = (((0, 1), 2), ((2, 3), 4))
    entries = [
        [dump_entry(n, 10 * n + 3 * rank, process_group=["1", "mesh_tp"]) for n in range(1, count + 1)]
        for ranks, count in pairs
        for rank in ranks
    ]
    members = [{"1": list(ranks)} for ranks, _ in pairs for _ in ranks]
    dumps = load_dumps(write_dumps(tmp_path, *entries, members=members))
    table = dumped_collectives(dumps)
    assert (dumped_groups(dumps), len(table), len(dumped_stopped(dumps))) == (2, 6, 0)
    assert rows(table[["arrived", "late_ns"]].drop_duplicates()) == [[(0, 1), 3 * MS], [(2, 3), 3 * MS]]


@pytest.mark.parametrize(("first_ms", "lacks"), [(10, True), (30, False)])
def test_a_rank_lacks_what_it_launched_nothing_of(tmp_path: Path, first_ms: int, lacks: bool) -> None:
    """It must be in the group, and its ring must not begin later than the group's first collective."""
    ranks = [[dump_entry(1, 10), dump_entry(1, 20, process_group=["1", "dp"])], [dump_entry(1, first_ms)]]
    members = [{"0": [0, 1], "1": [0, 1]}] * 2
    dumps = load_dumps(write_dumps(tmp_path, *ranks, members=members))
    assert rows(dumped_collectives(dumps)[["group", "missing"]]) == [["default", ()], ["dp", (1,) if lacks else ()]]
    stopped = dumped_stopped(dumps)[["rank", "group", "enqueued", "others_wait_in"]]
    assert rows(stopped) == ([[1, "dp", 0, 1]] if lacks else [])


def test_timed_collectives_and_disagreement(tmp_path: Path) -> None:
    ranks = [
        [dump_entry(1, 1, duration_ms=2.5), dump_entry(2, 9, "broadcast", retired=False)],
        [dump_entry(1, 1, duration_ms=1), dump_entry(2, 8, state="completed")],
    ]
    table = dumped_collectives(load_dumps(write_dumps(tmp_path, *ranks)))
    assert rows(table[["kinds", "duration_ns", "completed"]]) == [
        [("all_reduce",), 2_500_000, True],
        [("all_reduce", "broadcast"), None, False],
    ]


@pytest.mark.parametrize(
    ("backend", "state", "is_over"),
    [
        ("nccl", "completed", True),
        ("nccl", "started", False),
        ("nccl", "scheduled", False),
        ("gloo", "scheduled", True),
    ],
)
def test_what_is_retired_on_a_gpu_and_not_completed_has_timed_out(
    tmp_path: Path, backend: str, state: str, is_over: bool
) -> None:
    """That it has started is known with TORCH_NCCL_ENABLE_TIMING alone; of gloo's only whether they are retired."""
    ranks = [
        [dump_entry(1, 1), dump_entry(2, 9, state=state, profiling_name=f"{backend}:all_reduce")] for _ in range(2)
    ]
    assert dumped_collectives(load_dumps(write_dumps(tmp_path, *ranks)))["completed"].tolist() == [True, is_over]


def test_real_dumps_of_gloo(tmp_path: Path, command: Any) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    for form in ("json", "pickle"):
        out = tmp_path / form
        for ended in run_warm(2, str(tmp_path / "train.py"), str(out), form):
            assert ended.code == 0, ended.stderr
        code, printed, _ = command("watch", out, "--json")
        document = json.loads(printed)
        expect_schema("watch", document)
        assert (code, document["source"], document["world_size"]) == (0, "flight recorder", 2)
        collectives = document["collectives"]
        assert [(row["group"], row["sequence"], row["kinds"]) for row in collectives] == [
            *(("default", number, ["all_reduce"]) for number in (1, 2, 3, 4)),
            *(("pair", number, ["broadcast"]) for number in (1, 2, 3)),
        ]
        assert collectives[3]["missing"] == [1]
        assert all(row["late_rank"] == 1 for row in collectives[:3])
        assert all(row["late_ns"] > 100 * MS and row["duration_ns"] is None for row in collectives[1:3])
        assert [(row["rank"], row["enqueued"], row["others_wait_in"]) for row in document["stopped"]] == [(1, 3, 4)]
        assert command("watch", out)[0] == 0
