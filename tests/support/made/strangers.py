"""Ranks of somebody's job on GPUs with NCCL and several axes, without our labels, as torch 2.9 to 2.13 writes them.

Messages are single ones (`isend`), whose kernel is launched inside their call, or batches (`batch_isend_irecv`), whose
one kernel is launched after the last call (ProcessGroupNCCL.cpp, endCoalescing). Arguments are those of saveNcclMeta in
torch/csrc/profiler/util.cpp. Times in µs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from made.ranks import group
from made.traces import event, launched, step, write
from overlaplab import Run, load_run

Event = dict[str, Any]
Groups = dict[str, tuple[str, Sequence[int]]]
"""By their names the process groups' descriptions and members."""
Message = tuple[str, int]
"""`send` or `recv`, and the rank at the other end."""

_KERNELS = {"allreduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"}
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


class Rank:
    """A rank's events."""

    def __init__(self, rank: int, groups: Groups, *, names_peers: bool = True) -> None:
        self.rank, self.groups, self._names_peers = rank, groups, names_peers
        self.events: list[Event] = []
        self._correlation = 0

    def step(self, number: int, start: float, end: float) -> None:
        self.events.append(step(number, start, end))

    def compute(self, host: float, start: float, end: float) -> None:
        self.events += self._launched("nvjet_hsh_128x128", host, start, end, stream=7)

    def all_reduce(self, name: str, host: float, start: float, end: float, *, stream: int) -> None:
        told = self._told("allreduce", name, 1000)
        self.events.append(event("record_param_comms", host, host + 1, **told))
        self.events += self._launched(_KERNELS["allreduce"], host + 0.5, start, end, stream=stream, **told)

    def message(self, one: Message, host: float, start: float, end: float, *, name: str = "1", size: int = 500) -> None:
        """By a kernel of its own."""
        told = self._called(one, name, host, size)
        self.events += self._launched(SEND_RECV, host + 0.5, start, end, stream=20, **told)

    def batch(
        self, messages: Sequence[Message], host: float, start: float, end: float, *, name: str = "1", size: int = 500
    ) -> None:
        """By one kernel, which is launched 1 µs after the last call."""
        for place, one in enumerate(messages):
            self._called(one, name, host + 2 * place, size)
        host += 2 * len(messages)
        self.events.append(event("nccl:coalesced", host, host + 2, cat="user_annotation"))
        self.events += self._launched(SEND_RECV, host, start, end, stream=20)

    def _called(self, one: Message, name: str, host: float, size: int) -> dict[str, Any]:
        kind, other = one
        told = self._told(kind, name, size)
        told["Rank"] = list(self.groups[name][1]).index(other)  # the other end's, in the group
        if self._names_peers:
            told["Dst Rank" if kind == "send" else "Src Rank"] = other
        self.events.append(event(f"c10d::{kind}", host, host + 1.5))
        self.events.append(event("record_param_comms", host, host + 1, **told))
        return told

    def _told(self, kind: str, name: str, size: int) -> dict[str, Any]:
        description, ranks = self.groups[name]
        return {
            "Collective name": kind,
            "dtype": "BFloat16",
            "In msg nelems": size,
            "Out msg nelems": size,
            "Group size": len(ranks),
            "Process Group Name": name,
            "Process Group Description": description,
            "Process Group Ranks": str(list(ranks)),
        }

    def _launched(
        self, name: str, host: float, start: float, end: float, *, stream: int, **told: Any
    ) -> Sequence[Event]:
        self._correlation += 1
        call, kernel = launched(name, host, start, end, stream=stream, correlation=self._correlation)
        kernel["args"] |= told
        return call, kernel


def run_of(folder: Path, *ranks: Rank, world_size: int | None = None) -> Run:
    """The run of these ranks, each of which knows the groups that it is in."""
    folder.mkdir(exist_ok=True)
    for one in ranks:
        own = [group(name, members, text) for name, (text, members) in one.groups.items() if one.rank in members]
        info = {"rank": one.rank, "world_size": world_size or len(ranks), "backend": "nccl", "pg_config": own}
        write(folder / f"rank{one.rank}.pt.trace.json.gz", one.events, distributedInfo=info)
    return load_run(folder)


PIPELINE: Groups = {"0": ("default_pg", (0, 1)), "1": ("PIPELINE_MODEL_PARALLEL_GROUP", (0, 1))}


def one_f_one_b(*, steps: int = 1, names_peers: bool = True, description: str | None = None) -> tuple[Rank, Rank]:
    """Two stages and two microbatches by Megatron-LM's 1F1B: forward 10 µs, backward 20; a step is 200 µs.

    The second message forward and the first back share a batch, in one kernel on either rank.
    """
    groups = PIPELINE if description is None else PIPELINE | {"1": (description, (0, 1))}
    first, second = (Rank(rank, groups, names_peers=names_peers) for rank in (0, 1))
    for number in range(steps):
        at = 200 * number
        for rank in (first, second):
            rank.step(number + 3, at, at + 190)
        first.compute(at + 1, at + 2, at + 12)
        first.message(("send", 1), at + 2, at + 12, at + 16)
        first.compute(at + 4, at + 16, at + 26)
        first.batch([("send", 1), ("recv", 1)], at + 5, at + 26, at + 62)
        first.compute(at + 11, at + 62, at + 82)
        first.message(("recv", 1), at + 12, at + 82, at + 98)
        first.compute(at + 14, at + 98, at + 118)
        second.message(("recv", 0), at + 1, at + 4, at + 16)
        second.compute(at + 3, at + 16, at + 26)
        second.compute(at + 4, at + 26, at + 46)
        second.batch([("send", 0), ("recv", 0)], at + 5, at + 46, at + 62)
        second.compute(at + 11, at + 62, at + 72)
        second.compute(at + 12, at + 72, at + 92)
        second.message(("send", 0), at + 13, at + 92, at + 98)
    return first, second
