"""The engine on one GPU: the emulated link's times, every strategy behind it and on NCCL, numerics, no waiting host.

`python scripts/gpu_tests.py RESULTS` runs it. Needs torch, typer, rich, pytest and pytest-timeout.
"""

import gzip
import json
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from devices.gpu_testing import GPU_TESTS, limit, run
from overlaplab_engine.network.link import Link
from overlaplab_engine.optimizer import AdamW
from overlaplab_engine.strategies import Options, make
from overlaplab_engine.strategy_names import StrategyName
from overlaplab_engine.train import train_step
from ranks.engine_trials import BATCHES, COLLECTIVE, OURS, SMALL_CAP_MB, transformer
from ranks.label_texts import parse
from ranks.phantom_trials import group_of, train
from strategies import ALONE
from torch.profiler import ProfilerActivity, profile

pytestmark = GPU_TESTS

GPU = torch.device("cuda", 0)
DEVICE_EVENTS = {"kernel", "gpu_memcpy", "gpu_memset"}
CALLS = {"cuda_runtime", "cuda_driver"}
LEAD_CYCLES = 150_000_000
"""The device starts about 80 ms late, so that all is launched in time: the host takes 0.4 ms to launch a collective."""


@dataclass
class Collective:
    """One `engine::comm` of a trace, and what it launched on the device, in order."""

    values: dict[str, Any]
    launched: list[dict[str, Any]]

    @property
    def modelled_ns(self) -> int:
        return int(self.values["modelled_ns"])

    @property
    def start_ns(self) -> float:
        return 1e3 * min(e["ts"] for e in self.launched)

    @property
    def end_ns(self) -> float:
        return 1e3 * max(e["ts"] + e["dur"] for e in self.launched)


def collectives(events: list[dict[str, Any]]) -> list[Collective]:
    """Those that the trace holds as a whole."""
    ranges = [e for e in events if e.get("ph") == "X"]
    on_device = {e["args"]["correlation"]: e for e in ranges if e.get("cat") in DEVICE_EVENTS}
    calls = [e for e in ranges if e.get("cat") in CALLS]
    found = []
    for comm in ranges:
        if not comm["name"].startswith("engine::comm ") or comm.get("cat") == "gpu_user_annotation":
            continue
        mine = [c for c in calls if c["tid"] == comm["tid"] and comm["ts"] <= c["ts"] < comm["ts"] + comm["dur"]]
        launched = [on_device[i] for c in mine if (i := c["args"].get("correlation")) in on_device]
        found.append(Collective(parse(comm["name"])[1], sorted(launched, key=lambda e: e["ts"])))
    return sorted(found, key=lambda c: int(c.values["seq"]))


@pytest.mark.parametrize("beside", ["nothing", "computation"])
def test_a_collective_takes_its_time_within_2_percent(beside: str, tmp_path: Path) -> None:
    """From the trace's first kernel to its last; beside computation, whose kernels must end for the link's to begin, by
    the device's own stamps."""
    link = Link(bandwidth_gbps=400, latency_us=20)  # 140 µs for a gather
    with group_of(8, device=GPU, link=link) as comm:
        x = torch.randn(2048, 2048, device=GPU, dtype=torch.bfloat16)
        tensors = [torch.randn(n, device=GPU) for n in (1 << 10, 1 << 20, 1 << 24)]

        def communicate() -> None:
            works = []
            for tensor in tensors:
                shard = tensor[: tensor.numel() // 8]
                works.append(comm.all_reduce_mean(tensor))
                works.append(comm.all_gather(tensor, shard))
                works.append(comm.reduce_scatter_mean(shard, tensor))
                for _ in range(20 if beside == "computation" else 0):
                    torch.mm(x, x)
            for work in works:
                work.wait()

        communicate()
        torch.cuda.synchronize()
        first = comm.group.carrier.launched
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            torch.cuda._sleep(LEAD_CYCLES)
            for _ in range(10):
                communicate()
            torch.cuda.synchronize()
        carried = comm.group.log[first:]
    trace = tmp_path / "trace.json.gz"
    profiler.export_chrome_trace(str(trace))
    found = collectives(json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"])
    assert [int(c.values["seq"]) for c in found] == [told.seq for told in carried]
    assert len(found) == 90
    excess: dict[int, list[float]] = {}
    for c in found:
        excess.setdefault(c.modelled_ns, []).append(c.end_ns - c.start_ns - c.modelled_ns)
    for modelled_ns, more in sorted(excess.items()):
        print(f"{beside}: T = {modelled_ns} ns {statistics.median(more):+.0f}, {min(more):+.0f} to {max(more):+.0f}")
    for c, told in zip(found, carried, strict=True):
        assert told.modelled_ns == c.modelled_ns >= 100_000
        if beside == "nothing":
            assert abs((c.end_ns - c.start_ns) / c.modelled_ns - 1) <= 0.02, (c, told)
        assert abs(told.occupied_ns / told.modelled_ns - 1) <= 0.02, told
    for one, after in pairwise(found):
        assert one.end_ns <= after.start_ns + 2_000, "one after another; a stream's kernels may meet"


@pytest.mark.parametrize("name", COLLECTIVE)
def test_every_rank_among_phantoms_trains_as_one_process_does(name: StrategyName) -> None:
    for rank in range(3):
        train(name, rank, 3, accumulate=1 + rank % 2, device=GPU)


@pytest.mark.parametrize("name", OURS)
def test_the_host_waits_for_nothing_inside_a_step(name: StrategyName) -> None:
    with group_of(8, device=GPU) as comm:
        strategy = make(name, transformer(dtype=torch.float32).to(GPU), comm, Options(bucket_cap_mb=SMALL_CAP_MB))
        optimizer = AdamW(strategy.optimized(), lr=1e-3)
        try:
            for step in range(6):
                torch.cuda.set_sync_debug_mode("error" if step >= 3 else "default")
                train_step(strategy, optimizer, BATCHES, step, accumulate=2, clip_norm=1.0)
        finally:
            torch.cuda.set_sync_debug_mode("default")


ERRORS = "errors.txt"
RECORDING_S = 200.0
"""How long recording every strategy may take."""
MODEL = [
    *("--device", "cuda", "--nproc", "1", "--width", "512", "--heads", "8", "--seq", "256", "--batch", "8"),
    *("--steps", "2", "--warmup", "3", "--dtype", "bfloat16", "--bucket-cap-mb", "4"),
]
LAYERS = 8
COUNTS = {  # of a step, at least
    "naive": {"all_reduce": 12 * LAYERS + 5},
    "per-param": {"all_reduce": 12 * LAYERS + 5},
    "zero3": {"all_gather": 2 * LAYERS + 1, "reduce_scatter": LAYERS + 2},
    "torch-fsdp2": {"all_gather": 2 * LAYERS + 1, "reduce_scatter": LAYERS + 1},
}


def recorded(out: Path, *options: str, names: Sequence[str] = ALONE) -> Path:
    """The strategies' runs, from one process if none fails; what is missing fails in `read`."""
    script = Path(__file__).parents[1] / "support" / "programs" / "phantom_runs.py"
    command = [sys.executable, str(script), str(out), *MODEL, "--layers", str(LAYERS), *options, "--", *names]
    code, said = run(command, RECORDING_S, LIMIT_S=f"{RECORDING_S / 2}")
    print(said, file=sys.stderr)
    (out / ERRORS).write_text(f"{said}\nexit code {code}\n")
    return out


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("emulated"), "--link", "400Gbps,10us,8")


def read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """run.json and the trace's events; AssertionError if the run was not recorded."""
    manifest = folder / "run.json"
    assert manifest.exists(), f"{folder.name} was not recorded:\n{(folder.parent / ERRORS).read_text()[-2000:]}"
    trace = json.loads(gzip.decompress((folder / "rank0.pt.trace.json.gz").read_bytes()))
    return json.loads(manifest.read_text()), trace["traceEvents"]


@limit(RECORDING_S + 60)
@pytest.mark.parametrize("name", ALONE)
def test_every_strategy_records_one_rank_of_eight(emulated: Path, name: StrategyName) -> None:
    manifest, events = read(emulated / name)
    assert (manifest["device"], manifest["backend"], manifest["world_size"]) == ("cuda", "phantoms", 8)
    assert manifest["phantom_ranks"] == [1, 2, 3, 4, 5, 6, 7]
    (memory,) = manifest["memory"]
    assert 0 < memory["scratch"] <= 2 * (1 << 24) * (2 + 4 + 8)
    assert memory["peak_allocated"] > memory["parameters"] > 0
    table = manifest["collectives"]
    if name in COUNTS:
        counts = Counter(table["kind"])
        assert all(counts[kind] >= 2 * count for kind, count in COUNTS[name].items()), counts
    found = collectives(events)
    assert [int(c.values["seq"]) for c in found] == table["seq"]
    for collective in found:
        names = [e["name"] for e in collective.launched]
        assert (names[0], names[-1]) == ("emulated_link_begin", "emulated_link_wait"), names
        assert len({e["args"]["stream"] for e in collective.launched}) == 1
    print(f"{name}: {sum(table['overran'])} of {len(found)} overran, peak {memory['peak_allocated'] / 2**20:.0f} MiB")


@limit(RECORDING_S + 60)
def test_computation_goes_on_meanwhile(tmp_path: Path) -> None:
    """While a collective takes 14 ms, the host launches kernels, however slow it is."""
    _, events = read(recorded(tmp_path, "--link", "400Gbps,1000us,8", names=["bucketed"]) / "bucketed")
    found = collectives(events)
    own = {id(e) for c in found for e in c.launched}
    others = [e for e in events if e.get("cat") == "kernel" and id(e) not in own]
    beside = [e for e in others if any(c.start_ns < 1e3 * e["ts"] < c.end_ns for c in found)]
    print(f"{len(beside)} of {len(others)} kernels began beside a collective")
    assert beside


@limit(RECORDING_S + 60)
@pytest.mark.parametrize("name", [*OURS, StrategyName.TORCH_FSDP2])  # DDP's logger waits in its first passes
def test_a_recorded_step_holds_no_waiting_host(emulated: Path, name: StrategyName) -> None:
    _, events = read(emulated / name)
    steps = [e for e in events if e.get("cat") == "user_annotation" and e["name"].startswith("ProfilerStep#")]
    inside = [
        e["name"]
        for e in events
        if e.get("cat") in CALLS and any(s["ts"] <= e["ts"] < s["ts"] + s["dur"] for s in steps)
    ]
    assert inside
    assert [call for call in inside if "Synchronize" in call] == []


@limit(RECORDING_S + 60)
def test_every_strategy_runs_on_nccl_with_one_rank(tmp_path: Path) -> None:
    recorded(tmp_path)
    for name in ALONE:
        manifest, _ = read(tmp_path / name)
        assert (manifest["backend"], manifest["world_size"], manifest["phantom_ranks"]) == ("nccl", 1, [])
        assert all(loss is not None for loss in manifest["losses"])
