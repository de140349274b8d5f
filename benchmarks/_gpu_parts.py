"""One part of `gpu.py`, in a process of its own: what it measures, as JSON.

python benchmarks/_gpu_parts.py PART PLAN.json RESULT.json

Times are seconds per step: of a few steps in a row after one that is not timed, so that the device's queue is never
empty; on a GPU by events of its stream, on a CPU by the host's clock.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _common import Side
from _shared import take_turns
from engine_cost import with_and_without_labels
from overlaplab_engine.config import Config, Device, Dtype
from overlaplab_engine.models.batches import Batches, place
from overlaplab_engine.network.communicator import connect
from overlaplab_engine.network.link import Kind, Link, LinkWait
from overlaplab_engine.recording.trace_file import experimental_config, write_json
from overlaplab_engine.strategy_names import StrategyName
from overlaplab_engine.train import make_model
from torch.profiler import ProfilerActivity, profile

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured, and how often."""

    device: str
    link: str
    """`200Gbps,10us,8`: bandwidth, latency, and of how many ranks this is one."""
    link_wait: str
    """What holds up the stream behind it: kernel or host."""
    layers: int
    width: int
    heads: int
    seq: int
    batch: int
    vocab: int
    dtype: str
    pairs: int
    """Pairs of measurements that count."""
    steps: int
    """Steps of one measurement."""
    caps: tuple[float, ...]
    """Caps of buckets in MiB, for the curve."""
    cap: float
    """The cap of all parts but the curve."""


class Bench:
    """One rank of an emulated group, and what it trains."""

    def __init__(self, plan: Plan) -> None:
        """Connect."""
        self.plan = plan
        self.link = Link.parse(plan.link)
        self.device = torch.device(plan.device, 0) if plan.device == "cuda" else torch.device("cpu")
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.comm = connect(self.device, self.link, wait=LinkWait(plan.link_wait))

    def config(self, strategy: StrategyName, **more: Any) -> Config:
        """A strategy's configuration, for the plan's model."""
        plan = self.plan
        sizes = {name: getattr(plan, name) for name in ("layers", "width", "heads", "seq", "batch", "vocab")}
        device, dtype = Device(plan.device), Dtype(plan.dtype)
        return Config(strategy=strategy, out=Path(), device=device, dtype=dtype, **sizes, **more)

    def side(self, strategy: StrategyName, **more: Any) -> Side:
        """A model that is trained step by step."""
        return Side(self.config(strategy, **more), self.comm)

    def seconds(self, side: Side) -> float:
        """The time of one step."""
        side()
        begin = self.mark()
        for _ in range(self.plan.steps):
            side()
        return self.seconds_between(begin, self.mark()) / self.plan.steps

    def mark(self) -> Any:
        """A moment: the current stream's, which may be yet to come, or the host's."""
        if self.device.type == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds_between(self, begin: Any, end: Any) -> float:
        """Seconds between two marks; waits for the second."""
        if self.device.type == "cpu":
            return float(end - begin)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def take_turns(self, measures: Sequence[Callable[[], float]]) -> list[list[float]]:
        """What each finds."""
        return take_turns(measures, self.plan.pairs, warmup=2)

    def compare(self, what: str, sides: tuple[Side, Side]) -> Figures:
        """Step times of two sides that take turns."""
        ours, theirs = self.take_turns([partial(self.seconds, side) for side in sides])
        return {"what": what, "ours": ours, "theirs": theirs}


def passes_alone(bench: Bench) -> Figures:
    """A forward and a backward pass without communication, and all buckets' all-reduces without computation."""
    config = bench.config(StrategyName.BUCKETED, bucket_cap_mb=bench.plan.cap)
    with bench.device:
        model = make_model(config)
    batches = Batches(seed=0, vocab=config.vocab, seq=config.seq, batch=config.batch)
    passes: dict[str, list[float]] = {"forward": [], "backward": [], "host": []}
    for number in range(3 + bench.plan.pairs):
        tokens, targets = place(batches.rank_batch(number, 0, 0), bench.device)
        host, begin = time.perf_counter(), bench.mark()
        loss = model(tokens, targets)
        turn = bench.mark()
        loss.backward()
        host, end = time.perf_counter() - host, bench.mark()
        model.zero_grad(set_to_none=True)
        if number >= 3:
            passes["forward"].append(bench.seconds_between(begin, turn))
            passes["backward"].append(bench.seconds_between(turn, end))
            passes["host"].append(host)
    del model, loss
    side = bench.side(StrategyName.BUCKETED, bucket_cap_mb=config.bucket_cap_mb)
    for _ in range(3):
        side()
    buckets = [nbytes for nbytes, _ in side.strategy.buckets]
    world = bench.comm.world_size
    return {
        **{name: median(values) for name, values in passes.items()},
        "communication": median(_carry_s(bench, buckets) for _ in range(5)),
        "modelled": sum(bench.link.modelled_ns(Kind.ALL_REDUCE, nbytes, world) for nbytes in buckets) / 1e9,
        "buckets": buckets,
        "parameters": sum(p.numel() for p in side.strategy.model.parameters()),
    }


def _carry_s(bench: Bench, buckets: list[int]) -> float:
    """Seconds that the link takes for all-reduces of so many bytes in a row."""
    tensors = [torch.zeros(nbytes // 2, dtype=torch.bfloat16, device=bench.device) for nbytes in buckets]
    begin = bench.mark()
    for work in [bench.comm.all_reduce_mean(tensor) for tensor in tensors]:
        work.wait()
    return bench.seconds_between(begin, bench.mark())


def curve(bench: Bench) -> Figures:
    """Step time of bucketed for each cap; all take turns."""
    sides = [bench.side(StrategyName.BUCKETED, bucket_cap_mb=cap) for cap in bench.plan.caps]
    return {
        "caps": list(bench.plan.caps),
        "seconds": bench.take_turns([partial(bench.seconds, side) for side in sides]),
        "buckets": [len(side.strategy.buckets) for side in sides],
    }


def ddp(bench: Bench) -> Figures:
    """bucketed ÷ torch-ddp."""
    ours, theirs = (
        bench.side(name, bucket_cap_mb=bench.plan.cap) for name in (StrategyName.BUCKETED, StrategyName.TORCH_DDP)
    )
    return bench.compare(f"step time, bucketed ÷ torch-ddp, {bench.plan.cap:g} MiB", (ours, theirs))


def fsdp2(bench: Bench) -> Figures:
    """zero3 ÷ torch-fsdp2."""
    sides = bench.side(StrategyName.ZERO3), bench.side(StrategyName.TORCH_FSDP2)
    return bench.compare("step time, zero3 ÷ torch-fsdp2, 1 ahead", sides)


def recording(bench: Bench) -> Figures:
    """Recording on ÷ off, as the engine records, and with what streams wait for ÷ without."""
    side = bench.side(StrategyName.BUCKETED, bucket_cap_mb=bench.plan.cap)
    before = [bench.seconds(side) for _ in range(5)][2:]  # the profiler may leave something behind
    gpu = bench.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    events = {}

    def record(*, syncs: bool) -> float:
        options = experimental_config(all_threads=not gpu, gpu=gpu and syncs)
        with profile(activities=activities, experimental_config=options) as profiler:
            seconds = bench.seconds(side)
        events[syncs] = len(profiler.profiler.kineto_results.events())  # type: ignore[union-attr]
        return seconds

    off, on, without_syncs = bench.take_turns(
        [partial(bench.seconds, side), partial(record, syncs=True), partial(record, syncs=False)]
    )
    steps = bench.plan.steps + 1
    what = f"recording on ÷ off, {events[True] // steps} events per step"
    syncs = f"recording with cuda_sync events ÷ without, {events[False] // steps} events per step"
    compared = {"what": syncs, "ours": on, "theirs": without_syncs}
    return {"what": what, "ours": on, "theirs": off, "before": before, "syncs": compared}


def labels(bench: Bench) -> Figures:
    """Labels with the profiler off ÷ labels removed, for each of two strategies."""
    return {
        name: _labels(bench, name, more)
        for name, more in ((StrategyName.BUCKETED, {"bucket_cap_mb": bench.plan.cap}), (StrategyName.ZERO3, {}))
    }


def _labels(bench: Bench, name: StrategyName, more: dict[str, Any]) -> Figures:
    ours, theirs = bench.take_turns(with_and_without_labels(partial(bench.side, name, **more), bench.seconds))
    return {"what": f"labels, profiler off ÷ labels removed, {name}", "ours": ours, "theirs": theirs}


PARTS: dict[str, Callable[[Bench], Figures]] = {"alone": passes_alone} | {
    part.__name__: part for part in (curve, ddp, fsdp2, recording, labels)
}


def main(name: str, plan: str, result: str) -> None:
    """Measure one part."""
    bench = Bench(Plan(**json.loads(Path(plan).read_text())))
    figures = PARTS[name](bench)
    figures["link"] = bench.plan.link
    figures["link_wait"] = bench.plan.link_wait
    if bench.device.type == "cuda":
        figures["device"] = torch.cuda.get_device_name(bench.device)
    figures["torch"] = torch.__version__
    write_json(Path(result), figures)
    bench.comm.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
