"""`overlaplab slice`: the figures of the chosen steps are the same in the slice as in the whole."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pandas as pd
import pytest
from made.hosts import loop
from made.traces import event, gloo, launched, op, run_of, step, write
from pandas.testing import assert_frame_equal, assert_series_equal
from samples import sample_run

from overlaplab import OverlaplabError, Run, buckets, exposed, load_run, schedule, stragglers, summary, volume
from overlaplab.evidence.host_work import host_work
from overlaplab.load.cut import slice_run, whole_folder
from overlaplab.selection import Selection
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.programs.setting import Setting

SAMPLES = Path(__file__).parents[2] / "traces"
RUNS = sorted(path.parent.name for path in SAMPLES.glob("*/run.json"))
OF_EACH_KIND = ("torch-ddp", "torch-fsdp2", "zero3")
"""Samples of which the others are repetitions."""


def assert_same_figures(part: Run, whole: Run, steps: list[int]) -> None:
    """Also where each step is: times within steps are from their start, and the run's zero may differ."""
    figures: tuple[Callable[..., pd.DataFrame], ...] = (summary, buckets, schedule, volume)
    for figure in figures:
        mine, theirs = figure(part), figure(whole, Selection(steps=steps))
        if figure is summary:
            mine, theirs = mine.drop(columns="start_ns"), theirs.drop(columns="start_ns")
        assert_frame_equal(mine, theirs.reset_index(drop=True))
    # A slice may know less well how far clocks differ, and so who came last.
    mine, theirs = (
        table.set_index("rank")["collectives"]
        for table in (stragglers(part), stragglers(whole, Selection(steps=steps)))
    )
    assert_series_equal(mine, theirs)


def raw_events(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    found: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in OF_EACH_KIND else pytest.mark.slow) for name in RUNS]
)
def test_every_step_of_every_sample(name: str, tmp_path: Path) -> None:
    whole = sample_run(name)
    for number in sorted(summary(whole)["step"].unique().tolist()):
        out = tmp_path / str(number)
        assert slice_run(whole, number, number + 1, out) == [number]
        assert_same_figures(load_run(out), whole, [number])


def test_several_steps_keep_the_events_as_they_are_written(tmp_path: Path) -> None:
    out = tmp_path / "part"
    slice_run(sample_run("bucketed"), 2, 4, out)
    assert sorted(file.name for file in out.iterdir()) == [
        "rank0.pt.trace.json.gz",
        "rank1.pt.trace.json.gz",
        "run.json",
    ]
    whole = raw_events(SAMPLES / "bucketed" / "rank0.pt.trace.json.gz")
    part = raw_events(out / "rank0.pt.trace.json.gz")
    texts = {json.dumps(one) for one in whole}
    foreign = [one for one in part if json.dumps(one) not in texts]
    assert [one["name"] for one in foreign] == ["overlaplab::next_step#4"]
    assert [one for one in part if one["ph"] == "M"] == [one for one in whole if one["ph"] == "M"]
    assert 0.5 * len(whole) < len(part) < 0.8 * len(whole)


def test_what_is_beside_the_events_stays_and_the_manifest_has_a_note(tmp_path: Path) -> None:
    folder, out = SAMPLES / "bucketed", tmp_path / "part"
    slice_run(load_run(folder), 3, None, out)
    documents = [
        json.loads(gzip.decompress((place / "rank1.pt.trace.json.gz").read_bytes())) for place in (folder, out)
    ]
    assert {**documents[0], "traceEvents": None} == {**documents[1], "traceEvents": None}
    manifests = [json.loads((place / "run.json").read_text()) for place in (folder, out)]
    assert manifests[1] == manifests[0] | {"sliced": {"steps": [3, 4], "of": str(folder)}}
    assert load_run(out).manifest is not None


def gpu_events() -> list[dict[str, Any]]:
    """Three steps whose kernels run 100 µs behind the host; an all-reduce of each runs into the next one."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 9, "args": {"name": "python"}}]
    for number in range(3):
        at, late, first = 100 * number, 100 * number + 100, 10 * number + 1
        events += [
            step(number, at, at + 90),
            event(f"ProfilerStep#{number}", late, late + 90, cat="gpu_user_annotation", tid=7, stream=7, device=0),
            event("engine::comm", at + 29, at + 33, cat="user_annotation"),
            *launched("gemm", at + 10, late + 10, late + 40 + number, correlation=first),
            *launched("ncclDevKernel_AllReduce", at + 30, late + 50, late + 130, stream=20, correlation=first + 1),
            *launched("Memcpy DtoH", at + 40, late + 60, late + 62, correlation=first + 2, cat="gpu_memcpy"),
            *launched("relu", at + 60, late + 70, late + 90, correlation=first + 3),
            {"ph": "s", "id": first, "pid": 9, "tid": 1, "ts": at + 10, "cat": "ac2g", "name": "ac2g"},
            {"ph": "f", "id": first, "pid": 9, "tid": 7, "ts": late + 10, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        ]
    return events


@pytest.mark.parametrize(("first", "last"), [(0, 1), (1, 2), (2, 3), (0, 2), (1, 3), (0, 3)])
def test_gpu_steps(tmp_path: Path, first: int, last: int) -> None:
    whole = load_run(write(tmp_path / "trace.json", gpu_events(), baseTimeNanoseconds=1_700_000_000_000_000_000))
    slice_run(whole, first, last, tmp_path / "part")
    part = load_run(tmp_path / "part")
    assert_same_figures(part, whole, list(range(first, last)))
    assert sorted(summary(part)["step"].unique().tolist()) == list(range(first, last))


def test_a_unit_is_named_though_its_gather_was_launched_for_the_next_step(tmp_path: Path) -> None:
    """It begins in step 12, and what launched it lies behind that step's end on the host."""
    whole = sample_run("h100/torch-fsdp2")
    slice_run(whole, 12, 13, tmp_path / "part")
    mine, theirs = (
        exposed(run, Selection(steps=[12])).drop(columns="collective") for run in (load_run(tmp_path / "part"), whole)
    )
    assert_frame_equal(mine.reset_index(drop=True), theirs.reset_index(drop=True))


def test_without_launch_overhead_a_slice_takes_as_long_as_its_step(tmp_path: Path) -> None:
    """It has the collectives of the neighbouring steps, and not their computation."""
    whole = sample_run("h100/torch-ddp")
    slice_run(whole, 14, 15, tmp_path / "part")
    setting = Setting(edits=(("no-launch-overhead", None),))
    mine, theirs = predict(load_run(tmp_path / "part"), setting), predict(whole, setting)
    assert mine.step_ns == pytest.approx(theirs.step_ns, abs=1_000_000)


def test_what_a_host_does_before_the_next_kernel_comes_along(tmp_path: Path) -> None:
    """Loading for the next step is part of a step on a GPU, which ends with the next one's first kernel."""
    events = loop(pause_us=100)
    begun = next(each["ts"] for each in events if each["name"] == "ProfilerStep#4")
    events.append(event("decoding", begun + 10, begun + 90, cat="user_annotation"))
    run = run_of(tmp_path / "run", events, backend="nccl")
    slice_run(run, 3, 4, tmp_path / "part")
    for each in (run, load_run(tmp_path / "part")):
        assert [label.fields["name"] for label in host_work(each.traces[0])] == ["decoding"]


def test_arrows_come_along(tmp_path: Path) -> None:
    whole = load_run(write(tmp_path / "trace.json", gpu_events()))
    slice_run(whole, 2, 3, tmp_path / "part")
    (trace,) = load_run(tmp_path / "part").traces
    gemm = trace.events[trace.events["name"] == "gemm"]
    assert 21 in gemm["flow_launch"].tolist()


def test_counters_come_along_while_the_steps_last(tmp_path: Path) -> None:
    counters = [{"ph": "C", "name": "memory", "pid": 9, "ts": at, "args": {"bytes": at}} for at in (1, 250, 999)]
    whole = load_run(write(tmp_path / "trace.json", [*gpu_events(), *counters]))
    slice_run(whole, 2, 3, tmp_path / "part")
    part = raw_events(tmp_path / "part" / "trace.json.gz")
    assert [one["ts"] for one in part if one["ph"] == "C"] == [250]


def test_when_the_rank_was_ready_is_known_from_what_ended_before(tmp_path: Path) -> None:
    """A bucket of step 2 is launched before any kernel of that step: it was ready when step 1's last kernel ended."""
    bucket = {"bucket": 0, "bytes": 4, "parameters": "w"}

    def label(word: str, start: float, end: float, **fields: object) -> dict[str, Any]:
        text = " ".join(["engine::" + word, *(f"{key}={value}" for key, value in fields.items())])
        return event(text, start, end, cat="user_annotation")

    events = [
        *(step(1, 0, 10), step(2, 10, 40)),
        *launched("gemm", 1, 100, 130, correlation=1),
        *launched("relu", 2, 130, 140, correlation=2),
        label("backward", 12, 30, sync=1),
        label("gradient_ready", 13, 14, parameter="w"),
        label("bucket_ready", 14, 15, **bucket),
        label("bucket_launch", 16, 18, bucket=0),
        *launched("ncclDevKernel_AllReduce", 17, 150, 190, stream=20, correlation=3),
        *launched("gemm", 25, 160, 180, correlation=4),
    ]
    whole = load_run(write(tmp_path / "trace.json", events))
    assert buckets(whole, Selection(steps=[2]))["ready_ns"].tolist() == [-20_000]
    slice_run(whole, 2, 3, tmp_path / "part")
    assert_same_figures(load_run(tmp_path / "part"), whole, [2])


@pytest.mark.parametrize("base_ns", [1_700_000_000_000_000_000, "1700000000000000000", 1.7e18])
def test_a_base_time_behind_the_events_is_found(tmp_path: Path, base_ns: float | str) -> None:
    text = json.dumps({"traceEvents": gpu_events(), "baseTimeNanoseconds": base_ns})
    (tmp_path / "rank2.json").write_text(text)
    whole = load_run(tmp_path / "rank2.json")
    slice_run(whole, 1, 2, tmp_path / "part")
    part = load_run(tmp_path / "part")
    assert part.traces[0].rank == 2
    assert_same_figures(part, whole, [1])


@pytest.mark.parametrize("after", [{"x": [1]}, {"x": [{"ranks": [number]} for number in range(6000)]}])
def test_other_keys_may_stand_behind_the_base_time(tmp_path: Path, after: dict[str, Any]) -> None:
    text = json.dumps({"traceEvents": gpu_events(), "baseTimeNanoseconds": 1_700_000_000_000_000_000} | after)
    (tmp_path / "rank0.json").write_bytes(b"\xef\xbb\xbf" + text.encode())
    whole = load_run(tmp_path / "rank0.json")
    slice_run(whole, 1, 2, tmp_path / "part")
    assert_same_figures(load_run(tmp_path / "part"), whole, [1])


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_part_can_be_cut_again(tmp_path: Path, number: int, on_gpu: bool) -> None:
    on_cpu = [one for at in range(3) for one in (step(at, 10 * at, 10 * at + 8), op("mm", 10 * at, 10 * at + 9))]
    whole = run_of(tmp_path / "run", gpu_events() if on_gpu else on_cpu)
    slice_run(whole, 0, 2, tmp_path / "part")
    slice_run(load_run(tmp_path / "part"), number, number + 1, tmp_path / "again")
    assert_same_figures(load_run(tmp_path / "again"), whole, [number])


def test_an_open_end_is_the_last_step_of_any_rank(tmp_path: Path) -> None:
    fewer = [one for one in gpu_events() if one.get("name") != "ProfilerStep#2"]
    for ranks in ((fewer, gpu_events()), (gpu_events(), fewer)):
        run = run_of(tmp_path / "run", *ranks)
        with pytest.raises(OverlaplabError, match=r"no step 2\. It holds 0, 1"):
            slice_run(run, 1, None, tmp_path / "out")


def test_an_array_alone_and_exact_epoch_times(tmp_path: Path) -> None:
    text = json.dumps([step(1, 0, 10), op("mm", 1, 2), gloo(3, 5), step(2, 10, 20), op("mm", 11, 12)])
    for time in ("0", "1", "3", "10", "11"):
        text = text.replace(f'"ts": {time},', f'"ts": 17000000000000{int(time):02}.123,')
    (tmp_path / "rank0.json").write_text(text)
    whole = load_run(tmp_path / "rank0.json")
    slice_run(whole, 1, 2, tmp_path / "part")
    part = load_run(tmp_path / "part")
    assert_same_figures(part, whole, [1])
    assert part.traces[0].events["ts_ns"].tolist()[0] == 1_700_000_000_000_000_123 * 1
    assert b".123" in gzip.decompress((tmp_path / "part" / "rank0.pt.trace.json.gz").read_bytes())


def test_merged_ranks_stay_one_file(tmp_path: Path) -> None:
    events = [
        one | {"args": one["args"] | {"rank": rank}} for rank in (0, 1) for one in gpu_events()[1:] if "args" in one
    ]
    whole = load_run(write(tmp_path / "both.json", events))
    slice_run(whole, 1, 2, tmp_path / "part")
    assert [file.name for file in (tmp_path / "part").iterdir()] == ["both.json.gz"]
    assert_same_figures(load_run(tmp_path / "part"), whole, [1])


def test_half_a_surrogate_pair_is_copied_as_it_is_read(tmp_path: Path) -> None:
    names = ["half \ud83d", "whole \U0001f600", "no escape \\ud83d"]
    events = [step(0, 0, 50), *(op(name, 10 * place, 10 * place + 5) for place, name in enumerate(names))]
    slice_run(load_run(write(tmp_path / "trace.json", events)), 0, 1, tmp_path / "part")
    found = [one["name"] for one in raw_events(tmp_path / "part" / "trace.json.gz")]
    assert found == ["ProfilerStep#0", "aten::half \ufffd", *(f"aten::{name}" for name in names[1:])]


def test_an_event_that_is_not_utf8_comes_along(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", [step(0, 0, 50), op("caf?", 1, 2), op("mm", 10, 11)])
    path.write_bytes(path.read_bytes().replace(b"caf?", b"caf\xe9"))
    slice_run(load_run(path), 0, 1, tmp_path / "part")
    assert load_run(tmp_path / "part").traces[0].events["name"].tolist()[1:] == ["aten::caf\ufffd", "aten::mm"]
    assert b"caf\xe9" in gzip.decompress((tmp_path / "part" / "trace.json.gz").read_bytes())


@pytest.mark.parametrize("fillers", [0, 20_000])
@pytest.mark.parametrize("damage", ['"x": NaN', '"path": "C:\\path"'])
def test_what_follows_a_damaged_event_comes_along(tmp_path: Path, damage: str, fillers: int) -> None:
    """The damaged event is in the first chunk, also where the file has more."""
    events = [
        step(0, 0, 50),
        op("damaged", 1, 2) | {"args": "DAMAGE"},
        op("mm", 10, 11),
        *(op("mm", 12, 13) for _ in range(fillers)),
        step(1, 50, 99),
        op("mm", 51, 52),
    ]
    path = write(tmp_path / "trace.json", events)
    path.write_text(path.read_text().replace('"DAMAGE"', "{" + damage + "}"))
    whole = load_run(path)
    slice_run(whole, 0, 2, tmp_path / "part")
    part = load_run(tmp_path / "part")
    assert_same_figures(part, whole, [0, 1])
    assert part.traces[0].events["name"].tolist() == whole.traces[0].events["name"].tolist()
    assert damage.encode() in gzip.decompress((tmp_path / "part" / "trace.json.gz").read_bytes())


def test_a_trace_that_is_cut_short(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", gpu_events())
    path.write_bytes(path.read_bytes()[:-300])
    whole = load_run(path)
    slice_run(whole, 0, 1, tmp_path / "part")
    part = load_run(tmp_path / "part")
    assert part.warnings == ()
    assert_same_figures(part, whole, [0])


def test_a_run_that_lies_elsewhere(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    for file in (SAMPLES / "zero2").iterdir():
        fs.pipe_file(f"/slices/run/{file.name}", file.read_bytes())
    try:
        slice_run(load_run("memory://slices/run"), 2, 3, tmp_path / "part")
    finally:
        fs.rm("/slices", recursive=True)
    part = load_run(tmp_path / "part")
    assert part.manifest is not None
    assert_same_figures(part, sample_run("zero2"), [2])


def test_nothing_is_overwritten_and_nothing_left_behind(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", gpu_events())
    (tmp_path / "out").mkdir()
    with pytest.raises(OverlaplabError, match="out: exists already"):
        slice_run(run, 0, 1, tmp_path / "out")
    (Path(run.traces[0].path)).unlink()
    with pytest.raises(OverlaplabError):
        slice_run(run, 0, 1, tmp_path / "other")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out", "run"]


@pytest.mark.parametrize(
    ("first", "last", "line"),
    [
        (2, 5, r"rank0.*: rank 0: no step 3\. It holds 0, 1, 2"),
        (7, None, "no step from 7"),
        (1, 10**18, r"no step 3\. It holds"),
        (2, 1, "no step from 2 up to, not including, 1"),
    ],
)
def test_steps_that_are_not_there(tmp_path: Path, first: int, last: int | None, line: str) -> None:
    with pytest.raises(OverlaplabError, match=line):
        slice_run(run_of(tmp_path / "run", gpu_events()), first, last, tmp_path / "out")


def test_a_trace_without_steps_says_so(tmp_path: Path) -> None:
    with pytest.raises(OverlaplabError, match="has no steps to cut at"):
        slice_run(run_of(tmp_path / "run", [op("mm", 0, 1)]), 0, 1, tmp_path / "out")


def test_on_the_command_line(tmp_path: Path, command: Callable[..., tuple[Any, str, str]]) -> None:
    for steps, out, status in (("2:3", "out", 0), ("2:3", "out", 2), ("2-3", "other", 2), (":", "other", 2)):
        code, _, said = command("slice", SAMPLES / "zero3", "--steps", steps, "-o", tmp_path / out)
        assert (code, said.count("\n")) == (status, 1 if status else 0), said
    assert summary(load_run(tmp_path / "out"))["step"].unique().tolist() == [2]
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_others_are_writing_stays(tmp_path: Path) -> None:
    """Two containers on one disk may have equal process numbers."""
    others = tmp_path / f".run.{os.getpid()}.part"
    others.mkdir()
    with pytest.raises(OverlaplabError, match="cannot be written"), whole_folder(tmp_path / "run"):
        pytest.fail("it is another's")
    assert others.is_dir()
