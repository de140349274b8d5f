"""Passes by torch's own ranges, against the engine's labels and by literals."""

from __future__ import annotations

from pathlib import Path

import pytest
from made.traces import event, run_of, step
from samples import sample_run, with_recorders_labels

import overlaplab
from overlaplab.evidence.passes import pass_labels

FUNCTION = "autograd::engine::evaluate_function: MulBackward0"


def test_torchs_ranges_give_the_passes_that_the_engine_labels(tmp_path: Path) -> None:
    labelled, unlabelled = sample_run("torch-ddp"), overlaplab.load_run(with_recorders_labels("torch-ddp", tmp_path))
    for labels, passes in zip(map(pass_labels, labelled.traces), map(pass_labels, unlabelled.traces), strict=True):
        assert [derived.word for derived in passes] == ["forward", "backward", "optimizer"] * 3
        for label, derived in zip(labels, passes, strict=True):
            assert (derived.word, derived.fields, derived.thread) == (label.word, label.fields, label.thread)
            assert derived.start_ns == pytest.approx(label.start_ns, abs=1_000_000)
            assert derived.end_ns == pytest.approx(label.end_ns, abs=1_000_000)


@pytest.mark.parametrize("update_us", [800, 350])
def test_microbatches_count_in_each_step_and_the_last_sends(tmp_path: Path, update_us: int) -> None:
    """The update is what comes after the passes that an optimizer makes itself, as Lightning's do."""
    events = []
    for number, start in enumerate((0, 1000)):
        events.append(step(number, start, start + 1000))
        for at in (start + 100, start + 400):
            events.append(event("DistributedDataParallel.forward", at, at + 50, cat="user_annotation"))
            events += [event(FUNCTION, at + 100, at + 120), event(FUNCTION, at + 150, at + 200)]
        launch = start + 560
        events += [
            event("engine::bucket_launch bucket=0", launch, launch + 20),
            event(f"engine::launch seq={number} group=0", launch + 5, launch + 10),
            event(
                f"engine::comm seq={number} kind=all_reduce dtype=float32 bytes=8 group=0",
                launch + 10,
                start + 700,
                tid=7,
            ),
            event("Optimizer.step#SGD.step", start + update_us, start + 900, cat="user_annotation"),
        ]
    (trace,) = run_of(tmp_path, events).traces
    origin = pass_labels(trace)[0].start_ns - 100_000
    found = [
        (one.word, (one.start_ns - origin) // 1000, (one.end_ns - origin) // 1000, one.fields)
        for one in pass_labels(trace)
    ]
    assert found[:5] == [
        ("forward", 100, 150, {"microbatch": "0"}),
        ("backward", 200, 300, {"microbatch": "0", "sync": "0"}),
        ("forward", 400, 450, {"microbatch": "1"}),
        ("backward", 500, 700, {"microbatch": "1", "sync": "1"}),
        ("optimizer", max(update_us, 700), 900, {}),
    ]
    assert [(word, start - 1000, end - 1000, fields) for word, start, end, fields in found[5:]] == found[:5]


def test_without_ddp_or_the_recorders_labels_there_are_none(tmp_path: Path) -> None:
    """It is not known which pass sends, nor where the rank waits."""
    forward = event("DistributedDataParallel.forward", 50, 90, cat="user_annotation")
    backward = event(FUNCTION, 100, 200)
    launch = event("engine::bucket_launch bucket=0", 150, 160)
    for number, events in enumerate(([forward, backward], [backward, launch])):
        (trace,) = run_of(tmp_path / str(number), [step(0, 0, 1000), *events]).traces
        assert pass_labels(trace) == ()


def test_fsdp2s_ranges_give_its_passes(tmp_path: Path) -> None:
    """Two microbatches, of which the second sends; the second backward pass computes a forward pass again."""
    times = [
        *(("root_pre_forward", 100, 110), ("pre_forward (0)", 110, 120), ("post_forward (0)", 180, 190)),
        *(("pre_backward (0)", 210, 220), ("post_backward_reshard (0)", 250, 255)),
        ("root_post_backward_callback", 255, 260),
        *(("root_pre_forward", 300, 310), ("pre_forward (0)", 310, 320), ("post_forward (0)", 380, 390)),
        *(("pre_backward (0)", 410, 420), ("pre_forward (0)", 425, 430), ("post_backward_reduce (0)", 450, 455)),
        ("root_post_backward_callback", 455, 470),
    ]
    events = [event(f"FSDP::{name}", start, end, cat="user_annotation") for name, start, end in times]
    events += [step(0, 0, 600), event("Optimizer.step#SGD.step", 480, 500, cat="user_annotation")]
    (trace,) = run_of(tmp_path, events).traces
    labels = pass_labels(trace)
    spans = [(label.word, label.start_ns - trace.origin_ns, label.end_ns - trace.origin_ns) for label in labels]
    assert [(word, start // 1000, end // 1000) for word, start, end in spans] == [
        ("forward", 100, 190),
        ("backward", 210, 260),
        ("forward", 300, 390),
        ("backward", 410, 470),
        ("optimizer", 480, 500),
    ]
    assert [label.fields for label in labels] == [
        {"microbatch": "0"},
        {"microbatch": "0", "sync": "0"},
        {"microbatch": "1"},
        {"microbatch": "1", "sync": "1"},
        {},
    ]


def passes_of(folder: Path, *times: tuple[str, int, int]) -> list[tuple[str, int, int]]:
    """The passes in a trace with such ranges of FSDP2, in µs."""
    events = [event(f"FSDP::{name}", start, end, cat="user_annotation") for name, start, end in times]
    (trace,) = run_of(folder, [step(0, 0, 1000), *events]).traces
    return [
        (label.word, (label.start_ns - trace.origin_ns) // 1000, (label.end_ns - trace.origin_ns) // 1000)
        for label in pass_labels(trace)
    ]


def test_what_fsdp2_gathers_between_passes_is_of_none(tmp_path: Path) -> None:
    """`model.unshard()` before the forward pass."""
    unit = [("root_pre_forward", 0, 10), ("post_forward (0)", 50, 60), ("pre_backward (0)", 70, 80)]
    unit.append(("root_post_backward_callback", 90, 100))
    times = [*unit, ("all_gather (0)", 150, 160), *((name, 200 + start, 200 + end) for name, start, end in unit)]
    assert passes_of(tmp_path, *times) == [
        *(("forward", 0, 60), ("backward", 70, 100)),
        *(("forward", 200, 260), ("backward", 270, 300)),
    ]


def test_a_backward_pass_that_the_recording_cuts_ends_with_its_last_range(tmp_path: Path) -> None:
    times = [("root_pre_forward", 0, 10), ("post_forward (0)", 50, 60), ("pre_backward (0)", 70, 80)]
    assert passes_of(tmp_path, *times, ("post_backward_reduce (0)", 90, 95)) == [
        ("forward", 0, 60),
        ("backward", 70, 95),
    ]


def test_roots_one_after_the_other_are_one_pass(tmp_path: Path) -> None:
    """Two roots, a forward pass without a backward pass before; their callbacks end the backward pass together."""
    times = [("root_pre_forward", 0, 10), ("pre_forward (0)", 10, 20), ("post_forward (0)", 20, 30)]
    again = [(name, 100 + start, 100 + end) for name, start, end in times]
    ends = [("pre_backward (0)", 140, 150), *(("root_post_backward_callback", at, at + 5) for at in (160, 165))]
    assert passes_of(tmp_path, *times, *again, *ends) == [
        ("forward", 0, 30),
        ("forward", 100, 130),
        ("backward", 140, 170),
    ]
