"""Folders of runs as the dashboard opens them: an engine's run, a foreign GPU trace, a broken one, zero3 with
and without prefetching.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from made.traces import event, launched, op, run_of, step, write
from made.zero3 import made_step, zero3_events

EMULATED = {"emulated": True, "bandwidth_gbps": 1.0, "latency_us": 200.0, "world_size": 2}


def label(text: str, start: float, end: float, tid: object = 1) -> dict[str, Any]:
    return event(f"engine::{text}", start, end, cat="user_annotation", tid=tid)


def engine_step(number: int, at: float) -> list[dict[str, Any]]:
    """A step of 1000 µs: two buckets, the second one late; 500 µs on the link, of which 150 are hidden."""

    def comm(seq: int, start: float, end: float) -> dict[str, Any]:
        text = f"comm seq={seq} kind=all_reduce dtype=float32 bytes=4000000 group=0 link=1Gbps,200us modelled_ns=1"
        return label(text, start, end, tid=7)

    seq = 2 * number
    return [
        step(number, at, at + 1000),
        label("forward microbatch=0", at, at + 200),
        op("linear", at, at + 200),
        label("backward microbatch=0 sync=1", at + 200, at + 600),
        op("mm", at + 200, at + 600, tid=2),
        label("gradient_ready parameter=head.weight", at + 300, at + 301, tid=2),
        label("bucket_ready bucket=0 bytes=4000000 parameters=head.weight", at + 302, at + 303, tid=2),
        label("bucket_launch bucket=0", at + 304, at + 308, tid=2),
        label(f"launch seq={seq}", at + 305, at + 306, tid=2),
        comm(seq, at + 450, at + 600),
        label("gradient_ready parameter=body.weight", at + 500, at + 501, tid=2),
        label("bucket_ready bucket=1 bytes=4000000 parameters=body.weight", at + 502, at + 503, tid=2),
        label("bucket_launch bucket=1", at + 504, at + 508, tid=2),
        label(f"launch seq={seq + 1}", at + 505, at + 506, tid=2),
        comm(seq + 1, at + 600, at + 950),
        label("wait", at + 600, at + 950),
        label("bucket_done bucket=0", at + 951, at + 952),
        label("bucket_done bucket=1", at + 952, at + 953),
        label("optimizer", at + 955, at + 1000),
        op("add_", at + 955, at + 1000),
    ]


def engine_events() -> list[dict[str, Any]]:
    return [*engine_step(0, 0), *engine_step(1, 1000)]


def gpu_events() -> list[dict[str, Any]]:
    """A foreign step on a GPU: 60 µs of compute, 40 of NCCL, 10 of which are hidden; and a copy."""
    return [
        step(3, 0, 200),
        *launched("ampere_sgemm", 5, 20, 80, correlation=1),
        *launched("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 10, 70, 110, stream=20, correlation=2),
        *launched("Memcpy HtoD", 12, 112, 120, stream=7, correlation=3, cat="gpu_memcpy"),
    ]


def made_runs(folder: Path) -> Path:
    """Put an engine's run of two ranks, one of one rank, a foreign GPU trace, and a run that cannot be read there."""
    run_of(folder / "bucketed", engine_events(), engine_events(), manifest={"link": EMULATED, "link_attained": True})
    run_of(folder / "one-rank", engine_events(), manifest={"bucket_cap_mb": 1.0})
    (folder / "foreign").mkdir()
    write(folder / "foreign" / "trace.json.gz", gpu_events())
    (folder / "broken").mkdir()
    (folder / "broken" / "rank0.pt.trace.json.gz").write_bytes(b"\x1f\x8b no gzip at all")
    return folder


def made_gathering(folder: Path) -> Path:
    """Put two runs of zero3 there, one that prefetches and one that does not."""
    for name, prefetch in (("ahead", 1), ("serial", 0)):
        events = zero3_events(4, prefetch)
        run_of(folder / name, events, events, manifest=zero3_manifest(prefetch))
    return folder


def made_sweep(folder: Path) -> Path:
    """Put a sweep of two caps there, one of them recorded twice, with steps of 1000 µs."""
    events = [event for number in range(3) for event in engine_step(number, 1000 * number)]
    for name, cap in (("cap-25", 25), ("cap-5", 5), ("cap-5-2", 5)):
        run_of(folder / name, events, events, manifest={"bucket_cap_mb": cap, "link": EMULATED})
    return folder


def zero3_manifest(prefetch: int) -> dict[str, Any]:
    """The run.json of the made runs: four layers of 100,000 parameters, an embedding and a head."""
    sizes = {row["unit"]: row["bytes"] for row in made_step(4, 0).gathers}
    return {
        "strategy": "zero3",
        "bucket_cap_mb": None,
        "prefetch": prefetch,
        "keep_last": True,
        "accumulate": 1,
        "link": EMULATED,
        "link_attained": True,
        "model": {"layers": 4, "parameters": sum(sizes.values()) // 4},
        "units": [{"name": unit, "bytes": size, "parameters": [f"{unit}.w"]} for unit, size in sizes.items()],
        "parameters": [
            {"name": f"{unit}.w", "shape": [size // 4], "dtype": "float32", "bytes": size, "unit": unit}
            for unit, size in sizes.items()
        ],
        "memory": [
            {"rank": rank, "parameters": 875_000 + 12 * rank, "gradients": 875_000, "optimizer": 1_750_000}
            for rank in range(2)
        ],
    }
