"""The export for Perfetto: read back with the loader, and looked at as JSON."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made.phantoms import phantom_run
from made.runs import engine_events, gpu_events, made_gathering
from made.traces import event, launched, run_of, step, write
from samples import sample_run

import overlaplab
from overlaplab import Run, load_run
from overlaplab.report.perfetto import write_perfetto
from overlaplab.report.threads import nesting_tracks

TIMES = ["start_ns", "launch_ns", "end_ns", "arrived_ns"]


def exported(run: Run, *, packed: bool = False) -> bytes:
    file = io.BytesIO()
    write_perfetto(run, file, packed=packed)
    return file.getvalue()


def events_of(run: Run) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(exported(run))["traceEvents"]
    return found


def named(events: list[dict[str, Any]], kind: str) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == kind}


@pytest.mark.parametrize("name", ["bucketed", "torch-fsdp2", "torch-ddp-gloo"])
def test_the_loader_reads_the_same_figures_out_of_it(name: str, tmp_path: Path) -> None:
    run = sample_run(name)
    path = tmp_path / "all.json.gz"
    path.write_bytes(exported(run, packed=True))
    back = load_run(path)
    assert [trace.rank for trace in back.traces] == [0, 1]
    for table in (overlaplab.summary, overlaplab.collectives, overlaplab.buckets, overlaplab.schedule):
        first, second = (table(one).drop(columns=TIMES, errors="ignore") for one in (run, back))
        pd.testing.assert_frame_equal(first, second)


def test_devices_arguments_and_groups_survive(tmp_path: Path) -> None:
    arguments = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 8, "Out msg nelems": 8, "Seq": 4}
    group = {"Process Group Name": "0", "Process Group Description": "default_pg", "Group size": 2}
    own = [
        step(3, 0, 200),
        *launched("gemm", 5, 20.001, 80.002, correlation=1),
        *launched("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 10, 70, 110, stream=20, correlation=2),
    ]
    own[-1]["args"] |= arguments | group
    run = run_of(tmp_path / "run", own, own, backend="nccl")
    (tmp_path / "all.json").write_bytes(exported(run))
    back = load_run(tmp_path / "all.json")
    pd.testing.assert_frame_equal(overlaplab.collectives(run), overlaplab.collectives(back))
    for one, other in zip(run.traces, back.traces, strict=True):
        told = (table.collectives.drop(columns="event").astype(str) for table in (one, other))
        pd.testing.assert_frame_equal(*told)
        assert one.world_size == other.world_size == 2
        same = ["name", "category", "dur_ns", "stream", "device", "correlation"]
        ordered = (table.events[same].astype(str).sort_values(same, ignore_index=True) for table in (one, other))
        kept = [table[~table["category"].eq("overlaplab")].reset_index(drop=True) for table in ordered]
        assert kept[0].equals(kept[1])


def test_times_are_exact_and_clocks_are_aligned(tmp_path: Path) -> None:
    """Rank 1's clock is 5 ms ahead; times are epoch µs, of which a float resolves no ns."""
    zero, starts = 1_700_000_000_000_000, (0, 300, 700, 1600)
    for rank, ahead in enumerate((0, 5000)):
        info = f'{{"rank": {rank}, "world_size": 2, "backend": "gloo"}}'
        own = ",".join(
            '{"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "pid": 9, "tid": 7,'
            f' "ts": {zero + ahead + start}.001, "dur": 101.002}}'
            for start in starts
        )
        path = tmp_path / "run" / f"rank{rank}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'{{"distributedInfo": {info}, "traceEvents": [{own}]}}')
    run = load_run(tmp_path / "run")
    assert overlaplab.clocks(run)["offset_ns"].tolist() == [0, 5_000_000]
    text = exported(run).decode()
    assert json.loads(text)["baseTimeNanoseconds"] == zero * 1000 + 1
    lines = [line for line in text.splitlines() if '"gloo:all_reduce"' in line and '"ph":"X"' in line]
    written = [line.split('"ts":')[1].split(",")[0] for line in lines if '"overlaplab"' not in line]
    assert written == ["0.000", "300.000", "700.000", "1600.000"] * 2
    assert {line.split('"dur":')[1].split(",")[0] for line in lines} == {"101.002"}


def test_each_rank_is_a_process_with_its_threads_and_our_tracks(tmp_path: Path) -> None:
    gathering = load_run(made_gathering(tmp_path) / "ahead")
    events = events_of(gathering)
    names = [name for _, name in sorted(named(events, "process_name").items())]
    assert names == ["rank 0, emulated link 1Gbps,200us", "rank 1, emulated link 1Gbps,200us"]
    threads = named(events, "thread_name")
    own = [name for (pid, _), name in sorted(threads.items()) if pid == 1]
    assert own[: own.index("exposed") + 1] == ["steps", "phases", "gathers", "reduce-scatters", "exposed"]
    assert sorted(name for name in own if name.startswith("thread")) == ["thread 1", "thread 2", "thread 7"]
    placed = {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
    assert placed <= set(threads)
    gathers = [e for e in events if e["ph"] == "X" and threads[(e["pid"], e["tid"])] == "gathers" and e["dur"]]
    assert {e["args"]["kind"] for e in gathers} == {"all_gather"}


def test_a_rank_behind_an_emulated_link_is_named_so(tmp_path: Path) -> None:
    emulated = set(named(events_of(sample_run("bucketed")), "process_name").values())
    assert {"rank 0, emulated link 1Gbps,1000us", "rank 1, emulated link 1Gbps,1000us"} <= emulated
    lonely = phantom_run(tmp_path / "run", engine_events(), link_attained=False)
    name, *_ = named(events_of(lonely), "process_name").values()
    assert name == (
        "rank 0, one rank of an emulated group of 8 (peers are phantoms; losses are meaningless), "
        "emulated link 400Gbps,10us, link not attained"
    )


def test_buckets_tell_their_collective_and_arrows_join_the_ranks(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", engine_events(), engine_events(), manifest={})
    events = events_of(run)
    buckets = [e for e in events if e.get("cat") == "overlaplab" and e["name"].startswith("bucket 1")]
    assert [(e["pid"], e["ts"], e["dur"]) for e in buckets] == [
        (1, 600.0, 350.0),
        (1, 1600.0, 350.0),
        (1001, 600.0, 350.0),
        (1001, 1600.0, 350.0),
    ]
    assert buckets[0]["args"]["bytes"] == 4_000_000
    steps = [e for e in events if e.get("cat") == "overlaplab" and e["name"] == "step 1"]
    assert [(e["pid"], e["args"]["exposed_comm_us"], e["args"]["overlap_ratio"]) for e in steps] == [
        (1, 350.0, 0.3),
        (1001, 350.0, 0.3),
    ]
    arrows = [e for e in events if e.get("cat") == "collective"]
    by_id: dict[int, list[dict[str, Any]]] = {}
    for end in arrows:
        by_id.setdefault(end["id"], []).append(end)
    assert len(by_id) == 4
    for ends in by_id.values():
        assert [(e["ph"], e["pid"]) for e in ends] == [("s", 1), ("f", 1001)]
        assert all(_holds(events, end, "engine::comm") for end in ends)


def _holds(events: list[dict[str, Any]], end: dict[str, Any], name: str) -> bool:
    """Whether a slice of this name is around an arrow's end."""
    return any(
        e["ph"] == "X"
        and e["name"].startswith(name)
        and (e["pid"], e["tid"]) == (end["pid"], end["tid"])
        and e["ts"] <= end["ts"] <= e["ts"] + e["dur"]
        for e in events
    )


def test_arrows_from_launches_have_ids_of_their_own_on_each_rank(tmp_path: Path) -> None:
    own = gpu_events()
    at = {"pid": 9, "cat": "ac2g", "name": "ac2g", "id": 1}
    own += [at | {"ph": "s", "tid": 1, "ts": 5}, at | {"ph": "f", "tid": 7, "ts": 20, "bp": "e"}]
    run = run_of(tmp_path / "run", own, own, backend="nccl")
    arrows = [e for e in events_of(run) if e.get("cat") == "ac2g"]
    assert [(e["ph"], e["pid"], e["ts"]) for e in arrows] == [
        ("s", 1, 5.0),
        ("f", 1, 20.0),
        ("s", 1001, 5.0),
        ("f", 1001, 20.0),
    ]
    assert arrows[0]["id"] == arrows[1]["id"] != arrows[2]["id"] == arrows[3]["id"]


def test_every_event_has_what_the_format_asks_for(tmp_path: Path) -> None:
    """By hand, after the Trace Event Format's tables of required members."""
    required = {
        "X": {"name": str, "cat": str, "ts": (int, float), "dur": (int, float), "pid": int, "tid": int, "args": dict},
        "i": {"name": str, "ts": (int, float), "pid": int, "tid": int, "s": str},
        "M": {"name": str, "pid": int, "tid": int, "args": dict},
        **{key: {"name": str, "cat": str, "id": int, "ts": (int, float), "pid": int, "tid": int} for key in "stf"},
    }
    events = events_of(sample_run("zero3"))
    assert set(Counter(e["ph"] for e in events)) == {"X", "i", "M", "s", "f"}
    for e in events:
        assert all(isinstance(e[key], of) for key, of in required[e["ph"]].items())
        assert e.get("ts", 0) >= 0 <= e.get("dur", 0)


def test_a_trace_alone_without_rank_is_exported_too(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", gpu_events())
    events = events_of(load_run(path))
    assert list(named(events, "process_name").values()) == ["rank unknown"]
    assert not any("rank" in e.get("args", {}) for e in events if e["ph"] == "X")


def test_what_overlaps_in_one_stream_gets_a_track_more(tmp_path: Path) -> None:
    own = [
        step(0, 0, 50),
        *launched("first", 1, 10, 30, correlation=1),
        *launched("second", 2, 20, 40, correlation=2),
        *launched("third", 3, 40, 45, correlation=3),
    ]
    threads = named(events := events_of(run_of(tmp_path / "run", own)), "thread_name")
    where = {e["name"]: threads[(e["pid"], e["tid"])] for e in events if e.get("cat") == "kernel"}
    assert where == {"first": "stream 7", "second": "stream 7 (2)", "third": "stream 7"}


def test_names_of_strangers_stay_strings(tmp_path: Path) -> None:
    name = 'aten::"}],"traceEvents":[\u2028</script>\ud800' + "x" * 10_000
    run = run_of(tmp_path / "run", [step(0, 0, 100), event(name, 0, 50), event("aten::mm", 50, 60)])
    events = events_of(run)
    found = [e["name"] for e in events if e.get("cat") == "cpu_op"]
    assert len(found) == 2
    assert found[0].startswith('aten::"}],"traceEvents":[\u2028</script>')
    assert len(found[0]) > 10_000


def test_packing_packs(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", engine_events())
    assert json.loads(gzip.decompress(exported(run, packed=True))) == json.loads(exported(run))


spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=24)


@given(spans)
def test_slices_of_a_track_nest(found: list[tuple[int, int]]) -> None:
    ordered = sorted(((start, start + took) for start, took in found), key=lambda span: (span[0], -span[1]))
    starts = np.array([start for start, _ in ordered], dtype=np.int64)
    ends = np.array([end for _, end in ordered], dtype=np.int64)
    tracks = nesting_tracks(starts, ends)
    for track in set(tracks.tolist()):
        own = [span for span, of in zip(ordered, tracks.tolist(), strict=True) if of == track]
        for place, (_, end) in enumerate(own):
            assert all(other[0] >= end or other[1] <= end for other in own[place + 1 :])
    partly = any(a[0] < b[0] < a[1] < b[1] for place, a in enumerate(ordered) for b in ordered[place + 1 :])
    assert (len(set(tracks.tolist())) > 1) == partly


def test_the_export_needs_no_charts() -> None:
    code = "import sys, overlaplab.cli, overlaplab.report.perfetto; sys.exit('altair' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
