"""`overlaplab.watch` on one GPU, with NCCL and a world of one: events tell, and nothing is synchronised."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from devices.gpu_testing import GPU_TESTS
from overlaplab_engine import watch
from overlaplab_engine.watching.log import CellKind
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from overlaplab.ports import free_port

pytestmark = GPU_TESTS

STEPS = 7


@pytest.fixture
def group() -> Iterator[None]:
    address = f"tcp://127.0.0.1:{free_port()}"
    dist.init_process_group("nccl", init_method=address, rank=0, world_size=1, device_id=torch.device("cuda", 0))
    yield
    dist.destroy_process_group()


def kinds(out: Path) -> dict[int, list[int]]:
    """The steps that have cells of each kind."""
    text = (out / "rank0.cells").read_bytes()
    found: dict[int, list[int]] = {}
    for place in range(0, len(text), 16):
        number = int.from_bytes(text[place + 4 : place + 8], "little")
        found.setdefault(text[place], []).append(number)
    return found


def layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))).cuda()


def test_ddp_is_timed_by_events(tmp_path: Path, group: None) -> None:
    model = DistributedDataParallel(layers())
    with watch(model, tmp_path, every=6) as watching:
        for _ in range(STEPS):
            model(torch.ones(8, 256, device="cuda")).sum().backward()
            watching.step()
            torch.cuda.synchronize()  # so that events are over when they are looked at
    found = kinds(tmp_path)
    for kind in (CellKind.FORWARD, CellKind.BACKWARD, CellKind.EXPOSED_DDP):
        assert sorted(found[kind]) == [3, 4, 5]
    assert CellKind.DDP_COMMUNICATION not in found


def test_a_plain_loops_waits_are_seen_in_the_stream_that_computes_alone(tmp_path: Path, group: None) -> None:
    model, aside = layers(), torch.cuda.Stream()
    with watch(model, tmp_path, every=6) as watching:
        for _ in range(STEPS):
            model(torch.ones(8, 256, device="cuda")).sum().backward()
            dist.all_reduce(torch.ones(4, device="cuda"))
            with torch.cuda.stream(aside):
                dist.barrier()
            watching.step()
            torch.cuda.synchronize()
    found = kinds(tmp_path)
    assert sorted(found[CellKind.EXPOSED_GRADIENTS]) == [3, 4, 5]
    assert CellKind.EXPOSED_OTHER not in found
    assert CellKind.ALL_REDUCE not in found


def test_the_host_never_waits(tmp_path: Path) -> None:
    model = layers()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with watch(model, tmp_path, every=6) as watching:
            for _ in range(STEPS):
                model(torch.ones(8, 256, device="cuda")).sum().backward()
                watching.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(kinds(tmp_path)[CellKind.STEP]) == STEPS
