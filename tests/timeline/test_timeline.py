"""The timeline's statistics against a count at every moment, and the details of events from small traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made.traces import event, gloo, launched, op, run_of, step, write
from made.zero3 import zero3_events
from samples import sample_run

from overlaplab import Run, collectives, load_run, summary
from overlaplab.errors import OverlaplabError
from overlaplab.events import Activity
from overlaplab.intervals import total, union
from overlaplab.timeline.event_details import event_details
from overlaplab.timeline.level_of_detail import added_ns
from overlaplab.timeline.marks import MarkKind, Timeline, mark_code
from overlaplab.timeline.timeline import timeline_events, timeline_view
from overlaplab.timeline.window_statistics import timeline_window
from overlaplab.vocabulary import Rule

PARTS = (MarkKind.COMPUTE, MarkKind.ALL_REDUCE, MarkKind.MEMORY)
NAMES = ("gemm", "engine::comm seq=1 kind=all_reduce bytes=8", "engine::comm seq=2 kind=all_reduce bytes=8", "copy")
Told = tuple[int, int, int, int, int]  # rank, part, name, start, length
EVENTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 3), st.integers(0, 80), st.integers(0, 30)),
    max_size=40,
)


RECORDED = Path(__file__).parents[1] / "situations" / "recorded"


def timeline(told: list[Told]) -> Timeline:
    """Three ranks with clocks 1000 ns apart, one lane of a stream each."""
    rows = sorted(told, key=lambda one: (one[0], one[3], -one[4]))
    events = pd.DataFrame(
        {
            "lane": np.array([one[0] for one in rows], dtype=np.int64),
            "part": np.array([mark_code(PARTS[one[1]]) for one in rows], dtype=np.int8),
            "start_ns": np.array([one[3] for one in rows], dtype=np.int64),
            "end_ns": np.array([one[3] + one[4] for one in rows], dtype=np.int64),
            "name": pd.Categorical([NAMES[one[2]] for one in rows], categories=NAMES),
            "trace": np.array([one[0] for one in rows], dtype=np.int64),
        }
    )

    def during(rank: int, part: int) -> Any:
        own = [one for one in told if one[:2] == (rank, part)]
        return union([one[3] + 1000 * rank for one in own], [one[3] + one[4] + 1000 * rank for one in own])

    activities = tuple(
        (
            rank,
            Activity(rule=Rule.GPU, compute=during(rank, 0), communication=during(rank, 1), memory=during(rank, 2)),
            1000 * rank,
        )
        for rank in range(3)
    )
    lanes = pd.DataFrame({"lane": range(3), "label": "s", "rank": pd.array(range(3), dtype="Int64"), "kind": "stream"})
    steps = pd.DataFrame({"rank": [], "step": [], "start_ns": [], "end_ns": []}, dtype="Int64")
    return Timeline(lanes=lanes, events=events, steps=steps, activities=activities)


def moments(told: list[Told], start: int, end: int) -> set[int]:
    return {moment for one in told for moment in range(max(one[3], start), min(one[3] + one[4], end))}


@settings(max_examples=200, deadline=None)
@given(told=EVENTS, start=st.integers(0, 80), length=st.integers(1, 60), ranks=st.sampled_from([None, {0, 2}, {1}]))
def test_a_window_s_statistics_against_a_count(
    told: list[Told], start: int, length: int, ranks: set[int] | None
) -> None:
    end = start + length
    found = timeline_window(timeline(told), start, end, ranks)
    chosen = sorted(ranks or {0, 1, 2})
    expected = []
    for rank in chosen:
        own = [one for one in told if one[0] == rank]
        compute, comm, memory = (moments([one for one in own if one[1] == part], start, end) for part in range(3))
        busy = compute | comm | memory
        expected.append(
            [
                rank,
                length,
                len(busy),
                len(compute),
                len(comm),
                len(memory - compute - comm),
                len(compute & comm),
                len(comm - compute),
                length - len(busy),
            ]
        )
    assert found.ranks.to_numpy().tolist() == expected
    touching = [
        one
        for one in told
        if one[0] in chosen and one[3] < end and (one[3] + one[4] > start or (one[3] == start and one[4] == 0))
    ]
    assert found.events == len(touching)
    kernels, words = {}, {}
    for name, members in {"gemm": {0}, "engine::comm all_reduce": {1, 2}, "copy": {3}}.items():
        own = [one for one in touching if one[2] in members]
        if own:
            kernels[name] = (
                len(own),
                sum(len(moments([one for one in own if one[0] == rank], start, end)) for rank in chosen),
            )
            words[name] = {PARTS[one[1]].value for one in own}
    shown = found.kernels
    assert dict(zip(shown["name"], zip(shown["events"], shown["busy_ns"], strict=True), strict=True)) == kernels
    assert all(part in words[name] for name, part in zip(shown["name"], shown["part"], strict=True))
    assert shown["busy_ns"].is_monotonic_decreasing


def test_a_name_counts_as_what_it_is_for_most_of_its_time() -> None:
    told = [(0, 0, 0, 0, 5), (0, 1, 0, 10, 20), (1, 0, 0, 0, 5)]
    assert timeline_window(timeline(told), 0, 100).kernels.to_numpy().tolist() == [["gemm", "all-reduce", 3, 30]]


@pytest.mark.parametrize("scale", [1, 2**55])
@given(told=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 9)), max_size=30))
def test_added_time_makes_up_each_group_s_union(scale: int, told: list[tuple[int, int, int]]) -> None:
    rows = np.array(sorted(told), dtype=np.int64).reshape(-1, 3)
    group, begins, ends = rows[:, 0], rows[:, 1] * scale, (rows[:, 1] + rows[:, 2]) * scale
    adds = added_ns(group, begins, ends)
    for one in range(4):
        own = group == one
        assert adds[own].sum() == total(union(begins[own], ends[own]))


def gpu_rank(late: float = 0) -> list[dict[str, Any]]:
    """Two kernels and an all-reduce that its operator launched, which arrives late."""
    told = {"Process Group Name": "0", "Seq": 4, "Collective name": "allreduce", "dtype": "Float", "Group size": 2}
    call, kernel = launched("ncclDevKernel_AllReduce_Sum_f32", 40, 60 + late, 110, stream=20, correlation=3)
    kernel["args"] |= told | {"In msg nelems": 1000, "Out msg nelems": 1000}
    return [
        step(3, 0, 200),
        *launched("sgemm", 5, 20, 80, correlation=1),
        *launched("sgemm_inside", 6, 20, 40, correlation=2),
        event("c10d::allreduce_", 36, 50),
        event("record_param_comms", 38, 48),
        call,
        kernel,
    ]


@pytest.fixture
def gpu(tmp_path: Path) -> Run:
    return run_of(tmp_path / "gpu", gpu_rank(), gpu_rank(late=10), backend="nccl")


def test_every_counted_event_is_there_with_its_row_and_collective(gpu: Run) -> None:
    found = timeline_events(gpu)
    assert found.lanes[["label", "kind"]].to_numpy().tolist()[:4] == [
        ["rank 0 steps", "steps"],
        ["rank 0 stream 7 (compute)", "stream"],
        ["rank 0 stream 20 (NCCL)", "stream"],
        ["rank 0 exposed", "exposed"],
    ]
    events = found.events[found.events["event"] >= 0]
    assert events["name"].tolist() == ["sgemm", "sgemm_inside", "ncclDevKernel_AllReduce_Sum_f32"] * 2
    assert events["collective"].tolist() == [-1, -1, 0] * 2
    assert events["trace"].tolist() == [0, 0, 0, 1, 1, 1]
    assert [MarkKind(list(MarkKind)[part]).value for part in events["part"]] == ["compute", "compute", "all-reduce"] * 2
    for name, place, row in zip(events["name"], events["trace"], events["event"], strict=True):
        assert gpu.traces[place].events["name"].iloc[row] == name


def test_an_event_s_details(gpu: Run) -> None:
    found = timeline_events(gpu).events
    row = int(found.loc[(found["trace"] == 1) & (found["collective"] == 0), "event"].iloc[0])
    details = event_details(gpu, 1, row)
    assert details["name"] == "ncclDevKernel_AllReduce_Sum_f32"
    assert (details["rank"], details["step"], details["stream"], details["correlation"]) == (1, 3, 20, 3)
    assert (details["start_ns"], details["end_ns"], details["duration_ns"]) == (70_000, 110_000, 40_000)
    assert details["counts_as"] == "communication"
    assert details["launch"] == {
        "name": "cudaLaunchKernel",
        "start_ns": 40_000,
        "thread": "1",
        "operator": "c10d::allreduce_",
        "delay_ns": 30_000,
    }
    collective = details["collective"]
    assert collective is not None
    assert (collective["kind"], collective["bytes"], collective["dtype"]) == ("all_reduce", 4000, "float32")
    assert (collective["wait_ns"], collective["transfer_ns"], collective["last_rank"]) == (0, 40_000, 1)
    assert collective["bus_gb_per_s"] == 4000 / 40_000
    assert [(peer["rank"], peer["start_ns"], peer["end_ns"], peer["wait_ns"]) for peer in collective["peers"]] == [
        (0, 60_000, 110_000, 10_000),
        (1, 70_000, 110_000, 0),
    ]


def test_details_of_what_launched_nothing_and_of_what_is_not_there(gpu: Run) -> None:
    first = event_details(gpu, 0, 0)
    assert (first["name"], first["counts_as"], first["launch"], first["collective"]) == (
        "ProfilerStep#3",
        "nothing",
        None,
        None,
    )
    for place, row in ((2, 0), (-1, 0), (0, 9), (0, -1)):
        with pytest.raises(OverlaplabError, match=r"no (trace|event) -?\d\. It holds \d"):
            event_details(gpu, place, row)


def test_labels_of_buckets_are_a_lane_that_tells_the_collective(tmp_path: Path) -> None:
    def label(text: str, start: float, end: float, tid: int = 1) -> dict[str, Any]:
        return event(f"engine::{text}", start, end, cat="user_annotation", tid=tid)

    events = [
        step(0, 0, 100),
        label("backward microbatch=0 sync=1", 10, 60),
        op("mm", 10, 60),
        label("gradient_ready parameter=head.weight", 20, 21),
        label("bucket_ready bucket=0 bytes=4 parameters=head.weight", 22, 23),
        label("bucket_launch bucket=0", 24, 27),
        label("launch seq=0", 25, 26),
        label("comm seq=0 kind=all_reduce dtype=float32 bytes=4 group=0 link=1 modelled_ns=1", 30, 80, tid=7),
        gloo(32, 70),  # part of what the link carries
    ]
    run = run_of(tmp_path, events, events)
    found = timeline_events(run)
    lane = found.lanes[found.lanes["label"] == "rank 1 buckets"].iloc[0]
    assert lane["kind"] == "labels"
    columns = ["name", "start_ns", "end_ns", "event", "collective"]
    assert found.events.loc[found.events["lane"] == lane["lane"], columns].to_numpy().tolist() == [
        ["bucket 0, last: head.weight", 30_000, 80_000, -1, 0]
    ]
    carried = found.events[(found.events["collective"] == 0) & (found.events["event"] >= 0)]
    assert [str(name).split()[0] for name in carried["name"]] == ["engine::comm", "gloo:all_reduce"] * 2


def test_phases_of_anybodys_loop_are_a_lane() -> None:
    """Torch's DDP; rank 1 loads data for 41 ms in each step, by a range of torch's."""
    drawn = timeline_events(sample_run(RECORDED / "04-dataloader-of-one-rank"))
    lanes = dict(zip(drawn.lanes["label"], drawn.lanes["lane"], strict=True))
    loading_ns = {}
    for rank in (0, 1):
        marks = drawn.events[drawn.events["lane"] == lanes[f"rank {rank} phases"]]
        assert (marks["start_ns"].to_numpy()[1:] >= marks["end_ns"].to_numpy()[:-1]).all()
        names = {mark: {*marks["name"][marks["part"] == mark_code(mark)]} for mark in MarkKind}
        assert names[MarkKind.FORWARD] == {"engine::forward microbatch=0"}
        assert names[MarkKind.BACKWARD] == {"engine::backward microbatch=0 sync=1"}
        assert names[MarkKind.OPTIMIZER] == {"engine::optimizer"}
        assert names[MarkKind.HOST] == {"data loading: enumerate(DataLoader)"}
        loads = marks[marks["part"] == mark_code(MarkKind.HOST)]
        loading_ns[rank] = (loads["end_ns"] - loads["start_ns"]).median()
    assert loading_ns[0] < 1_000_000
    assert loading_ns[1] == pytest.approx(41_000_000, rel=0.05)


def phase_marks(name: str, rank: int = 0) -> pd.DataFrame:
    """The marks of a rank's phases, in order."""
    drawn = timeline_events(sample_run(name))
    lanes = dict(zip(drawn.lanes["label"], drawn.lanes["lane"], strict=True))
    return drawn.events[drawn.events["lane"] == lanes[f"rank {rank} phases"]]


def test_a_pipeline_and_a_loop_of_unknown_passes_have_optimizer_steps() -> None:
    for name in ("pipeline", "h100/loops/pause"):
        marks = phase_marks(name)
        assert {*marks["part"]} - {mark_code(MarkKind.HOST)} == {mark_code(MarkKind.OPTIMIZER)}, name


@pytest.mark.parametrize(("name", "microbatches"), [("one-bucket", {"0"}), ("microbatches", {"0", "1", "2", "3"})])
def test_on_a_gpu_a_backward_pass_ends_before_the_update(name: str, microbatches: set[str]) -> None:
    """Though DDP's last bucket ends later, by the device's clock."""
    marks = phase_marks(f"h100/loops/{name}")
    assert (marks["start_ns"].to_numpy()[1:] >= marks["end_ns"].to_numpy()[:-1]).all()
    backwards = marks["name"][marks["part"] == mark_code(MarkKind.BACKWARD)].astype(str)
    assert {text.split("microbatch=")[1].split(" ")[0] for text in backwards} == microbatches


def test_gathers_frees_and_reduce_scatters_are_lanes(tmp_path: Path) -> None:
    run = run_of(tmp_path, zero3_events(2, 1), manifest={"strategy": "zero3"})
    found = timeline_events(run)
    lanes = found.lanes[found.lanes["kind"] == "labels"]
    assert lanes["label"].tolist() == ["rank 0 gathers", "rank 0 reduce-scatters"]
    gathers = found.events[found.events["lane"] == lanes["lane"].iloc[0]]
    frees = gathers[gathers["part"] == mark_code(MarkKind.FREE)]
    assert len(gathers) == 2 * len(frees) > 0
    assert (frees["start_ns"] == frees["end_ns"]).all()
    assert gathers["name"].iloc[0].startswith("gather ")


def test_a_collective_s_events_lie_within_it_on_every_rank(gpu: Run, tmp_path: Path) -> None:
    """The links of the sample's events agree with the table of collectives."""
    for run in (gpu, run_of(tmp_path / "cpu", *[[step(0, 0, 90), op("mm", 0, 50), gloo(30, 80), gloo(82, 90)]] * 2)):
        table = collectives(run).set_index(["index", "rank"])
        events = timeline_events(run).events
        linked = events[events["collective"] >= 0]
        assert len(linked) == len(table)
        for one in linked.to_dict("records"):
            row = table.loc[(one["collective"], run.traces[one["trace"]].rank)]
            assert (row["start_ns"], row["end_ns"]) == (one["start_ns"], one["end_ns"])


def test_the_exposed_lanes_time_is_the_summary_s(gpu: Run) -> None:
    found = timeline_events(gpu)
    exposed = found.lanes.loc[found.lanes["kind"] == "exposed", "lane"]
    drawn = [
        (own["end_ns"] - own["start_ns"]).sum() for own in (found.events[found.events["lane"] == n] for n in exposed)
    ]
    assert drawn == summary(gpu)["exposed_comm_ns"].tolist()


def test_kernels_that_one_label_launched_are_one_collective(tmp_path: Path) -> None:
    """The later label's kernel runs first; a copy inside the first label is part of it, too."""

    def comm(seq: int, start: float, end: float) -> dict[str, Any]:
        text = f"engine::comm seq={seq} kind=all_gather dtype=float32 bytes=8 group=0"
        return event(text, start, end, cat="user_annotation")

    events = [
        step(0, 0, 200),
        *launched("sgemm", 1, 5, 90, correlation=1),
        comm(0, 10, 20),
        *launched("ncclDevKernel_AllGather", 11, 60, 70, stream=20, correlation=2),
        *launched("Memcpy DtoD", 13, 70, 75, stream=20, correlation=3, cat="gpu_memcpy"),
        comm(1, 21, 30),
        *launched("ncclDevKernel_AllGather", 22, 40, 50, stream=21, correlation=4),
    ]
    found = timeline_events(run_of(tmp_path, events, backend="nccl")).events
    linked = found[(found["event"] >= 0) & (found["collective"] >= 0)].sort_values("start_ns")
    assert linked[["start_ns", "collective"]].to_numpy().tolist() == [[40_000, 0], [60_000, 1], [70_000, 1]]
    assert set(linked["part"]) == {mark_code(MarkKind.ALL_GATHER)}


@pytest.mark.parametrize(
    ("events", "drawn"),
    [
        ([], []),
        ([step(0, 0, 10)], ["step 0"]),
        ([event("cudaLaunchKernel", 1, 2, cat="cuda_runtime", correlation=1)], []),  # no device was recorded
        ([op("mm", 5, 5)], ["aten::mm"]),
        ([gloo(0, 5)], ["the trace", "gloo:all_reduce", "blocking"]),
    ],
)
def test_a_timeline_of_little_or_nothing(tmp_path: Path, events: list[dict[str, Any]], drawn: list[str]) -> None:
    found = timeline_events(load_run(write(tmp_path / "trace.json", events)))
    assert found.events["name"].tolist() == drawn
    start, end = found.extent
    statistics = timeline_window(found, start, end)
    assert statistics.events == sum(name.startswith(("aten", "gloo")) for name in drawn)
    assert statistics.ranks["span_ns"].tolist() == [end - start]
    assert len(timeline_view(found).marks) == len(drawn)
