"""Pipelines played under a schedule, beside the least that their orders allow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made.pipeline import made_pipeline

from overlaplab.costs.pipeline import bubble, order, starts
from overlaplab.manifest import Link
from overlaplab.simulate import pipeline_remedies
from overlaplab.simulate.pipelines import UPDATE, Shape, play_pipeline, step_ns


def shape_of(schedule: str, took: tuple[dict[str, int], ...], *, microbatches: int = 5, hop_ns: int = 0) -> Shape:
    """Without a host that takes time."""
    nothing = {"forward": 0, "backward": 0}
    return Shape(
        schedule=schedule,
        microbatches=microbatches,
        took_ns=tuple(own | {UPDATE: 0} for own in took),
        idle_ns=(nothing,) * len(took),
        between_ns=(0,) * len(took),
        around_ns=((0, 0),) * len(took),
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
    assert play_pipeline([shape]).ends_ns[0][1] == whole(shape)


@pytest.mark.parametrize(("schedule", "ends"), [("gpipe", (98, 78)), ("1f1b", (96, 76))])
def test_a_message_goes_out_once_both_ends_have_called(schedule: str, ends: tuple[int, int]) -> None:
    """By hand. With 1F1B stage 0 sends its second activation at 42, when stage 1 asks for it, having gone backward."""
    shape = shape_of(schedule, ({"forward": 10, "backward": 20},) * 2, microbatches=2, hop_ns=2)
    assert tuple(own[1] for own in play_pipeline([shape]).ends_ns) == ends


def test_more_microbatches_have_a_smaller_bubble_and_smaller_messages() -> None:
    took = ({"forward": 800, "backward": 1600},) * 4
    link = Link(emulated=True, bandwidth_gbps=8, latency_us=0, world_size=4)
    shape = replace(shape_of("1f1b", took, microbatches=8), hop_ns=64, bytes=64, link=link)
    more = shape.with_microbatches(16)
    assert (more.took_ns[0], more.hop_ns, more.bytes) == ({"forward": 400, "backward": 800, UPDATE: 0}, 32, 32)
    assert step_ns([more]) < step_ns([shape])
    assert step_ns([replace(shape, hop_ns=0)]) == round(800 * 3 * 8 / (1 - bubble(4, 8)))


def test_what_the_host_does_in_an_action_does_not_shrink_with_it() -> None:
    took = ({"forward": 800, "backward": 1600},) * 2
    shape = replace(shape_of("gpipe", took, microbatches=2), idle_ns=({"forward": 100, "backward": 200},) * 2)
    assert shape.with_microbatches(4).took_ns[1] == {"forward": 450, "backward": 900, UPDATE: 0}


def test_a_message_behind_another_link_keeps_what_it_was_late() -> None:
    link = Link(emulated=True, bandwidth_gbps=8, latency_us=1, world_size=2)
    shape = replace(shape_of("gpipe", ({"forward": 1, "backward": 1},) * 2), hop_ns=1164, bytes=64, link=link)
    assert shape.with_link(replace(link, bandwidth_gbps=4, latency_us=3)).hop_ns == 3000 + 128 + 100


def test_layers_move_from_the_slowest_stage_to_the_fastest() -> None:
    took = tuple({"forward": ns, "backward": ns} for ns in (20, 20, 40, 20))
    layer = tuple({"forward": ns // 4, "backward": ns // 4, UPDATE: 0} for ns in (20, 20, 40, 20))
    shape = replace(shape_of("1f1b", took), layers=(4, 4, 4, 4), layer_ns=layer)
    assert shape.even == (5, 5, 2, 4)
    assert step_ns([shape.with_layers(shape.even)]) < step_ns([shape])


def test_what_is_no_layer_stays_in_its_stage() -> None:
    """The first stage has the embedding beside its two layers, the last one the head."""
    took = tuple({"forward": ns, "backward": 2 * ns} for ns in (30, 20, 20, 30))
    layer = ({"forward": 10, "backward": 20, UPDATE: 3},) * 4
    shape = replace(shape_of("gpipe", took), layers=(2, 2, 2, 2), layer_ns=layer)
    changed = shape.with_layers((1, 3, 3, 1)).took_ns
    assert [own["forward"] for own in changed] == [20, 30, 30, 20]
    assert [own[UPDATE] for own in changed] == [0, 3, 3, 0]
    assert shape.even == shape.layers  # three units' work is the least that the slowest stage can have


def test_what_cannot_be_played(tmp_path: Path) -> None:
    assert pipeline_remedies(made_pipeline(tmp_path)).empty  # no run.json names its schedule
