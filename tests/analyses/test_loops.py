"""Runs of anybody's training loop: labels of gradients and buckets, none of passes, and a short run.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made.runs import label
from made.traces import event, op, step, write

import overlaplab
from overlaplab import Run, charts, findings, load_run
from overlaplab.analyses import worst_step
from overlaplab.evidence.purposes import purposes
from overlaplab.sections.run_tables import RunTables
from overlaplab.sections.tables import buckets_rows
from overlaplab.simulate import bound

Event = dict[str, Any]


def autograd(name: str, start: float, end: float) -> Event:
    return event(f"autograd::engine::evaluate_function: {name}", start, end)


def backward(at: float, *, sends: bool, seq: int = 0) -> list[Event]:
    """One microbatch of 100 µs: forward, then two gradients, of which the second fills the bucket."""
    found = [
        event("DistributedDataParallel.forward", at, at + 20, cat="user_annotation"),
        op("linear", at, at + 20),
        autograd("AddmmBackward0", at + 30, at + 39),
        op("mm", at + 30, at + 39),
        autograd("torch::autograd::AccumulateGrad", at + 40, at + 45),
        label("gradient_ready parameter=head.weight", at + 41, at + 42),
        autograd("torch::autograd::AccumulateGrad", at + 60, at + 75),
        label("gradient_ready parameter=body.weight", at + 61, at + 62),
    ]
    if sends:
        found += [
            label("bucket_ready bucket=0 bytes=80 parameters=head.weight,body.weight", at + 63, at + 64),
            label("bucket_launch bucket=0", at + 65, at + 69),
            label(f"launch seq={seq}", at + 66, at + 67),
            label(
                f"comm seq={seq} kind=all_reduce dtype=float32 bytes=80 group=0 link=1Gbps,200us modelled_ns=1",
                at + 70,
                at + 95,
                tid=7,
            ),
        ]
    return found


def loop(folder: Path, *events: Event, **manifest: Any) -> Run:
    """A run of one rank whose run.json has only what a Recorder knows of a loop."""
    told = {"format_version": 1, "strategy": None, "device": "cpu", "backend": None, "world_size": 1, "link": None}
    write(folder / "rank0.pt.trace.json.gz", list(events), distributedInfo={"rank": 0, "world_size": 1})
    (folder / "run.json").write_text(json.dumps(told | manifest))
    return load_run(folder)


def test_buckets_of_the_pass_that_sends(tmp_path: Path) -> None:
    """Two microbatches; the first one only accumulates."""
    run = loop(tmp_path, step(3, 0, 300), *backward(10, sends=False), *backward(110, sends=True), op("add_", 210, 290))
    (row,) = overlaplab.buckets(run).to_dict("records")
    assert (row["backward_start_ns"], row["backward_end_ns"], row["passes"]) == (140_000, 185_000, 1)
    assert row["parameters"] == ("head.weight", "body.weight")
    assert row["gradient_ready_ns"] == (151_000, 171_000)
    assert (row["last_parameter"], row["source"]) == ("body.weight", "engine")
    times = ("ready_ns", "launch_ns", "start_ns", "end_ns", "exposed_ns")
    assert tuple(row[name] for name in times) == (173_000, 175_000, 180_000, 205_000, 25_000)


def test_a_step_of_several_passes_that_send_shows_the_last(tmp_path: Path) -> None:
    run = loop(tmp_path, step(3, 0, 300), *backward(10, sends=True), *backward(110, sends=True, seq=1))
    (row,) = overlaplab.buckets(run).to_dict("records")
    assert (row["backward_start_ns"], row["passes"], row["start_ns"]) == (140_000, 2, 180_000)


def twice(at: float) -> list[Event]:
    """Two backward passes after one forward pass, each of which sends the only bucket, as in Lightning's loops of GANs;
    in ms.
    """
    names = (("d.bias", "d.weight"), ("g.bias", "g.weight"))
    found = [event("DistributedDataParallel.forward", at, at + 200, cat="user_annotation")]
    for begin, arriving in zip((at + 10, at + 110), names, strict=True):
        for number, name in enumerate(arriving):
            found.append(autograd("torch::autograd::AccumulateGrad", begin + 20 * number, begin + 20 * number + 18))
            found.append(label(f"gradient_ready parameter={name}", begin + 20 * number + 5, begin + 20 * number + 5))
        found += [
            label("bucket_ready bucket=0 bytes=64 parameters=g.weight,g.bias,d.weight,d.bias", begin + 26, begin + 26),
            label("bucket_launch bucket=0", begin + 27, begin + 30),
            event("c10d::allreduce_", begin + 28, begin + 29),
            event("gloo:all_reduce", begin + 35, begin + 60, cat="user_annotation", tid=9),
        ]
    return found


def test_each_launch_of_a_bucket_has_the_gradients_that_came_before_it(tmp_path: Path) -> None:
    run = loop(tmp_path, step(3, 0, 300), *twice(0), op("mm", 112, 114), op("mm", 150, 160))
    table = overlaplab.buckets(run)
    assert table[["index", "passes", "gradients", "last_parameter", "exposed_ns"]].to_numpy().tolist() == [
        [0, 1, 4, "d.weight", 25_000],
        [0, 1, 4, "g.weight", 15_000],
    ]
    assert table["gradient_ready_ns"].tolist() == [(None, None, 35_000, 15_000), (135_000, 115_000, None, None)]
    assert table["arrivals"].tolist() == [(None, None, 2, 1), (4, 3, None, None)]
    assert findings.bucket_notes(table) == ("a bucket was launched up to 2 times in a step: each launch has a row",)
    shown = buckets_rows(table).frame
    assert shown[["start_ns", "held_ns", "last_parameter"]].to_numpy().tolist() == [
        [45_000, 0, "d.weight"],
        [145_000, 0, "g.weight"],
    ]
    drawn = charts.buckets(table).to_dict()
    labels = {row["bucket"] for rows in drawn["datasets"].values() for row in rows if "bucket" in row}
    assert labels == {"0: 64 B, 4 gradients", "0, launch 2: 64 B, 4 gradients"}
    assert bound(run)["any_cap_ns"].isna().all(), "no cutting is of both passes"


def test_each_launch_of_a_bucket_has_its_own_causes(tmp_path: Path) -> None:
    tables = RunTables(run=loop(tmp_path, step(3, 0, 300), *twice(0), op("mm", 150, 160)))
    causes = findings.bucket_causes(tables.diagnosis, tables.buckets)
    assert causes.groupby("row")["exposed_ns"].sum().to_dict() == {0: 25_000, 1: 15_000}


@pytest.mark.parametrize(("elements", "compressed"), [(16, 0), (4, 2)])
def test_what_a_communication_hook_compresses_is_said(tmp_path: Path, elements: int, compressed: int) -> None:
    """The bucket holds 64 bytes, and its all-reduce sends 4 bytes per element."""
    sent = {"args": {"Input Dims": [[elements]], "Input type": ["float"]}}
    events = [each | sent if each["name"].startswith("gloo:") else each for each in twice(0)]
    run = loop(tmp_path, step(3, 0, 300), *events)
    lines = [line for line in findings.run_warnings(run) if "communication hook" in line]
    assert [line.partition(" of ")[0] for line in lines] == ([f"{compressed} collectives"] if compressed else [])


def test_a_launch_without_a_label_of_what_it_sends_has_a_row(tmp_path: Path) -> None:
    events = [each for each in twice(0) if not each["name"].startswith("engine::bucket_ready")]
    table = overlaplab.buckets(loop(tmp_path, step(3, 0, 300), *events))
    assert (
        table[["index", "bytes", "parameters", "ready_ns", "told_by"]].to_numpy(object, na_value=None).tolist()
        == [[0, None, (), None, None]] * 2
    )
    assert findings.bucket_notes(table)[0] == "which gradients 2 of 2 buckets hold is unknown"


def test_what_ends_after_its_pass_is_its_tail(tmp_path: Path) -> None:
    """The pass is over at 85; the collective ends at 105, while nothing computes. Launched at 76, ready at 73."""
    run = loop(tmp_path, step(3, 0, 300), *backward(10, sends=True), op("add_", 210, 290))
    assert purposes(run.traces[0])["backward_end_ns"].sub(run.traces[0].origin_ns).tolist() == [85_000]
    told = overlaplab.exposed(run)[["cause", "what", "exposed_ns"]].to_numpy().tolist()
    assert told == [["tail", "bucket 0", 22_000], ["late launch", "bucket 0", 3_000]]


@pytest.mark.parametrize(
    ("manifest", "note", "told"),
    [
        ({}, "1 rank, cpu", "Recorded loop, 1 rank, median step 0.30 ms"),
        ({"strategy": "torch-ddp", "device": None}, "torch-ddp, 1 rank", "torch-ddp, 1 rank, median step 0.30 ms"),
    ],
)
def test_a_loop_without_a_strategy(tmp_path: Path, manifest: dict[str, Any], note: str, told: str) -> None:
    run = loop(tmp_path, step(3, 0, 300), *backward(10, sends=True), op("add_", 210, 290), **manifest)
    assert findings.note(run.manifest) == note
    found = RunTables(run=run)
    assert found.verdict.startswith(told)
    assert worst_step(found.summary)["step"] == 3
    strategy = manifest.get("strategy")
    assert findings.run_title(run) == f"{tmp_path}: {', '.join([*([strategy] if strategy else []), '1 rank'])}"
    (row,) = overlaplab.compare([run]).to_dict("records")
    assert row["strategy"] == strategy
