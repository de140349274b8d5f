"""Gradients that a loop's own all-reduces average, each by one of its size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made.traces import event, gloo, op, run_of, step, write

from overlaplab import load_run
from overlaplab.analyses import averages_by_hand
from overlaplab.events import Trace
from overlaplab.evidence.by_hand import (
    averaged_by_hand,
    hand_buckets,
    hand_gradients,
    hand_passes,
    is_of_gradients,
)
from overlaplab.evidence.ddp import all_gradients
from overlaplab.evidence.host_work import host_work
from overlaplab.evidence.recorded import recorded_collectives
from overlaplab.simulate.player import Wait
from overlaplab.simulate.recorded import recorded_programs
from overlaplab.vocabulary import DATA_LOADING, label_list

US = 1000


def in_order(*events: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(events, key=lambda each: float(each["ts"]))


def loop(*, sent: tuple[int, ...] = (250, 500), in_hooks: bool = False) -> list[dict[str, Any]]:
    """A step of 20 ms: gradients of 250 and 500 elements arrive at 4 and 8; all-reduces of so many elements follow, at
    once or from 9 on, each of 2 ms; the update begins at 15.
    """
    accumulate = "torch::autograd::AccumulateGrad"
    events = [step(3, 0, 20_000), op("forward", 0, 2000)]
    for at, elements in ((4000, 250), (8000, 500)):
        sizes = {"Input Dims": [[elements]], "Input type": ["float"]}
        hooks_ns = 2100 if in_hooks else 100
        events += [
            op("backward", at - 1000, at),
            event(f"autograd::engine::evaluate_function: {accumulate}", at, at + hooks_ns),
            event(accumulate, at + 1, at + 2, **sizes),
        ]
    begun = (4010, 8010, 10_200) if in_hooks else (9000, 11_100, 13_200)
    for at, elements in zip(begun, sent, strict=False):
        arguments = {"args": {"Input Dims": [[elements]], "Input type": ["float"]}}
        events += [event("c10d::allreduce_", at, at + 50), gloo(at + 50, at + 2000) | arguments]
    events += [event("Optimizer.step#SGD.step", 15_500, 19_000, cat="user_annotation"), op("add_", 15_600, 18_000)]
    return in_order(*events)


@pytest.mark.parametrize("in_hooks", [False, True])
def test_each_gradient_has_a_bucket_of_its_own(tmp_path: Path, in_hooks: bool) -> None:
    (trace,) = run_of(tmp_path, loop(in_hooks=in_hooks)).traces
    (averaging,) = averaged_by_hand(trace)
    assert [(names[0].number, launch.bytes) for names, launch in averaging.sent] == [(1, 1000), (2, 2000)]
    zero = averaging.forward_ns
    ends = 10_100 if in_hooks else 13_100
    assert (averaging.start_ns - zero, averaging.end_ns - zero) == (4000 * US, ends * US)
    assert hand_gradients(trace) == {"gradient 1 (250)": 250, "gradient 2 (500)": 500}
    assert [label.word for label in hand_passes(trace)] == ["forward", "backward"]
    words = ["gradient_ready", "bucket_ready", "bucket_launch", "wait", "bucket_done"]
    assert [label.word for label in hand_buckets(trace)] == words * 2


def test_what_is_waited_for_later_has_no_wait(tmp_path: Path) -> None:
    (trace,) = run_of(tmp_path, in_order(*loop(), op("metrics", 9100, 10_000))).traces
    waits = [label.start_ns for label in hand_buckets(trace) if label.word == "wait"]
    assert len(waits) == 1


@pytest.mark.parametrize("beside", [(), (8,)])
def test_all_gradients_may_be_one_tensor(tmp_path: Path, beside: tuple[int, ...]) -> None:
    """After the pass alone; another all-reduce is none of theirs."""
    run = run_of(tmp_path / "after", loop(sent=(750, *beside)))
    (averaging,) = averaged_by_hand(run.traces[0])
    assert [([each.number for each in names], launch.bytes) for names, launch in averaging.sent] == [([1, 2], 3000)]
    (ready,) = (label for label in hand_buckets(run.traces[0]) if label.word == "bucket_ready")
    assert label_list(ready.fields["parameters"]) == ("gradient 1 (250)", "gradient 2 (500)")
    assert not averages_by_hand(run_of(tmp_path / "early", loop(sent=(750, *beside), in_hooks=True)))


@pytest.mark.parametrize("sent", [(), (500,), (250,), (250, 400), (8, 8, 8)])
def test_all_reduces_of_other_sizes_are_no_gradients(tmp_path: Path, sent: tuple[int, ...]) -> None:
    """Metrics, or some of the gradients alone."""
    run = run_of(tmp_path, loop(sent=sent))
    assert averaged_by_hand(run.traces[0]) == ()
    assert not averages_by_hand(run)


def test_metrics_beside_the_gradients_are_others(tmp_path: Path) -> None:
    run = run_of(tmp_path, loop(sent=(250, 500, 8)))
    (averaging,) = averaged_by_hand(run.traces[0])
    assert [launch.bytes for _, launch in averaging.sent] == [1000, 2000]
    assert averages_by_hand(run)


@pytest.mark.parametrize("name", ["DistributedDataParallel.forward", "torch.distributed.ddp.reducer::copy"])
def test_ddp_does_not_average_by_hand(tmp_path: Path, name: str) -> None:
    events = in_order(*loop(), event(name, 0, 2000, cat="user_annotation"))
    assert averaged_by_hand(run_of(tmp_path, events).traces[0]) == ()


def test_loading_data_is_no_forward_pass(tmp_path: Path) -> None:
    loading = event(f"{DATA_LOADING}#Iter", 100, 1500, cat="user_annotation")
    (trace,) = run_of(tmp_path, in_order(*loop(), loading)).traces
    assert [label.fields["name"] for label in host_work(trace)] == [DATA_LOADING]
    (averaging,) = averaged_by_hand(trace)
    assert averaging.start_ns - averaging.forward_ns == 2500 * US


def test_what_waits_beside_the_gradients_keeps_its_waits(tmp_path: Path) -> None:
    run = run_of(tmp_path, loop(sent=(250, 500, 8)), loop(sent=(250, 500, 8)))
    for program in recorded_programs(run).programs:
        assert sum(isinstance(move, Wait) for move in program) == 3


def test_a_pass_without_gradients_is_none_of_them(tmp_path: Path) -> None:
    """As of `torch.autograd.grad`, beside an all-reduce."""
    alone = [
        step(4, 20_000, 40_000),
        op("forward", 20_100, 21_000),
        event("autograd::engine::evaluate_function: MulBackward0", 22_000, 22_100),
        event("c10d::allreduce_", 23_000, 23_050),
        gloo(23_050, 24_000) | {"args": {"Input Dims": [[250]], "Input type": ["float"]}},
    ]
    assert len(averaged_by_hand(run_of(tmp_path, in_order(*loop(), *alone)).traces[0])) == 1


def test_two_updates_in_a_step_are_refused(tmp_path: Path) -> None:
    """There would be two backward passes that nothing tells apart."""
    update = event("Optimizer.step#SGD.step", 5000, 5500, cat="user_annotation")
    assert averaged_by_hand(run_of(tmp_path, in_order(*loop(), update)).traces[0]) == ()


def test_shapes_must_be_known(tmp_path: Path) -> None:
    events = loop()
    for each in events:
        if each["name"] == "torch::autograd::AccumulateGrad":
            each["args"] = {}
    assert averaged_by_hand(run_of(tmp_path, events).traces[0]) == ()


def mark_gradients(trace: Trace) -> list[bool]:
    return is_of_gradients(trace, recorded_collectives(trace)).tolist()


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (("reduce", "broadcast", "reduce", "broadcast"), [True] * 4),
        (("reduce_scatter", "all_gather", "reduce_scatter", "all_gather"), [True] * 4),
        (("all_reduce", "all_reduce", "all_reduce", "all_reduce"), [True, False, True, False]),
        # what follows no sum, and what adds nothing up
        (("broadcast", "reduce", "reduce", "broadcast"), [False, True, True, True]),
        (("all_to_all", "all_to_all", "all_to_all", "all_to_all"), [False] * 4),
        # of one of the two gradients, a third of the elements
        (("reduce", "broadcast", "scatter", "scatter"), [False] * 4),
    ],
)
def test_an_average_may_take_several_collectives(tmp_path: Path, kinds: tuple[str, ...], expected: list[bool]) -> None:
    """Two of the first gradient, then two of the second."""
    others = [each for each in loop() if not each["name"].startswith(("c10d::", "gloo:"))]
    sent = []
    for at, kind, elements in zip((9000, 10_500, 12_000, 13_500), kinds, (250, 250, 500, 500), strict=True):
        arguments = {"args": {"Input Dims": [[elements]], "Input type": ["float"]}}
        sent += [event(f"c10d::{kind}_", at, at + 50), gloo(at + 50, at + 1000, kind=kind) | arguments]
    (trace,) = run_of(tmp_path / "own", in_order(*others, *sent)).traces
    assert mark_gradients(trace) == expected
    wrapped = event("FullyShardedDataParallel.forward", 100, 1900, cat="user_annotation")
    (trace,) = run_of(tmp_path / "fsdp", in_order(*others, *sent, wrapped)).traces
    assert not any(mark_gradients(trace))


def test_arrivals_are_exact_though_a_range_accumulates_nothing(tmp_path: Path) -> None:
    base_ns, accumulate = 1_700_000_000_000_000_001, "torch::autograd::AccumulateGrad"
    evaluate = f"autograd::engine::evaluate_function: {accumulate}"
    events = [event(evaluate, 10, 20), event(accumulate, 11, 12), event(evaluate, 30, 40)]
    run = load_run(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=base_ns))
    assert [gradient.at_ns - base_ns for gradient in all_gradients(run.traces[0], ())] == [12_000, 40_000]
