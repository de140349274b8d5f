"""Where a rank has stopped, on real gloo processes, and without the names of torch that tell."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from overlaplab_engine.watching import looks
from overlaplab_engine.watching.log import LookFlag
from ranks.warm_ranks import WarmProcess

import overlaplab
from overlaplab.analyses import watched_stopped
from overlaplab.load.watched import CellKind, load_watched
from overlaplab.ports import free_port

SCRIPT = """
import os, signal, sys, time
import torch, torch.distributed as dist
import overlaplab
from overlaplab_engine.watching import looks, watch as watching

out, how = sys.argv[1:]
watching.STALLED_NS, looks.STALLED_INTERVAL_S, looks.LOOK_INTERVAL_NS = 500_000_000, 0.2, 0
dist.init_process_group("gloo")
pair = dist.new_group([0, 1], group_desc="pair")
model = torch.nn.Linear(2, 2)
with overlaplab.watch(model, out) as watch:
    for step in range(6):
        model(torch.ones(1, 2)).sum().backward()
        if step == 4 and dist.get_rank() == 1:
            if how == "sleep":
                time.sleep(1000)
            os.kill(os.getpid(), {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}[how])
        dist.all_reduce(torch.ones(2), group=pair)
        watch.step()
"""


@pytest.mark.parametrize("how", ["sleep", "stop", "kill"])
def test_files_say_where_a_rank_has_stopped(tmp_path: Path, how: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    out = tmp_path / "live"
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        WarmProcess([str(tmp_path / "train.py"), str(out), how], common | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in (0, 1)
    ]
    expected = [1, 3, how == "sleep", "pair", 4, 3, 5]
    columns = ["rank", "last_step", "answers", "group", "enqueued", "looked_step", "others_wait_in"]
    rows: list[list[Any]] = []
    try:
        end = time.monotonic() + 120
        while rows != [expected] and time.monotonic() < end:
            time.sleep(0.2)
            if all((out / f"rank{rank}.json").exists() for rank in (0, 1)):
                rows = watched_stopped(load_watched(out))[columns].to_numpy().tolist()
    finally:
        for rank in ranks:
            rank.kill()
        for rank in ranks:
            rank.ended()
    assert rows == [expected]
    if how != "kill":  # an all-reduce that has failed counts as completed
        assert load_watched(out).ranks[0].cells_of_kind(CellKind.COMPLETED)["value"][-1] == 4


@pytest.fixture
def group() -> Any:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def train(out: Path, steps: int = 3) -> None:
    with overlaplab.watch(torch.nn.Linear(1, 1), out) as watch:
        for _ in range(steps):
            dist.all_reduce(torch.ones(2))
            watch.step()


def cells(out: Path, kind: CellKind) -> list[int]:
    values: list[int] = load_watched(out).ranks[0].cells_of_kind(kind)["value"].tolist()
    return values


def test_looks_are_at_the_ends_of_steps_and_seldom(
    tmp_path: Path, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path)
    assert len(cells(tmp_path, CellKind.LOOK)) == 1  # a second has not passed
    monkeypatch.setattr(looks, "LOOK_INTERVAL_NS", 0)
    train(tmp_path)
    assert cells(tmp_path, CellKind.ENQUEUED) == [4, 5, 6]


@pytest.mark.parametrize("fails", [False, True])
def test_only_an_error_since_the_start_ends_a_training(
    tmp_path: Path, group: None, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Within the handler of another one, as where a loop tries again, after a notebook's cell that has failed."""
    monkeypatch.setattr(sys, "last_value", ValueError("an earlier cell"), raising=False)
    try:
        raise MemoryError
    except MemoryError:
        with suppress(KeyError), overlaplab.watch(torch.nn.Linear(1, 1), tmp_path) as watch:
            dist.all_reduce(torch.ones(2))
            watch.step()
            if fails:
                raise KeyError from None
    flags = load_watched(tmp_path).ranks[0].cells_of_kind(CellKind.LOOK)["flags"].tolist()
    assert flags == [LookFlag.STEP_ENDED, LookFlag.FAILED][: 1 + fails]


def test_without_sequence_numbers_that_is_said_once(
    tmp_path: Path, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(dist.ProcessGroup, "_get_sequence_number_for_group")
    with pytest.warns(UserWarning, match="places where ranks stop are not seen: this torch lacks") as caught:
        train(tmp_path)
    assert (len(caught), cells(tmp_path, CellKind.LOOK), len(cells(tmp_path, CellKind.STEP))) == (1, [], 3)


def test_without_the_map_of_groups_nothing_can_look(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist.distributed_c10d, "_world", object())
    with pytest.raises(AttributeError, match="pg_map"):
        looks.Looks(lambda _: 0)
    monkeypatch.undo()


def test_without_the_flight_recorder_what_is_completed_is_unknown(
    tmp_path: Path, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch._C._distributed_c10d, "_dump_fr_trace_json")
    train(tmp_path)
    assert (cells(tmp_path, CellKind.ENQUEUED), cells(tmp_path, CellKind.COMPLETED)) == ([1], [])


def test_a_fault_in_a_look_ends_only_looks(tmp_path: Path, group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C._distributed_c10d, "_dump_fr_trace_json", lambda *_: b"{")
    with pytest.warns(UserWarning, match="places where ranks stop are not seen: JSONDecodeError") as caught:
        train(tmp_path)
    assert (len(caught), cells(tmp_path, CellKind.LOOK), len(cells(tmp_path, CellKind.STEP))) == (1, [], 3)
    assert load_watched(tmp_path).ranks[0].header.ended


def test_torch_has_the_names() -> None:
    assert hasattr(dist.ProcessGroup, "_get_sequence_number_for_group")
    assert hasattr(torch._C._distributed_c10d, "_dump_fr_trace_json")
    assert isinstance(dist.distributed_c10d._world.pg_map, dict)
