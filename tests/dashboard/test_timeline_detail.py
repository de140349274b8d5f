"""The timeline's level of detail against a count by hand, and its lanes from small traces."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st
from made.traces import event, gloo, launched, op, run_of, step, write

from overlaplab import load_run, summary
from overlaplab.timeline.level_of_detail import merged_marks
from overlaplab.timeline.timeline import Timeline, timeline_events, timeline_view

EVENTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 400), st.integers(0, 90)), max_size=80)


def table(events: list[tuple[int, int, int, int]]) -> pd.DataFrame:
    rows = sorted((lane, start, start + length, part) for lane, part, start, length in events)
    frame = pd.DataFrame(rows, columns=["lane", "start_ns", "end_ns", "part"]).astype("int64")
    return frame.assign(name=[f"{number}" for number in range(len(frame))])


def timeline(events: pd.DataFrame) -> Timeline:
    lanes = pd.DataFrame({"lane": range(4), "label": list("abcd"), "rank": pd.array([0] * 4, dtype="Int64")})
    steps = pd.DataFrame({"rank": [], "step": [], "start_ns": [], "end_ns": []}, dtype="Int64")
    return Timeline(lanes=lanes, events=events, steps=steps, activities=())


@settings(max_examples=100, deadline=None)
@given(events=EVENTS, start=st.integers(-10, 400), length=st.integers(1, 500), limit=st.integers(4, 60))
def test_no_event_vanishes_and_the_marks_are_few(
    events: list[tuple[int, int, int, int]], start: int, length: int, limit: int
) -> None:
    end = start + length
    everything = table(events)
    view = timeline_view(timeline(everything), start_ns=start, end_ns=end, marks=limit)
    touching = [
        row
        for row in everything.itertuples()
        if row.start_ns < end and (row.end_ns > start or row.start_ns == row.end_ns == start)
    ]
    assert len(view.marks) <= max(limit, 4)
    assert view.marks["events"].sum() == len(touching)
    for row in touching:
        covering = view.marks[
            (view.marks["lane"] == row.lane)
            & (view.marks["start_ns"] <= max(row.start_ns, start))
            & (view.marks["end_ns"] >= min(row.end_ns, end))
        ]
        assert len(covering) >= 1
    for lane in range(4):
        moments = {
            moment
            for row in touching
            if row.lane == lane
            for moment in range(max(row.start_ns, start), min(row.end_ns, end))
        }
        own = view.marks[view.marks["lane"] == lane]
        # Events of one lane may overlap and still stand in two marks: then each counts the moment.
        assert own["busy_ns"].sum() >= len(moments)
        assert (own["busy_ns"] <= own["end_ns"] - own["start_ns"]).all()


@given(events=EVENTS)
def test_all_events_are_marks_of_their_own_where_there_is_room(events: list[tuple[int, int, int, int]]) -> None:
    everything = table(events)
    marks = merged_marks(everything, 0, 1000, limit=1000)
    columns = ["lane", "start_ns", "end_ns", "part", "name"]
    assert marks[columns].to_numpy().tolist() == everything[columns].to_numpy().tolist()


def test_a_merged_mark_has_the_busiest_part_and_the_longest_name() -> None:
    """Ten events of 6 ns together outweigh one of 20, which is still the longest."""
    short = [(0, 1, 30 + 7 * number, 6) for number in range(10)]
    marks = merged_marks(table([(0, 2, 0, 20), *short]), 0, 100_000, limit=1)
    assert marks[["part", "events", "busy_ns", "start_ns", "end_ns", "name"]].to_numpy().tolist() == [
        [1, 11, 80, 0, 99, "0"]
    ]


def test_lanes_of_a_cpu_run(tmp_path: Path) -> None:
    events = [
        step(0, 0, 100),
        event("engine::forward microbatch=0", 0, 40, cat="user_annotation"),
        op("linear", 0, 40),
        op("addmm", 10, 30),  # inside linear, and drawn over it
        gloo(30, 90),
    ]
    found = timeline_events(run_of(tmp_path, events, events))
    assert found.lanes["label"].tolist()[:5] == [
        "rank 0 steps",
        "rank 0 phases",
        "rank 0 main",
        "rank 0 gloo",
        "rank 0 exposed",
    ]
    assert found.lanes["rank"].tolist() == [0] * 5 + [1] * 5
    view = timeline_view(found, ranks=frozenset({1}))
    assert view.marks[["label", "part", "start_ns", "end_ns", "name"]].to_numpy().tolist() == [
        ["rank 1 steps", "step", 0, 100_000, "step 0"],
        ["rank 1 phases", "forward", 0, 40_000, "engine::forward microbatch=0"],
        ["rank 1 main", "compute", 0, 40_000, "aten::linear"],
        ["rank 1 main", "compute", 10_000, 30_000, "aten::addmm"],
        ["rank 1 gloo", "all-reduce", 30_000, 90_000, "gloo:all_reduce"],
        ["rank 1 exposed", "tail", 40_000, 70_000, "tail"],
        ["rank 1 exposed", "link-bound", 70_000, 90_000, "link-bound"],
    ]


def test_lanes_of_a_gpu_trace_without_rank(tmp_path: Path) -> None:
    events = [
        *launched("sgemm", 5, 20, 80, correlation=1),
        *launched("sgemm_inside", 6, 30, 40, correlation=2),  # one stream may overlap itself: both are drawn
        *launched("ncclDevKernel_AllReduce", 10, 70, 110, stream=20, correlation=3),
    ]
    found = timeline_events(load_run(write(tmp_path / "trace.json", events)))
    assert found.lanes["label"].tolist() == [
        "rank ? steps",
        "rank ? stream 7 (compute)",
        "rank ? stream 20 (NCCL)",
        "rank ? exposed",
    ]
    assert timeline_view(found).marks["name"].tolist() == [
        "the trace",
        "sgemm",
        "sgemm_inside",
        "ncclDevKernel_AllReduce",
        "tail",
    ]


def test_the_window_s_figures_equal_the_summary_s(tmp_path: Path) -> None:
    run = run_of(tmp_path, [step(0, 0, 100), op("mm", 0, 50), gloo(30, 80), step(1, 100, 200), gloo(120, 160)])
    found = timeline_events(run)
    table = summary(run)
    for row in table.itertuples():
        start = int(row.start_ns)
        totals = timeline_view(found, start_ns=start, end_ns=start + int(row.span_ns)).totals
        assert totals[["compute_ns", "comm_ns", "overlapped_ns", "exposed_comm_ns"]].to_numpy().tolist() == [
            [row.compute_ns, row.comm_ns, row.overlapped_ns, row.exposed_comm_ns]
        ]
