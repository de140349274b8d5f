"""Buckets of torch's DistributedDataParallel, without the engine's labels: hand-made traces, and a recorded one whose
labels are the oracle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made.runs import label
from made.traces import event, gloo, launched, op, run_of, step
from samples import unlabelled

import overlaplab
from overlaplab.analyses import late_buckets
from overlaplab.events import step_windows
from overlaplab.evidence.ddp import ddp_backwards
from overlaplab.evidence.executions import executions
from overlaplab.evidence.purposes import purposes
from overlaplab.findings import bucket_notes
from overlaplab.report.documents import buckets_document
from overlaplab.sections.run_tables import RunTables
from overlaplab.simulate import bound
from overlaplab.simulate.issued import issued_by_step

SAMPLE = Path(__file__).parents[2] / "traces" / "torch-ddp-gloo"

Event = dict[str, Any]


def forward(at: float, tid: int = 1) -> Event:
    return event("DistributedDataParallel.forward", at, at + 5, cat="user_annotation", tid=tid)


def accumulate(at: float, *shape: int, sends: int = 0, dims: bool = True) -> list[Event]:
    """A gradient accumulated from `at` to `at` + 2, then its hooks, which may launch all-reduces from `at` + 4."""
    given = {"Input Dims": [list(shape)], "Input type": ["float"]} if dims else {}
    name = "torch::autograd::AccumulateGrad"
    return [
        event(f"autograd::engine::evaluate_function: {name}", at, at + 9),
        event(name, at + 1, at + 2, **given),
        event("torch::distributed::reducer::mul_out", at + 2.5, at + 3),
        *(event("c10d::allreduce_", at + 4 + number, at + 4.5 + number) for number in range(sends)),
    ]


def sent(start: float, end: float, elements: int | None = None, kind: str = "float", tid: int = 7) -> Event:
    """The all-reduce itself, on gloo's thread."""
    given = {} if elements is None else {"Input Dims": [[elements]], "Input type": [kind]}
    return gloo(start, end, tid=tid) | {"args": given}


def table_of(path: Path, *events: Event | list[Event]) -> pd.DataFrame:
    flat = [e for given in events for e in (given if isinstance(given, list) else [given])]
    table = overlaplab.buckets(run_of(path, [step(3, 0, 1000), *flat]))
    assert set(table["source"]) <= {"ddp"}
    return table


def held(table: pd.DataFrame) -> list[tuple[int, ...]]:
    arrivals: list[tuple[int, ...]] = table["arrivals"].tolist()
    return arrivals


def test_a_bucket_is_an_all_reduce_launched_while_a_gradient_is_accumulated(tmp_path: Path) -> None:
    table = table_of(
        tmp_path,
        forward(10),
        event("autograd::engine::evaluate_function: AddmmBackward0", 20, 29),
        accumulate(30, 8, 4),
        accumulate(40, 8, sends=1),
        sent(46, 80, 40),
        op("mm", 50, 60),
        accumulate(90, 2, 2, sends=1),
        sent(100, 110, 4),
        event("autograd::engine::evaluate_function: MmBackward0", 120, 130),
    )
    first, second = table.to_dict("records")
    assert first == {
        "rank": 0,
        "step": 3,
        "backward_start_ns": 20_000,
        "backward_end_ns": 130_000,
        "index": 0,
        "bytes": 160,
        "parameters": (None, None),
        "gradient_ready_ns": (32_000, 42_000),
        "last_parameter": None,
        "ready_ns": 44_000,
        "launch_ns": 44_000,
        "start_ns": 46_000,
        "end_ns": 80_000,
        "exposed_ns": 24_000,
        "passes": 1,
        "arrivals": (1, 2),
        "shapes": ((8, 4), (8,)),
        "gradients": 3,
        "told_by": "sizes",
        "source": "ddp",
    }
    assert (second["index"], second["arrivals"], second["shapes"], second["bytes"]) == (1, (3,), ((2, 2),), 16)
    assert [note.partition(":")[0] for note in bucket_notes(table)] == ["read from torch's DDP"]


def test_without_shapes_gradients_are_taken_by_order(tmp_path: Path) -> None:
    table = table_of(
        tmp_path,
        forward(10),
        accumulate(30, dims=False),
        accumulate(40, sends=1, dims=False),
        sent(46, 80),
        accumulate(90, sends=1, dims=False),
        sent(100, 110),
    )
    assert held(table) == [(1, 2), (3,)]
    assert set(table["told_by"]) == {"order"}
    assert table["bytes"].isna().all()
    assert "sizes do not determine the gradients of 2 of 2 buckets: taken in order of arrival" in bucket_notes(table)


def test_a_bucket_that_stood_ready_behind_another_has_no_known_gradients_or_ready_time(tmp_path: Path) -> None:
    """Gradient 2 was bucket 1's: it arrived before gradient 3 completed bucket 0."""
    for dims in (True, False):
        table = table_of(
            tmp_path / str(dims),
            forward(10),
            accumulate(30, 8, dims=dims),
            accumulate(40, 4, dims=dims),
            accumulate(50, 2, sends=2, dims=dims),
            sent(56, 60, 10 if dims else None),
            sent(61, 65, 4 if dims else None),
            accumulate(70, 5, sends=1, dims=dims),
            sent(80, 90, 5 if dims else None),
        )
        assert held(table) == [(), (), (4,)]
        assert table["ready_ns"].isna().tolist() == [False, True, False]
        assert table["told_by"].tolist() == [None, None, "sizes" if dims else "order"]
        assert "which gradients 2 of 3 buckets hold is unknown" in bucket_notes(table)
        assert len(late_buckets(table)) == 3


def test_a_gradient_that_arrives_early_makes_its_bucket_alone_unknown(tmp_path: Path) -> None:
    table = table_of(
        tmp_path,
        forward(10),
        accumulate(30, 8),
        accumulate(40, 4),  # of bucket 1
        accumulate(50, 2, sends=1),
        sent(56, 60, 10),
        accumulate(70, 5, sends=1),
        sent(76, 80, 9),
        accumulate(90, 6, sends=1),
        sent(96, 99, 6),
    )
    assert held(table) == [(), (2, 4), (5,)]
    assert table["told_by"].tolist() == [None, "sizes", "sizes"]


def test_what_is_accounted_for_is_in_no_later_bucket(tmp_path: Path) -> None:
    """Gradients 1 to 4 are of buckets 0 and 1; bucket 2 also sends 5 elements of a parameter that was not used."""
    table = table_of(
        tmp_path,
        forward(10),
        accumulate(30, 8),
        accumulate(40, 4),
        accumulate(50, 2, sends=1),
        sent(56, 60, 10),
        accumulate(70, 5, sends=1),
        sent(76, 80, 9),
        accumulate(90, 6, sends=1),
        sent(96, 99, 11),
    )
    assert held(table) == [(), (2, 4), ()]


def test_buckets_that_stood_ready_do_not_hold_the_last_gradients(tmp_path: Path) -> None:
    """Bucket 1 may hold gradient 2, or gradient 1 and an unused parameter, but not the gradient that launched it."""
    table = table_of(
        tmp_path,
        forward(10),
        accumulate(30, 4),
        accumulate(40, 4),
        accumulate(50, 8, sends=2),
        sent(56, 60, 8),
        sent(61, 65, 4),
    )
    assert held(table) == [(3,), ()]


def test_flags_of_unused_parameters_are_no_bucket(tmp_path: Path) -> None:
    """reducer.cpp: all_reduce_local_used_map runs after the last bucket, within the same hook."""
    table = table_of(tmp_path, forward(10), accumulate(30, 8, sends=2), sent(36, 40, 8), sent(41, 44, 1, "int"))
    assert held(table) == [(1,)]
    assert table["told_by"].tolist() == ["sizes"]


def test_a_pass_under_no_sync_sends_nothing_and_its_gradients_are_no_buckets(tmp_path: Path) -> None:
    table = table_of(
        tmp_path,
        forward(10),
        accumulate(30, 8),
        accumulate(40, 4),
        forward(60),
        accumulate(70, 8),
        accumulate(80, 4, sends=1),
        sent(86, 90, 12),
    )
    (row,) = table.to_dict("records")
    assert (row["arrivals"], row["gradients"], row["passes"]) == ((1, 2), 2, 1)
    assert (row["backward_start_ns"], row["gradient_ready_ns"]) == (70_000, (72_000, 82_000))


def test_of_several_passes_that_send_the_last_is_shown_with_a_note(tmp_path: Path) -> None:
    one = [forward(10), *accumulate(30, 8, sends=1), sent(36, 39, 8)]
    table = table_of(tmp_path, one, [{**e, "ts": e["ts"] + 100} for e in one])
    assert table[["passes", "launch_ns"]].to_numpy().tolist() == [[2, 134_000]]
    assert "up to 2 backward passes of a step sent gradients: the last one's buckets are shown" in bucket_notes(table)


def test_steps_are_separated(tmp_path: Path) -> None:
    one = [forward(10), *accumulate(30, 8, sends=1), sent(36, 39, 8)]
    later = [{**e, "ts": e["ts"] + 1000} for e in one]
    table = table_of(tmp_path, one, step(4, 1000, 1100), later)
    assert table[["step", "launch_ns"]].to_numpy().tolist() == [[3, 34_000], [4, 34_000]]


def test_two_models_in_one_backward_pass_are_distinguished_by_sizes(tmp_path: Path) -> None:
    """As in a DLRM: the first model's second bucket is completed after another model's only one."""
    table = table_of(
        tmp_path,
        forward(10),
        forward(15),
        accumulate(30, 8, sends=1),
        sent(36, 39, 8),
        accumulate(40, 5),
        accumulate(50, 3, sends=1),
        sent(56, 59, 3),
        accumulate(60, 7, sends=1),
        sent(66, 69, 12),
    )
    assert held(table) == [(1,), (3,), (2, 4)]
    assert set(table["told_by"]) == {"sizes"}


def test_a_parameter_without_a_gradient_is_no_arrival(tmp_path: Path) -> None:
    nothing = accumulate(30, 8)
    nothing[1]["args"] |= {"Input Dims": [[]], "Input type": [""]}
    table = table_of(tmp_path, forward(10), nothing, accumulate(40, 4, sends=1), sent(46, 50, 4))
    assert (held(table), table["gradients"].tolist()) == ([(1,)], [1])


def test_without_forward_ranges_steps_separate_passes(tmp_path: Path) -> None:
    one = [*accumulate(30, 8, sends=1), sent(36, 39, 8)]
    table = table_of(tmp_path, one, step(4, 1000, 1100), [{**e, "ts": e["ts"] + 1000} for e in one])
    assert table[["step", "gradients", "backward_end_ns"]].to_numpy().tolist() == [[3, 1, 39_000], [4, 1, 39_000]]


def test_an_all_reduce_elsewhere_is_no_bucket(tmp_path: Path) -> None:
    """Of another thread, of another kind, or after the accumulation."""
    others = [
        event("c10d::allreduce_", 34, 34.5, tid=2),
        event("c10d::broadcast_", 35, 35.5),
        gloo(36, 37),
        gloo(37, 38),
    ]
    table = table_of(tmp_path, forward(10), accumulate(30, 8), others, event("c10d::allreduce_", 60, 61), gloo(62, 63))
    assert table.empty


def test_without_ddp_an_all_reduce_in_a_hook_is_no_bucket(tmp_path: Path) -> None:
    """Hooks of DeepSpeed and Megatron launch all-reduces there as well, by rules of their own."""
    events = [*accumulate(30, 8, sends=1), sent(36, 40, 8)]
    assert table_of(tmp_path, [e for e in events if "reducer" not in e["name"]]).empty


def test_a_trace_of_before_evaluate_function(tmp_path: Path) -> None:
    """In 2021 the hooks ran inside `AccumulateGrad` itself."""
    inner = event("torch::autograd::AccumulateGrad", 30, 39)
    table = table_of(tmp_path, forward(10), inner, event("c10d::allreduce_", 34, 35), sent(36, 40))
    assert table["gradient_ready_ns"].tolist() == [(34_000,)], "not after the hook launched it"


@pytest.mark.parametrize("dims", ['"x"', [], [[]], [["a"]], [None], {"a": 1}, 3])
def test_odd_shapes_are_unknown(tmp_path: Path, dims: Any) -> None:
    events = accumulate(30, 8, sends=1)
    events[1]["args"]["Input Dims"] = dims
    (row,) = table_of(tmp_path, forward(10), events, sent(36, 40, 8)).to_dict("records")
    assert row["shapes"] in ((None,), ())


def test_on_a_gpu_readiness_is_device_time_and_the_kernel_is_found_by_correlation(tmp_path: Path) -> None:
    annotation = event("nccl:all_reduce", 33.5, 36, cat="user_annotation", tid=2)
    mirrored = forward(29.5) | {"cat": "gpu_user_annotation", "tid": 7}
    other = launched("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 34.1, 400, 410, stream=10, correlation=5, tid=3)
    kernel = launched("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 34.2, 310, 390, stream=9, correlation=3, tid=2)
    kernel[1]["args"] |= {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 8, "Out msg nelems": 8}
    events = [
        step(3, 0, 100),
        forward(5),
        *launched("forward_gemm", 6, 100, 200, correlation=1),
        *launched("backward_gemm", 31, 200, 300, correlation=2, tid=2),
        *(e | {"tid": 2} for e in (*accumulate(20, 4), *accumulate(30, 8, sends=1))),
        *other,  # of another thread
        annotation,
        mirrored,
        *kernel,
        *launched("backward_gemm", 50, 300, 350, correlation=4, tid=2),
    ]
    table = overlaplab.buckets(run_of(tmp_path, events, backend="nccl"))
    (row,) = table.to_dict("records")
    times = {key: row[key] // 1000 for key in ("ready_ns", "start_ns", "end_ns", "exposed_ns")}
    assert times == {"ready_ns": 200, "start_ns": 210, "end_ns": 290, "exposed_ns": 40}
    assert (row["gradient_ready_ns"], row["bytes"], row["told_by"]) == ((200_000,), 32, "sizes")
    assert (row["arrivals"], row["gradients"]) == ((2,), 2)
    assert row["launch_ns"] < 0


def test_without_its_labels_a_recorded_run_has_the_same_buckets(tmp_path: Path) -> None:
    told = overlaplab.buckets(overlaplab.load_run(SAMPLE))
    found = overlaplab.buckets(overlaplab.load_run(unlabelled(SAMPLE, tmp_path)))
    assert len(told) > 2 * 2 * 2  # some for both ranks and steps
    assert set(found["source"]) == {"ddp"}
    same = ["rank", "step", "backward_end_ns", "index", "start_ns", "end_ns", "exposed_ns", "passes", "gradients"]
    pd.testing.assert_frame_equal(found[same], told[same])
    for labelled, foreign in zip(told.to_dict("records"), found.to_dict("records"), strict=True):
        arrived = sorted(zip(labelled["arrivals"], labelled["gradient_ready_ns"], strict=True))
        assert tuple(place for place, _ in arrived) == foreign["arrivals"]
        for (_, at), accumulated in zip(arrived, foreign["gradient_ready_ns"], strict=True):
            assert 0 <= accumulated - at < 100_000  # the label is written within the accumulation
        assert labelled["ready_ns"] < foreign["ready_ns"] < labelled["start_ns"]  # DDP's copy, and the engine's hook


def recorded_model(at: float, seq: int = 0) -> list[Event]:
    """The backward pass of a model with a Recorder: `w` of 6 elements, then `b` of 2, which fills its only bucket."""
    return [
        *accumulate(at, 6),
        label("gradient_ready parameter=w", at + 2.1, at + 2.2),
        *accumulate(at + 10, 2, sends=1),
        label("gradient_ready parameter=b", at + 12.1, at + 12.2),
        label("bucket_ready bucket=0 bytes=32 parameters=w,b", at + 13.1, at + 13.2),
        label("bucket_launch bucket=0", at + 13.5, at + 15),
        sent(at + 16, at + 30, 8, tid=7 + seq),
    ]


def test_buckets_without_labels_stand_beside_those_with(tmp_path: Path) -> None:
    """A GAN, of whose two models one has a Recorder: its labels are not all that there is."""
    other = [forward(10), *accumulate(30, 8), *accumulate(40, 4, sends=1), sent(46, 60, 12)]
    run = run_of(tmp_path, [step(3, 0, 1000), *other, forward(100), *recorded_model(130)])
    table = overlaplab.buckets(run)
    columns = ["index", "bytes", "ready_ns", "start_ns", "backward_end_ns", "passes", "gradients", "source", "told_by"]
    assert table[columns].to_numpy().tolist() == [
        [1, 48, 44_000, 46_000, 49_000, 1, 2, "ddp", "sizes"],
        [0, 32, 143_100, 146_000, 149_000, 1, 2, "engine", "engine"],
    ]
    assert (held(table), table["last_parameter"].tolist()) == ([(1, 2), (1, 2)], [None, "b"])
    assert purposes(run.traces[0])["what"].tolist() == ["bucket 1", "bucket 0"]
    assert bucket_notes(table) == (
        "1 of 2 buckets have no labels (no Recorder was made for their models): they are read from torch's DDP, as"
        " all-reduces launched while a gradient is accumulated, without names",
    )
    (step_,) = buckets_document(RunTables(run=run))["ranks"][0]["steps"]
    assert {name: value for name, value in step_.items() if name != "buckets"} == {
        "step": 3,
        "backward_start_ns": 30_000,
        "backward_end_ns": 149_000,
        "passes": 1,
        "gradients": 4,
    }
    assert bound(run)[["transfer_ns", "any_cap_ns"]].to_numpy(object, na_value=None).tolist() == [[14_000 * 2, None]]


def test_models_with_and_without_labels_in_one_backward_pass(tmp_path: Path) -> None:
    """Gradients that labels name are not taken for those of a bucket without labels."""
    other = [*accumulate(20, 8), *accumulate(160, 4, sends=1), sent(166, 180, 12, tid=8)]
    run = run_of(tmp_path, [step(3, 0, 1000), forward(5), forward(10), *other, *recorded_model(130)])
    table = overlaplab.buckets(run)
    assert table[["index", "source", "told_by"]].to_numpy().tolist() == [[0, "engine", "engine"], [1, "ddp", "sizes"]]
    assert (held(table), table["shapes"].tolist()) == ([(1, 2), (1, 2)], [(None, None), ((8,), (4,))])


def test_a_step_that_sends_more_than_labels_and_ddp_tell_has_no_bound(tmp_path: Path) -> None:
    gathered = [event("c10d::_allgather_base_", 90, 91), event("gloo:all_gather", 92, 95, cat="user_annotation", tid=9)]
    labelled = [step(3, 0, 1000), forward(100), *recorded_model(130)]
    assert len(bound(run_of(tmp_path / "labelled", labelled))) == 1
    assert bound(run_of(tmp_path / "more", [*labelled, *gathered])).empty


def test_a_second_backward_pass_takes_no_gradients_of_the_first(tmp_path: Path) -> None:
    """Without labels, after one forward pass: the first launch sends what never arrived, so its own are unknown."""
    table = table_of(
        tmp_path,
        forward(10),
        accumulate(30, 3),
        accumulate(40, 5, sends=1),
        sent(46, 50, 16),
        accumulate(130, 4),
        accumulate(140, 4, sends=1),
        sent(146, 150, 16),
    )
    assert held(table) == [(), ()]
    assert table["ready_ns"].tolist() == [44_000, 144_000]


def test_a_pass_that_makes_gradients_anew_before_an_update_is_another_models(tmp_path: Path) -> None:
    """It is the same model's if it adds to gradients, or nothing tells."""
    passes = [event for at in (0, 100) for event in (forward(at + 10), *accumulate(at + 40, 4, sends=1))]
    made = [op("detach", at + 41.2, at + 41.5) for at in (0, 100)]
    update = event("Optimizer.step#SGD.step", 70, 80, cat="user_annotation")
    results = [sent(46, 50, 4), sent(146, 150, 4)]
    for name, ops, indices in (
        ("anew", made, [0, 1]),
        ("added", [made[0], op("add_", 141.2, 141.5)], [0, 0]),
        ("updated", [*made, update], [0, 0]),
        ("unknown", [], [0, 0]),
    ):
        (trace,) = run_of(tmp_path / name, [step(3, 0, 1000), *passes, *ops, *results]).traces
        found = ddp_backwards(trace, executions(trace))
        assert [bucket.index for backward in found for bucket in backward.buckets] == indices, name


def test_no_cutting_is_of_the_gradients_of_two_backward_passes(tmp_path: Path) -> None:
    """An optimizer's step tells them apart, after one forward pass."""
    one = [*accumulate(30, 8), *accumulate(40, 8, sends=1), sent(46, 50, 16)]
    events = [step(3, 0, 1000), forward(10), *one, *({**each, "ts": each["ts"] + 100} for each in one)]
    update = event("Optimizer.step#SGD.step", 70, 80, cat="user_annotation")
    for name, more in (("one", []), ("two", [update])):
        run = run_of(tmp_path / name, [*events, *more])
        (backward,) = ddp_backwards(run.traces[0], executions(run.traces[0]))
        assert backward.repeated == bool(more)
        assert [
            own.gradients is None for _, own in issued_by_step(run.traces[0], step_windows(run.traces[0]), None)
        ] == [bool(more)]


def test_an_all_reduce_smaller_than_its_last_gradient_is_compressed(tmp_path: Path) -> None:
    """torch's PowerSGD hook sends 3 elements of 12."""
    one = [forward(10), *accumulate(30, 4), *accumulate(40, 8, sends=1)]
    for elements, compressed in ((12, False), (9, False), (3, True)):
        run = run_of(tmp_path / str(elements), [step(3, 0, 1000), *one, sent(46, 60, elements)])
        assert purposes(run.traces[0])["compressed"].tolist() == [compressed]
