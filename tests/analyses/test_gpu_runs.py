"""What the engine writes on one GPU behind an emulated link, from traces made by rule (see `made.gpu`): all figures can
be told by hand from how long kernels and collectives take, since the host runs ahead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made.gpu import COMPUTE, GATHER_US, LINK, SCATTER_US, Gpu, bucketed, fsdp2, zero3
from made.phantoms import phantom_run
from rich.text import Text

import overlaplab
from overlaplab import Run
from overlaplab.analyses import scatters, schedule_steps, volume
from overlaplab.evidence.recorded import recorded_collectives
from overlaplab.findings import run_warnings
from overlaplab.report.terminal import terminal_table
from overlaplab.sections.tables import summary_rows
from overlaplab.selection import Selection
from overlaplab.simulate.bound import bound
from overlaplab.timeline.timeline import timeline_events

SPANS = ("span_ns", "compute_ns", "comm_ns", "overlapped_ns", "exposed_comm_ns", "memory_only_ns", "idle_ns")


def gpu_run(folder: Path, events: list[dict[str, Any]], **manifest: Any) -> Run:
    return phantom_run(folder, events, **({"device": "cuda"} | manifest))


def us(table: pd.DataFrame, *columns: str) -> list[list[Any]]:
    """Columns in µs, other values as they are."""
    return [
        [None if pd.isna(value) else value / 1000 if name.endswith("_ns") else value for name, value in row.items()]
        for row in table[list(columns)].to_dict("records")
    ]


def causes(run: Run) -> list[list[Any]]:
    return us(overlaplab.exposed(run, Selection(steps=[3])), "cause", "what", "exposed_ns")


@pytest.mark.parametrize(
    ("events", "manifest"),
    [
        (bucketed(), {}),
        (bucketed(ddp=True), {"strategy": "torch-ddp"}),
        (bucketed(ddp=True, labelled=False), {"strategy": None}),
    ],
    ids=["bucketed", "torch-ddp", "anybody's loop"],
)
def test_buckets(tmp_path: Path, events: list[dict[str, Any]], manifest: dict[str, Any]) -> None:
    """Forward 100, 100, 100, 100, backward 200, 200, 200, 200, 1 µs between kernels, and a bucket after every second:
    the first one's 300 µs lie beside the next two backward kernels, but for the 1 µs between them; the second one's
    beside nothing; then the optimizer's 50.
    """
    run = gpu_run(tmp_path, events, **manifest)
    assert run_warnings(run) == ()
    assert us(overlaplab.summary(run), "step", *SPANS) == [
        [3, 1560, 1250, 600, 299, 301, 0, 9],
        [4, 1559, 1250, 600, 299, 301, 0, 8],  # there is no next kernel
    ]
    table = overlaplab.buckets(run)
    times = ("ready_ns", "start_ns", "end_ns", "exposed_ns")
    assert us(table, "step", "index", *times) == [
        [3, 0, 805, 806, 1106, 1],
        [3, 1, 1207, 1208, 1508, 300],
        [4, 0, 805, 806, 1106, 1],
        [4, 1, 1207, 1208, 1508, 300],
    ]
    assert table["gradient_ready_ns"].tolist()[:2] == [(604_000, 805_000), (1_006_000, 1_207_000)]
    assert table["last_parameter"].tolist()[:2] == ["layers.2.w", "layers.0.w"]
    assert us(table.head(1), "backward_start_ns", "backward_end_ns") == [[403, 1207]]
    assert (table["launch_ns"] < 100_000).all()  # by the host
    assert causes(run) == [["tail", "bucket 1", 300], ["compute gap", "bucket 0", 1]]


def test_a_collective_is_its_events_from_first_to_last(tmp_path: Path) -> None:
    """Begin, copy and wait, with 1 µs between them, are 300 µs of one all-reduce of 8 ranks."""
    run = gpu_run(tmp_path, bucketed())
    table = overlaplab.collectives(run, Selection(steps=[3]))
    assert us(table, "kind", "bytes", "dtype", "group_size", "wait_ns", "transfer_ns", "exposed_ns") == [
        ["all_reduce", 8_000_000, "bfloat16", 8, 0, 300, 1],
        ["all_reduce", 8_000_000, "bfloat16", 8, 0, 300, 300],
    ]
    assert table["bus_gb_per_s"].tolist() == pytest.approx([8e6 / 300e3 * 14 / 8] * 2)
    assert recorded_collectives(run.traces[0])["sequence"].tolist() == [0, 1, 2, 3]
    assert volume(run)["sent_bytes"].tolist() == [28_000_000] * 2  # 2 × 7/8 of 16 MB


def carried_by_the_host(gpu: Gpu, kind: str, num_bytes: int, us: int, *, after: int = COMPUTE) -> int:
    """As `Gpu.carry`, with `--link-wait host`: two copies to the host mark the ends, and the wait shows nowhere."""
    text = f"engine::comm seq={gpu._seq} kind={kind} dtype=bfloat16 bytes={num_bytes} group=0"
    gpu._seq += 1
    with gpu.range(f"{text} link=400Gbps,10us modelled_ns={us * 1000}"):
        gpu.wait(LINK, gpu.end(after))
        begun = gpu.run("Memcpy DtoH (Device -> Pinned)", 1, LINK)
        gpu.run("Memcpy DtoD (Device -> Device)", 10, LINK)
        gpu._free[LINK] = begun + us - 2
        gpu.run("Memcpy DtoH (Device -> Pinned)", 1, LINK)
    return gpu.end(LINK)


def test_a_link_that_waits_for_the_host_is_read_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gpu, "carry", carried_by_the_host)
    run = gpu_run(tmp_path, bucketed(), link_wait="host")
    assert run_warnings(run) == ()
    assert us(overlaplab.summary(run), "step", *SPANS) == [
        [3, 1560, 1250, 600, 299, 301, 0, 9],
        [4, 1559, 1250, 600, 299, 301, 0, 8],
    ]
    table = overlaplab.collectives(run, Selection(steps=[3]))
    assert us(table, "kind", "bytes", "dtype", "group_size", "wait_ns", "transfer_ns", "exposed_ns") == [
        ["all_reduce", 8_000_000, "bfloat16", 8, 0, 300, 1],
        ["all_reduce", 8_000_000, "bfloat16", 8, 0, 300, 300],
    ]
    assert us(overlaplab.buckets(run, Selection(steps=[3])), "index", "start_ns", "end_ns") == [
        [0, 806, 1106],
        [1, 1208, 1508],
    ]


def test_gathers_that_nothing_hides(tmp_path: Path) -> None:
    """Without prefetching, each gather of 150 µs begins 1 µs after what was computed before, or, the last one, after
    the scatter of 100 before it; and the use 1 µs after the gather.
    """
    run = gpu_run(tmp_path, zero3(0), strategy="zero3", prefetch=0)
    table = overlaplab.schedule(run, Selection(steps=[4]))
    assert us(table, "unit", "phase", "gather_start_ns", "gather_end_ns", "first_use_ns", "last_use_ns", "wait_ns") == [
        ["embedding", "forward", -151, -1, 0, 100, 151],
        ["layers.0", "forward", 101, 251, 252, 352, 151],
        ["layers.1", "forward", 353, 503, 504, 604, 151],
        ["head", "forward", 605, 755, 756, 856, 151],
        ["layers.0", "backward", 1382, 1532, 1533, 1733, 241],
    ]
    kept = us(table, "unit", "backward_first_use_ns", "backward_last_use_ns", "free_ns", "free_phase")
    assert kept[2:4] == [["layers.1", 1069, 1269, 1269, "backward"], ["head", 857, 1057, 1057, "backward"]]
    assert [row[3] for row in kept] == [100, 352, 1269, 1057, 1733]


def test_gathers_ahead(tmp_path: Path) -> None:
    """With one unit ahead each gather begins when the one before it ends, and 100 of its 150 µs are hidden."""
    run = gpu_run(tmp_path, zero3(1), strategy="zero3", prefetch=1)
    table = overlaplab.schedule(run, Selection(steps=[3]))
    assert us(table, "unit", "gather_start_ns", "gather_end_ns", "first_use_ns", "wait_ns", "free_ns") == [
        ["embedding", -151, -1, 0, 124, 100],  # asked for when nothing had run
        ["layers.0", 0, 150, 151, 50, 251],
        ["layers.1", 151, 301, 302, 50, 966],
        ["head", 302, 452, 453, 50, 754],
        ["layers.0", 867, 1017, 1018, 29, 1218],
    ]
    assert us(scatters(run, Selection(steps=[3])), "unit", "start_ns", "end_ns", "bytes") == [
        ["head", 766, 866, 4_000_000],
        ["layers.1", 1018, 1118, 4_000_000],
        ["layers.0", 1230, 1330, 4_000_000],
        ["embedding", 1453, 1553, 4_000_000],
    ]
    counted = schedule_steps(overlaplab.schedule(run))
    assert (
        counted[["gathers", "frees", "layer_gathers", "peak_gathered_bytes"]].to_numpy().tolist()
        == [[5, 5, 3, 8_000_000]] * 2
    )
    assert us(overlaplab.summary(run, Selection(steps=[3])), *SPANS) == [[1767, 1330, 1150, 728, 422, 0, 15]]
    assert causes(run)[:5] == [
        ["tail", "embedding", GATHER_US],  # of the next step: nothing has computed yet
        ["blocking", "embedding", SCATTER_US - 10],  # beside it the scatter before it is taken in
        ["queued", "layers.0", 50],
        ["queued", "layers.1", 50],
        ["queued", "head", 50],
    ]


def test_fsdp2(tmp_path: Path) -> None:
    """Its own ranges and streams: root, two layers forward, both again backward, three scatters."""
    run = gpu_run(tmp_path, fsdp2(), strategy="torch-fsdp2")
    table = overlaplab.schedule(run, Selection(steps=[3]))
    assert us(table, "unit", "phase", "gather_start_ns", "gather_end_ns", "first_use_ns", "free_ns", "wait_ns") == [
        ["root", "forward", -151, -1, 9, 1118, 140],
        ["layers.0", "forward", 15, 165, 175, 275, 56],
        ["layers.1", "forward", 181, 331, 341, 441, 56],
        ["layers.1", "backward", 347, 497, 507, 707, 56],
        ["layers.0", "backward", 513, 663, 717, 917, 0],
    ]
    assert set(table["bytes"]) == {4_000_000}
    assert us(scatters(run, Selection(steps=[3])), "unit", "start_ns", "end_ns") == [
        ["layers.1", 714, 814],
        ["layers.0", 924, 1024],
        ["root", 1125, 1225],
    ]
    assert volume(run)[["kind", "count"]].to_numpy().tolist() == [["all_gather", 5], ["reduce_scatter", 3]] * 2
    assert causes(run)[0] == ["tail", "root", SCATTER_US]
    assert us(overlaplab.exposed(run, Selection(steps=[4])), "cause", "what", "exposed_ns")[0] == [
        "tail",
        "root",
        SCATTER_US,
    ]


def test_the_timeline_shows_device_time(tmp_path: Path) -> None:
    run = gpu_run(tmp_path, bucketed())
    timeline = timeline_events(run)
    labels = timeline.lanes["label"].tolist()
    assert labels == [
        f"rank 0 {lane}"
        for lane in ("steps", "phases", "buckets", "stream 7 (compute)", "stream 20 (communication)", "exposed")
    ]
    marks = timeline.events.assign(label=timeline.lanes["label"].to_numpy()[timeline.events["lane"]])
    phases = marks[marks["label"] == "rank 0 phases"].head(3)
    first = 8_000  # launched at 3
    assert (phases[["start_ns", "end_ns"]] - first).to_numpy().tolist() == [
        [0, 403_000],
        [404_000, 1_207_000],
        [1_509_000, 1_559_000],
    ]
    link = marks[marks["label"] == "rank 0 stream 20 (communication)"]
    assert link["collective"].tolist()[:6] == [0, 0, 0, 1, 1, 1]


def test_link_kernels_are_communication_without_their_calls(tmp_path: Path) -> None:
    """The profiler left out the driver's calls: the copy between them is recognised by its own call."""
    events = [e for e in bucketed() if e["cat"] != "cuda_driver"]
    (row, _) = us(overlaplab.summary(gpu_run(tmp_path, events)), *SPANS)
    assert row[:2] == [1560, 1250]
    assert row[2] == pytest.approx(600, abs=4)  # the gaps of 1 µs beside what is not told to belong together


def test_two_collectives_of_which_one_overran(tmp_path: Path) -> None:
    """The copy takes longer than the model: the collective ends when its wait kernel does."""
    gpu = Gpu()
    with gpu.step():
        gpu.run("gemm", 100)
        gpu.carry("all_reduce", 8, 5)  # begin 1, gap 1, copy 10, gap 1, wait 1
        gpu.carry("all_reduce", 8, 50)
        gpu.run("gemm", 300)
    run = gpu_run(tmp_path, gpu.events)
    assert us(overlaplab.collectives(run), "transfer_ns") == [[14], [50]]
    assert us(overlaplab.summary(run), "comm_ns", "span_ns") == [[64, 401]]


def test_a_backward_pass_ends_before_it_waits(tmp_path: Path) -> None:
    """DDP without bucket views copies the means out of its buckets before the call of the backward pass returns."""
    gpu = Gpu()
    with gpu.step():
        gpu.run("gemm_forward", 100)
        with gpu.span("backward microbatch=0 sync=1"):
            with gpu.autograd(), gpu.function("torch::autograd::AccumulateGrad"):
                gpu.run("gemm_backward", 200)
                gpu.label("bucket_ready bucket=0 bytes=8 parameters=w")
                with gpu.span("bucket_launch bucket=0"):
                    gpu.carry("all_reduce", 8, 300)
            gpu.wait(COMPUTE, gpu.end(LINK))
            gpu.run("copy_bucket_to_grad", 5)
    table = overlaplab.buckets(gpu_run(tmp_path, gpu.events))
    assert us(table, "backward_start_ns", "backward_end_ns", "start_ns", "end_ns") == [[100, 301, 302, 602]]


@pytest.mark.parametrize(("factor", "shown"), [(1, "1.560"), (10, "15.60"), (100, "156.0")])
def test_short_steps_are_told_in_microseconds(tmp_path: Path, factor: int, shown: str) -> None:
    """Tables of a terminal have four digits or more for a step."""
    table = overlaplab.summary(gpu_run(tmp_path, bucketed())).head(1)
    times = [name for name in table if name.endswith("_ns")]
    table[times] = table[times] * factor
    assert next(iter(terminal_table(summary_rows(table)).columns[2].cells)) == Text(shown)


def test_the_bound_of_steps_on_a_gpu(tmp_path: Path) -> None:
    """400 of forward, 800 of backward, the whole last bucket and 50 of the optimizer: the step without its gaps."""
    link = {"emulated": True, "bandwidth_gbps": 14 / 8 * 8e6 * 8 / 300e3, "latency_us": 0, "world_size": 8}
    table = bound(gpu_run(tmp_path, bucketed(), link=link))
    assert us(table, "span_ns", "compute_ns", "transfer_ns", "bound_ns")[0] == [1560, 1250, 600, 1550]
