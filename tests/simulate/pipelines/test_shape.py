"""Pipelines played under a schedule, beside the least that their orders allow."""

from __future__ import annotations

from pathlib import Path

import pytest
from made.pipeline import made_pipeline
from msgspec.structs import replace

import overlaplab
from overlaplab.costs.pipeline import PER_RANK, bubble, order, starts
from overlaplab.manifest import Link
from overlaplab.simulate import pipeline_remedies
from overlaplab.simulate.pipelines.moves import pipeline_moves, play_pipeline, step_ns
from overlaplab.simulate.pipelines.shape import UPDATE, Host, Labelled, Shape
from overlaplab.simulate.player import find_launches
from overlaplab.simulate.programs.times import retime_program


def ranks_of(schedule: str, took: tuple[dict[str, int], ...]) -> int:
    return len(took) // PER_RANK[schedule]


def shape_of(schedule: str, took: tuple[dict[str, int], ...], *, microbatches: int = 5, hop_ns: int = 0) -> Shape:
    """Without a host that takes time."""
    return Shape(
        schedule=schedule,
        microbatches=microbatches,
        took_ns=tuple(own | {UPDATE: 0} for own in took),
        idle_ns=tuple(dict.fromkeys(own, 0) for own in took),
        hosts=(Host(),) * ranks_of(schedule, took),
        around_ns=((0, 0),) * ranks_of(schedule, took),
        hop_ns=hop_ns,
        bytes=0,
    )


def whole(shape: Shape) -> int:
    """A step, if every action begins as soon as the last of what it needs is over."""
    orders = order(shape.schedule, len(shape.took_ns), shape.microbatches)
    took = {action: shape.took_ns[action.stage][action.kind] for own in orders for action in own}
    return max(end for _, end in starts(orders, took).values())


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


def test_the_host_posts_begins_and_wakes() -> None:
    """By hand, GPipe with a microbatch on two ranks: forward 10, backward 20, hops of 6; the host posts in 1, begins an
    action in 3, and wakes up within 2 of them; rank 1's wakes up in 5, which is more than it takes anyway.

    Rank 0: forward 4 to 14, posts at 15, which waits for nobody: the message lasts to 21. Waits for that, 21 + 2 = 23;
    posts its receive. Rank 1 acts from 21 + 5 = 26 to 36, goes back from 39 to 59, posts at 60; the gradient is there
    at 66, and rank 0 goes back from 68 to 88.
    """
    shape = replace(
        shape_of("gpipe", ({"forward": 10, "backward": 20},) * 2, microbatches=1, hop_ns=6),
        hosts=(Host(post_ns=1, begin_ns=3, wake_ns=2), Host(post_ns=1, begin_ns=3, wake_ns=5)),
        around_ns=((4, 0), (0, 0)),
    )
    played = play_pipeline([shape])
    assert [own[1] for own in played.ends_ns] == [88, 66]
    assert sorted(played.carried.values()) == [(15, 21), (60, 66)]


ZBV_NS = (
    {"forward": 200, "backward_input": 0, "backward_weight": 300},
    {"forward": 100, "backward_input": 90, "backward_weight": 110},
    {"forward": 100, "backward_input": 90, "backward_weight": 110},
    {"forward": 100, "backward_input": 90, "backward_weight": 110},
)
"""Two ranks, a layer on each stage, and beside the first something as long as a layer forward."""


def halved(*, hides_host: bool) -> Shape:
    """Its host takes 10 before an action; in an action without computation are 20."""
    shape = replace(shape_of("zbv", ZBV_NS), hosts=(Host(begin_ns=10),) * 2, hides_host=hides_host)
    shape = replace(shape, idle_ns=tuple({kind: min(20, ns) for kind, ns in own.items()} for own in ZBV_NS))
    labelled = [Labelled({"forward": 100}, {"forward": 6})] * 4
    outer = [(False, True), *[(True, True)] * 3]
    return shape.with_labelled_layers((1, 1, 1, 1), labelled, outer)


def test_the_halves_of_a_backward_pass_add_up_to_a_whole_one() -> None:
    """Each has the host's 20, which a whole one has once."""
    whole = halved(hides_host=False).with_schedule("interleaved-1f1b", ())
    assert [own["backward"] for own in whole.took_ns] == [300, 180, 180, 180]
    assert [own["backward"] for own in whole.idle_ns] == [20] * 4


def test_a_device_on_schedule_takes_halves_and_what_the_host_takes_before_each() -> None:
    whole = halved(hides_host=True).with_schedule("interleaved-1f1b", ())
    assert [own["backward"] for own in whole.took_ns] == [310, 210, 210, 210]
    again = whole.with_schedule("zbv", ())
    assert [own["backward_input"] for own in again.took_ns] == [0, 100, 100, 100]
    assert [own["backward_weight"] for own in again.took_ns] == [300, 100, 100, 100]  # the first makes up for both


def test_the_layers_of_halved_stages_join() -> None:
    """Rank 0's layers, 200 of 300 forward, have two thirds of its backward passes of 300 and 180 as well: 160 each."""
    shape = halved(hides_host=False)
    assert [own["backward"] for own in shape.layer_ns] == [160, 180, 180, 160]
    joined = shape.with_schedule("gpipe", (2, 2))
    assert [own["forward"] for own in joined.took_ns] == [100 + 200, 200]
    assert [own["backward"] for own in joined.took_ns] == [140 + 2 * 160, 20 + 2 * 180]


def test_the_first_unit_of_an_action_makes_up_for_the_host() -> None:
    """For 10 before the action and 6 in it. In the first stage's forward pass it is no layer, in each other it is."""
    layer_ns = halved(hides_host=True).layer_ns
    assert [own["forward"] for own in layer_ns] == [108, 116, 116, 108]


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
    moves = retime_program(pipeline_moves([shape], 0), link, replace(link, bandwidth_gbps=4, latency_us=3))
    assert {launch.transfer_ns for launch in find_launches(moves)} == {3000 + 128 + 100}


def test_layers_move_from_the_slowest_stage_to_the_fastest() -> None:
    took = tuple({"forward": ns, "backward": ns} for ns in (20, 20, 40, 20))
    layer = tuple({"forward": ns // 4, "backward": ns // 4, UPDATE: 0} for ns in (20, 20, 40, 20))
    shape = replace(shape_of("1f1b", took), layers=(4, 4, 4, 4), layer_ns=layer)
    assert shape.even_layers == (5, 5, 2, 4)
    assert step_ns([shape.with_layers(shape.even_layers)]) < step_ns([shape])


def test_what_is_no_layer_stays_in_its_stage() -> None:
    """The first stage has the embedding beside its two layers, the last one the head."""
    took = tuple({"forward": ns, "backward": 2 * ns} for ns in (30, 20, 20, 30))
    layer = ({"forward": 10, "backward": 20, UPDATE: 3},) * 4
    shape = replace(shape_of("gpipe", took), layers=(2, 2, 2, 2), layer_ns=layer)
    changed = shape.with_layers((1, 3, 3, 1)).took_ns
    assert [own["forward"] for own in changed] == [20, 30, 30, 20]
    assert [own[UPDATE] for own in changed] == [0, 3, 3, 0]
    assert shape.even_layers == shape.layers  # three units' work is the least that the slowest stage can have


def test_what_cannot_be_played(tmp_path: Path) -> None:
    """Without run.json the schedule is known by the order of its actions, if all stages are there."""
    played = pipeline_remedies(made_pipeline(tmp_path))
    assert played["setting"].tolist() == ["1f1b", "4", "8"]
    (tmp_path / "rank0.pt.trace.json.gz").unlink()
    assert pipeline_remedies(overlaplab.load_run(tmp_path)).empty
