"""The engine's own runs on NCCL, as torch 2.9 to 2.13 writes them: `engine::comm` around `record_param_comms` and the
launch, the backend's number beside the label's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made.ranks import group
from made.traces import event, launched, step, write

import overlaplab
from overlaplab import Run, load_run
from overlaplab.selection import Selection

Event = dict[str, Any]
NAMES = {"all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base", "all_reduce": "allreduce"}
KERNELS = {
    "all_gather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_reduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "barrier": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}


def arguments(kind: str, elements: int, number: int, rank: int, *, numbered: bool) -> dict[str, Any]:
    """What torch notes of a collective of two ranks (torch/csrc/profiler/util.cpp, saveNcclMeta).

    `Seq` is new in torch 2.13 (constexpr kSeqNum in torch/csrc/profiler/util.h).
    """
    told = {
        "Collective name": NAMES.get(kind, kind),
        "dtype": "BFloat16",
        "In msg nelems": elements // 2 if kind == "all_gather" else elements,
        "Out msg nelems": elements // 2 if kind == "reduce_scatter" else elements,
        "In split size": "[]",
        "Out split size": "[]",
        "Global rank start": 0,
        "Global rank stride": 1,
        "Group size": 2,
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1]",
        "Rank": rank,
    }
    return told | ({"Seq": number, "Is asynchronized op": 0} if numbered else {})


class Rank:
    """A rank's events; `seq` counts what the engine labels, `number` all that its backend does."""

    def __init__(self, rank: int, *, seq: int = 0, number: int = 1, numbered: bool = True) -> None:
        self.rank, self.seq, self.number, self.numbered = rank, seq, number, numbered
        self.events: list[Event] = []
        self.correlation = 0

    def compute(self, host: float, start: float, end: float) -> None:
        self.correlation += 1
        self.events += launched("ampere_gemm", host, start, end, correlation=self.correlation)

    def send(
        self, kind: str, host: float, start: float, end: float, *, labelled: bool = True, stream: int = 20
    ) -> None:
        """A collective of 1,000 elements of two bytes, called at `host`."""
        told = arguments(kind, 1000, self.number, self.rank, numbered=self.numbered)
        self.correlation += 1
        call, kernel = launched(KERNELS[kind], host + 5, start, end, stream=stream, correlation=self.correlation)
        kernel["args"] |= {key: value for key, value in told.items() if key != "Seq"}
        self.events += [
            event(f"c10d::{NAMES.get(kind, kind)}_", host + 1, host + 9),
            event("record_param_comms", host + 2, host + 8, **told),
            event(f"nccl:{NAMES.get(kind, kind)}", host + 3, host + 7, cat="user_annotation"),
            call | {"name": "cudaLaunchKernelExC"},
            kernel,
        ]
        self.number += 1
        if labelled:
            text = f"engine::comm seq={self.seq} kind={kind} dtype=bfloat16 bytes=2000 group=0"
            self.events.append(event(text, host, host + 10, cat="user_annotation"))
            self.seq += 1


def run_of(folder: Path, *ranks: Rank) -> Run:
    folder.mkdir(exist_ok=True)
    groups = [group("0", range(2), "default_pg")]
    for one in ranks:
        info = {"rank": one.rank, "world_size": 2, "backend": "nccl", "pg_config": groups}
        write(folder / f"rank{one.rank}.pt.trace.json.gz", one.events, distributedInfo=info)
    return load_run(folder)


def step_of(rank: Rank, late: float = 0) -> None:
    """A gather, a barrier that nobody labels, a reduce-scatter, an all-reduce; they end together on both ranks."""
    rank.events.append(step(3, 0, 900))
    rank.compute(10, 20, 100)
    rank.send("all_gather", 30, 40 + late, 90, stream=20)
    rank.send("barrier", 110, 120 + late, 130, labelled=False, stream=7)
    rank.send("reduce_scatter", 150, 160 + late, 200, stream=24)
    rank.send("all_reduce", 210, 220 + late, 300, stream=24)
    rank.compute(320, 330, 400)


@pytest.mark.parametrize("numbered", [True, False])
def test_bytes_group_and_number_come_from_arguments(tmp_path: Path, numbered: bool) -> None:
    ranks = [Rank(rank, numbered=numbered) for rank in (0, 1)]
    for rank in ranks:
        step_of(rank, late=5 * rank.rank)
    table = overlaplab.collectives(run_of(tmp_path, *ranks), Selection(ranks=[0]))
    labelled = table[table["kind"] != "barrier"]
    assert labelled["kind"].tolist() == ["all_gather", "reduce_scatter", "all_reduce"]
    assert labelled["bytes"].tolist() == [2000] * 3
    assert labelled["dtype"].tolist() == ["bfloat16"] * 3
    assert set(table["group"]) == {"0"}
    assert set(table["group_description"]) == {"default_pg"}
    assert set(table["group_size"]) == {2}
    assert labelled["wait_ns"].tolist() == [5_000] * 3
    assert labelled["transfer_ns"].tolist() == [45_000, 35_000, 75_000]
    assert labelled["unmatched"].isna().all()
    barrier = table[table["kind"] == "barrier"]
    assert barrier["unmatched"].tolist() == ([None] if numbered else ["its number in the group is unknown"])


def test_the_backends_number_is_the_collectives(tmp_path: Path) -> None:
    """Rank 1's recording begins after the barrier, NCCL's number 2; the label of the all-reduce has number 2, too."""
    first, second = Rank(0), Rank(1, seq=1, number=3)
    step_of(first)
    second.events.append(step(3, 0, 900))
    second.compute(10, 20, 100)
    second.send("reduce_scatter", 150, 160, 200, stream=24)
    second.send("all_reduce", 210, 220, 300, stream=24)
    table = overlaplab.collectives(run_of(tmp_path, first, second))
    assert table.groupby("index")[["rank", "kind"]].agg(list).to_numpy().tolist() == [
        [[0], ["all_gather"]],
        [[0], ["barrier"]],
        [[0, 1], ["reduce_scatter", "reduce_scatter"]],
        [[0, 1], ["all_reduce", "all_reduce"]],
    ]
    assert table["unmatched"].tolist() == [*["rank 1 did not record it"] * 2, *[None] * 4]
