"""Pipelines played under a schedule, beside the least that their orders allow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made.pipeline import made_pipeline

from overlaplab.costs.pipeline import bubble, order, starts
from overlaplab.manifest import Link
from overlaplab.simulate import pipeline_remedies
from overlaplab.simulate.pipelines import Shape, play_pipeline, step_ns


def shape_of(schedule: str, took: tuple[dict[str, int], ...], *, microbatches: int = 5, hop_ns: int = 0) -> Shape:
    """Without a host that takes time."""
    none = (0,) * len(took)
    return Shape(
        schedule=schedule,
        microbatches=microbatches,
        took_ns=took,
        between_ns=none,
        around_ns=none,
        hop_ns=hop_ns,
        bytes=0,
    )


def whole(shape: Shape) -> int:
    """A step, if every action begins a hop after the last of what it needs."""
    orders = order(shape.schedule, len(shape.took_ns), shape.microbatches)
    took = {action: shape.took_ns[action.stage][action.kind] for own in orders for action in own}
    return max(end for _, end in starts(orders, took, shape.hop_ns).values())


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_without_sending_and_host_it_is_as_early_as_can_be(schedule: str) -> None:
    took = ({"forward": 3, "backward": 5}, {"forward": 4, "backward": 7}, {"forward": 2, "backward": 9})
    shape = shape_of(schedule, took)
    assert play_pipeline(shape).ends_ns[0][1] == whole(shape)


@pytest.mark.parametrize(("schedule", "ends"), [("gpipe", (98, 78)), ("1f1b", (96, 76))])
def test_a_message_goes_out_once_both_ends_have_called(schedule: str, ends: tuple[int, int]) -> None:
    """By hand. With 1F1B stage 0 sends its second activation at 42, when stage 1 asks for it, having gone backward."""
    shape = shape_of(schedule, ({"forward": 10, "backward": 20},) * 2, microbatches=2, hop_ns=2)
    assert tuple(own[1] for own in play_pipeline(shape).ends_ns) == ends


def test_more_microbatches_have_a_smaller_bubble_and_smaller_messages() -> None:
    took = ({"forward": 800, "backward": 1600},) * 4
    link = Link(emulated=True, bandwidth_gbps=8, latency_us=0, world_size=4)
    shape = replace(shape_of("1f1b", took, microbatches=8), hop_ns=64, bytes=64, link=link)
    more = shape.with_microbatches(16)
    assert (more.took_ns[0], more.hop_ns, more.bytes) == ({"forward": 400, "backward": 800}, 32, 32)
    assert step_ns(more) < step_ns(shape)
    assert step_ns(replace(shape, hop_ns=0)) == round(800 * 3 * 8 / (1 - bubble(4, 8)))


def test_layers_move_from_the_slowest_stage_to_the_fastest() -> None:
    took = tuple({"forward": ns, "backward": ns} for ns in (20, 20, 40, 20))
    shape = replace(shape_of("1f1b", took), layers=(4, 4, 4, 4))
    assert shape.even == (5, 5, 2, 4)
    assert step_ns(shape.with_layers(shape.even)) < step_ns(shape)


def test_what_cannot_be_played(tmp_path: Path) -> None:
    assert pipeline_remedies(made_pipeline(tmp_path)).empty  # no run.json names its schedule
