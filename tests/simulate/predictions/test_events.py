"""Played programs as traces: a recorded run that was played unchanged is found again in its own trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from overlaplab_engine import labels
from ranks.label_texts import parse
from samples import sample_run

import overlaplab
from overlaplab.manifest import Link, Manifest
from overlaplab.report.predicted_run import write_run
from overlaplab.simulate.player import End, Launch, Mark, Move, Wait, Work, play
from overlaplab.simulate.predictions.events import played_events
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.predictions.trace_event import COMPUTES, LINK, Event
from overlaplab.simulate.programs.setting import Setting

NAMES = ("naive", "per-param", "bucketed", "torch-ddp", "zero2", "zero3", "zero3-serial", "torch-fsdp2")
MANIFEST = Manifest(format_version=1, world_size=2)


@pytest.fixture(scope="module")
def played_again(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Any]]:
    """A function that gives a sample run, and the run that is predicted from it without a change."""
    found: dict[str, tuple[Any, Any]] = {}

    def both(name: str) -> tuple[Any, Any]:
        if name not in found:
            run = sample_run(name)
            prediction = predict(run, Setting())
            folder = tmp_path_factory.mktemp("predicted") / name
            write_run(folder, prediction.manifest, prediction.ranks)
            found[name] = run, overlaplab.load_run(folder, cache=False)
        return found[name]

    return both


@pytest.mark.parametrize("name", NAMES)
def test_each_step_is_spent_as_recorded(played_again: Any, name: str) -> None:
    """Within 1 % of the step; when a rank was idle in the midst of work is not known."""
    before, after = map(overlaplab.summary, played_again(name))
    assert before["step"].tolist() == after["step"].tolist()
    for part in ("span_ns", "compute_ns", "comm_ns", "exposed_comm_ns", "idle_ns"):
        assert ((after[part] - before[part]).abs() <= 0.01 * before["span_ns"]).all(), part


@pytest.mark.parametrize("name", NAMES)
def test_collectives_are_the_same_in_the_same_order(played_again: Any, name: str) -> None:
    before, after = map(overlaplab.collectives, played_again(name))
    same = ["index", "rank", "step", "group", "kind", "bytes"]
    pd.testing.assert_frame_equal(before[same], after[same], check_dtype=False)
    span_ns = overlaplab.summary(played_again(name)[0])["span_ns"].min()
    for at in ("launch_ns", "start_ns", "end_ns"):
        assert (after[at] - before[at]).abs().max() < 0.01 * span_ns


def test_hops_are_the_same(played_again: Any) -> None:
    """But for their times: they share their collective's."""
    before, after = map(overlaplab.analyses.hops, played_again("ring"))
    same = ["rank", "step", "bucket", "kind", "hop", "sends", "to", "receives", "source", "bytes"]
    pd.testing.assert_frame_equal(before[same], after[same])
    ended = [table.groupby(["step", "bucket"])["end_ns"].max() for table in (before, after)]
    assert (ended[0] - ended[1]).abs().max() < 0.01 * 200e6


@pytest.mark.parametrize("name", ["tensor", "dp-tp"])
def test_collectives_of_a_mesh_are_the_same_along_each_axis(played_again: Any, name: str) -> None:
    before, after = map(overlaplab.collectives, played_again(name))
    same = ["rank", "step", "group_description", "kind", "bytes"]
    sort = [table.sort_values(["rank", "end_ns"], ignore_index=True) for table in (before, after)]
    pd.testing.assert_frame_equal(sort[0][same], sort[1][same], check_dtype=False)
    for at in ("launch_ns", "end_ns"):
        assert (sort[1][at] - sort[0][at]).abs().max() < 0.01 * 500e6


@pytest.mark.parametrize("name", ["per-param", "bucketed", "torch-ddp", "zero2"])
def test_buckets_are_the_same(played_again: Any, name: str) -> None:
    before, after = map(overlaplab.buckets, played_again(name))
    same = ["rank", "step", "index", "bytes", "parameters", "last_parameter"]
    pd.testing.assert_frame_equal(before[same], after[same], check_dtype=False)
    assert (after["ready_ns"] - before["ready_ns"]).abs().max() < 0.01 * before["backward_end_ns"].max()


@pytest.mark.parametrize("name", ["zero3", "zero3-serial"])
def test_gathers_and_frees_are_the_same(played_again: Any, name: str) -> None:
    before, after = map(overlaplab.schedule, played_again(name))
    same = ["rank", "step", "unit", "microbatch", "phase", "bytes"]
    pd.testing.assert_frame_equal(before[same], after[same], check_dtype=False)
    for at in ("gather_launch_ns", "gather_end_ns", "first_use_ns", "free_ns"):
        assert (after[at] - before[at]).abs().max() < 0.01 * 600e6


@pytest.mark.parametrize("name", ["bucketed", "torch-ddp", "zero3"])
def test_causes_of_exposed_time_are_the_same(played_again: Any, name: str) -> None:
    runs = played_again(name)
    before, after = (overlaplab.exposed(run).groupby("cause")["exposed_ns"].sum() for run in runs)
    whole = overlaplab.summary(runs[0])["span_ns"].sum()
    for cause, ns in before.items():
        assert after.get(cause, 0) == pytest.approx(ns, abs=0.005 * whole), cause


def test_a_predicted_cap_has_the_buckets_of_the_recorded_one(tmp_path: Path) -> None:
    prediction = predict(sample_run("sweep/cap-25"), Setting(bucket_cap_mb=1.0))
    recorded = sample_run("sweep/cap-1")
    write_run(tmp_path / "run", prediction.manifest, prediction.ranks)
    predicted = overlaplab.load_run(tmp_path / "run", cache=False)
    same = ["rank", "step", "index", "bytes", "parameters"]
    before, after = (overlaplab.buckets(run)[same] for run in (recorded, predicted))
    assert before.drop(columns="step").values.tolist() == after.drop(columns="step").values.tolist()
    assert predicted.manifest is not None
    assert recorded.manifest is not None
    assert [bucket.parameters for bucket in predicted.manifest.buckets] == [
        bucket.parameters for bucket in recorded.manifest.buckets
    ]


def program() -> list[Move]:
    return [
        End(),
        Mark("forward", "0"),
        Work(100),
        Mark("backward", "0"),
        Work(100, idle_ns=40),
        Mark("gradient", "a b"),
        Launch("k", 300, "all_reduce", 8, role="bucket", what="0", parameters=("a b",), gradient_bytes=4),
        Mark("backward_end"),
        Wait("k", 10),
        End(),
    ]


def test_moves_become_events() -> None:
    link = Link(emulated=True, bandwidth_gbps=1.0, latency_us=200.0, world_size=2)
    manifest = Manifest(format_version=1, world_size=2, link=link)
    programs = [program(), program()]
    first, second = played_events(programs, play(programs), manifest, [7], taken_ns=5)
    assert (
        first
        == second
        == [
            Event(COMPUTES, "predicted::forward", 0, 100),
            Event(COMPUTES, "engine::forward microbatch=0", 0, 100),
            Event(COMPUTES, "ProfilerStep#7", 0, 510),
            Event(COMPUTES, "predicted::backward", 100, 160),
            Event(COMPUTES, "engine::backward microbatch=0 sync=1", 100, 200),
            Event(COMPUTES, "engine::gradient_ready parameter=a%20b", 200, 201),
            Event(COMPUTES, "engine::bucket_ready bucket=0 bytes=4 parameters=a%20b", 200, 201),
            Event(COMPUTES, "engine::bucket_launch bucket=0", 200, 202),
            Event(COMPUTES, "engine::launch seq=0 group=0", 200, 201),
            Event(COMPUTES, "engine::wait", 200, 510),
            Event(
                LINK,
                "engine::comm seq=0 kind=all_reduce dtype=float32 bytes=8 group=0 link=1Gbps%2C200us modelled_ns=300",
                205,
                500,
            ),
            Event(COMPUTES, "engine::bucket_done bucket=0", 510, 511),
        ]
    )


@pytest.mark.parametrize("name", ["bucketed", "zero2", "zero3"])
def test_labels_are_those_that_the_engine_writes(name: str) -> None:
    """Same words, same keys, in the engine's order."""
    prediction = predict(sample_run(name), Setting())
    for event in prediction.ranks[0]:
        if event.name.startswith(labels.PREFIX):
            word, values = parse(event.name)
            assert labels.label(word, **values) == event.name


def test_a_unit_is_freed_where_it_is_gathered_again_and_kept_where_it_is_not() -> None:
    def gather(key: str, name: str) -> list[Move]:
        return [Launch(key, 10, "all_gather", 64, role="gather", what=name), Wait(key)]

    def use(name: str) -> list[Move]:
        return [Mark("use", name), Work(10), Mark("last_use", name)]

    moves: list[Move] = [End(), *gather("a", "x 0 forward"), *use("x 0 forward")]
    moves += [*gather("b", "y 0 forward"), *use("y 0 forward"), *use("y 0 backward")]
    moves += [*gather("c", "x 0 backward"), *use("x 0 backward"), End()]
    programs = [moves, moves]
    events, _ = played_events(programs, play(programs), MANIFEST, [0])
    freed = [event.name for event in events if event.name.startswith("engine::free")]
    assert freed == [
        "engine::free unit=x phase=forward microbatch=0 bytes=64",
        "engine::free unit=y phase=backward microbatch=0 bytes=64",
        "engine::free unit=x phase=backward microbatch=0 bytes=64",
    ]
