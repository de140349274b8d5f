"""The schedule of a trace of torch's FSDP2, which writes its own ranges: one literal trace per rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made.fsdp import fsdp as made_fsdp
from made.traces import event, gloo, launched, op, run_of, step

import overlaplab
from overlaplab.analyses import gathered_bytes, held_limit, scatters, schedule_steps, volume
from overlaplab.findings import gathers_lead, schedule_notes
from overlaplab.vocabulary import fsdp2_range, layer_number, root_number, unit_of_root

Event = dict[str, Any]


def fsdp(word: str, unit: str, at: float, until: float, tid: int = 1) -> Event:
    return event(f"FSDP::{word}{f' ({unit})' if unit else ''}", at, until, cat="user_annotation", tid=tid)


def gathered(unit: str, at: float, took: float = 4) -> list[Event]:
    """A gather that blocks in its own range."""
    return [
        fsdp("all_gather", unit, at, at + took + 2),
        event("c10d::_allgather_base_", at + 0.5, at + 1),
        gloo(at + 1, at + 1 + took, kind="all_gather"),
    ]


def used(unit: str, at: float, backward: bool = False) -> list[Event]:
    """The copy that ends at 2, computation, and the end of the use at 5 to 6."""
    ends = ("post_backward_accumulate", "post_backward_reshard") if backward else ("post_forward",)
    return [
        fsdp("pre_backward" if backward else "pre_forward", unit, at, at + 3),
        fsdp("all_gather_copy_out", unit, at + 1, at + 2),
        op("mm", at + 3.5, at + 4.5),
        *(fsdp(word, unit, at + 5 + i / 2, at + 5.4 + i / 2) for i, word in enumerate(ends)),
    ]


def callback(at: float) -> Event:
    return fsdp("root_post_backward_callback", "", at, at + 2)


def rows(path: Path, events: list[Event], **keys: Any) -> list[dict[str, Any]]:
    table = overlaplab.schedule(run_of(path, events, **keys))
    assert set(table["source"]) == {"fsdp2"}
    return [{k: None if pd.isna(v) else v for k, v in row.items()} for row in table.to_dict("records")]


BLOCK = [*gathered("layers.0", 10), *used("layers.0", 20)]
AGAIN = [*gathered("layers.0", 40), *used("layers.0", 50, backward=True)]


def test_a_unit_gathered_again_was_freed_after_its_forward(tmp_path: Path) -> None:
    begun = fsdp("pre_backward", "", 35, 36)
    forward, backward = rows(tmp_path, [step(3, 0, 100), *BLOCK, begun, *AGAIN, callback(60)])
    assert forward == {
        "rank": 0,
        "step": 3,
        "unit": "layers.0",
        "layer": 0,
        "microbatch": 0,
        "phase": "forward",
        "gather_launch_ns": 10_000,
        "gather_start_ns": 11_000,
        "gather_end_ns": 15_000,
        "first_use_ns": 22_000,
        "last_use_ns": 25_000,
        "backward_first_use_ns": None,
        "backward_last_use_ns": None,
        "free_ns": 25_400,
        "free_phase": "forward",
        "resharded_bytes": None,
        "resharded_until_ns": 40_000,
        "wait_ns": 4_000,
        "bytes": None,
        "held_ns": 10_000,
        "source": "fsdp2",
    }
    assert (backward["phase"], backward["first_use_ns"], backward["last_use_ns"]) == ("backward", 52_000, 55_000)
    assert (backward["free_ns"], backward["free_phase"]) == (55_900, "backward")


def test_a_gather_within_pre_backward_is_one_again(tmp_path: Path) -> None:
    """Without prefetching, the gather for the backward pass is inside the unit's own range."""
    events = [e for e in AGAIN if "pre_backward" not in e["name"]]
    around = fsdp("pre_backward", "layers.0", 39, 53)
    forward, backward = rows(tmp_path, [step(3, 0, 100), *BLOCK, around, *events, callback(60)])
    assert (forward["free_phase"], forward["backward_first_use_ns"], forward["backward_last_use_ns"]) == (
        "forward",
        None,
        None,
    )
    assert (backward["phase"], backward["free_ns"]) == ("backward", 55_900)


def test_a_unit_not_gathered_again_was_kept_to_its_reshard(tmp_path: Path) -> None:
    events = [step(3, 0, 100), *BLOCK, *used("layers.0", 50, backward=True), callback(60)]
    (row,) = rows(tmp_path, [e for e in events if e["ts"] != 51])  # nothing to copy then
    assert (row["free_ns"], row["free_phase"], row["last_use_ns"]) == (55_900, "backward", 25_000)
    assert (row["backward_first_use_ns"], row["backward_last_use_ns"]) == (53_000, 55_000)


def test_a_forward_pass_alone_frees_if_the_next_one_gathers_again(tmp_path: Path) -> None:
    """As without gradients. No event shows that the last one was freed."""
    events = [step(3, 0, 100), *BLOCK, *gathered("layers.0", 40), *used("layers.0", 50)]
    first, second = rows(tmp_path, events)
    assert (first["free_ns"], second["free_ns"], second["phase"]) == (25_400, None, "forward")
    notes = schedule_notes(overlaplab.schedule(run_of(tmp_path / "again", events)))
    assert "for 1 of 2 gathers no event shows when they were freed: unknown" in notes
    assert "for 2 of 2 gathers no event shows their bytes: unknown" in notes


def test_a_unit_that_stays_gathered_over_microbatches_is_freed_in_the_last(tmp_path: Path) -> None:
    """`set_reshard_after_backward(False)`: the range exists, but frees nothing."""
    second = [{**e, "ts": e["ts"] + 100} for e in (*used("layers.0", 20), *used("layers.0", 50, backward=True))]
    events = [step(3, 0, 200), *BLOCK, *used("layers.0", 50, backward=True), callback(60), *second, callback(160)]
    later = [step(4, 200, 300), *({**e, "ts": e["ts"] + 200} for e in (*BLOCK, *AGAIN))]
    assert rows(tmp_path, [*events, *later])[0]["free_ns"] == 155_900


def test_microbatches_end_with_the_backward_pass_and_begin_anew_with_each_step(tmp_path: Path) -> None:
    once = [*gathered("a", 10), fsdp("pre_backward", "", 18, 19), *gathered("a", 20), callback(30)]
    events = [step(3, 0, 200), step(4, 200, 300), *once]
    events += [{**e, "ts": e["ts"] + shift} for e in once for shift in (100, 200)]
    found = [(row["step"], row["microbatch"], row["phase"]) for row in rows(tmp_path, events)]
    passes = ("forward", "backward")
    assert found == [(number, batch, p) for number, batch in [(3, 0), (3, 1), (4, 0)] for p in passes]


def test_an_asynchronous_gather_is_waited_for_where_it_is_copied_out(tmp_path: Path) -> None:
    events = [
        step(3, 0, 100),
        fsdp("all_gather", "layers.0", 10, 12),
        event("c10d::_allgather_base_", 10.5, 12),
        gloo(11, 27, kind="all_gather"),
        fsdp("all_gather_copy_out", "layers.0", 20, 28),
    ]
    (row,) = rows(tmp_path, events)
    assert (row["wait_ns"], row["first_use_ns"]) == (7_000, 28_000)


def test_a_range_that_launched_nothing_is_no_gather(tmp_path: Path) -> None:
    nothing = fsdp("all_gather", "layers.1", 70, 71)
    assert [row["unit"] for row in rows(tmp_path / "a", [step(3, 0, 100), *BLOCK, nothing])] == ["layers.0"]
    untold = [e for e in [*BLOCK, nothing] if not e["name"].startswith(("c10d", "gloo"))]
    found = rows(tmp_path / "b", [step(3, 0, 100), *untold])
    assert [(row["unit"], row["gather_end_ns"], row["wait_ns"]) for row in found] == [
        ("layers.0", None, None),
        ("layers.1", None, None),
    ]


def test_bytes_come_from_the_link_else_from_the_manifest(tmp_path: Path) -> None:
    units = [{"name": "layers.0", "bytes": 400, "parameters": []}, {"name": "head", "bytes": 60, "parameters": []}]
    told = {"units": [*units, {"name": "embedding", "bytes": 40, "parameters": []}]}
    events = [step(3, 0, 100), *BLOCK, *gathered("", 60)]
    assert [(row["unit"], row["bytes"]) for row in rows(tmp_path / "a", events, manifest=told)] == [
        ("layers.0", 400),
        ("root", 100),
    ]
    assert [row["bytes"] for row in rows(tmp_path / "b", events, manifest={"units": units[1:]})] == [None, None]
    linked = [
        step(3, 0, 100),
        fsdp("all_gather", "layers.0", 10, 12),
        event("engine::launch seq=4", 11, 12),
        event("engine::comm seq=4 kind=all_gather bytes=512", 13, 20, tid=7),
    ]
    (row,) = rows(tmp_path / "c", linked, manifest=told)
    assert (row["bytes"], row["gather_end_ns"]) == (512, 20_000)


def test_volume_of_what_only_the_manifest_tells(tmp_path: Path) -> None:
    units = [{"name": "layers.0", "bytes": 400, "parameters": []}, {"name": "root", "bytes": 100, "parameters": []}]
    reduced = [fsdp("post_backward_reduce", "", 80, 84), event("c10d::_reduce_scatter_base_", 81, 82), gloo(83, 84)]
    other = [event("c10d::allreduce_", 90, 91), gloo(92, 93)]
    run = run_of(
        tmp_path, [step(3, 0, 100), *BLOCK, *gathered("", 60), *reduced, *other], [], manifest={"units": units}
    )
    found = volume(run).to_dict("records")
    assert [(row["kind"], row["count"]) for row in found] == [
        ("all_gather", 2),
        ("reduce_scatter", 1),
        ("all_reduce", 1),
    ]
    assert [(row["bytes"], row["sent_bytes"]) for row in found[:2]] == [(500, 250), (100, 50)]
    assert pd.isna(found[2]["bytes"])
    assert scatters(run)["bytes"].tolist() == [100]


def test_on_a_gpu_the_stream_waits_where_it_copies_out(tmp_path: Path) -> None:
    events = [
        step(3, 0, 300),
        *launched("gemm", 4, 100, 200, correlation=1),
        fsdp("all_gather", "layers.0", 10, 15),
        *launched("copy_in", 11, 120, 130, stream=8, correlation=2),
        *launched("ncclDevKernel_AllGather", 12, 150, 260, stream=9, correlation=3),
        fsdp("all_gather", "layers.9", 16, 17),
        fsdp("all_gather_copy_out", "layers.0", 20, 25),
        *launched("split_with_sizes_copy", 21, 260, 270, correlation=4),
        *launched("gemm", 30, 270, 300, correlation=5),
        fsdp("post_forward", "layers.0", 40, 41),
    ]
    (row,) = rows(tmp_path, events, backend="nccl")
    times = ("gather_start_ns", "gather_end_ns", "first_use_ns", "last_use_ns", "wait_ns")
    assert [row[name] // 1000 for name in times] == [50, 160, 170, 200, 60]
    assert row["unit"] == "layers.0"


def test_on_a_gpu_frees_and_scatters_are_device_time(tmp_path: Path) -> None:
    """As torch records hybrid sharding: shards are reduce-scattered, then all-reduced between replicas."""

    def gather(at: float, start: float, number: int) -> list[Event]:
        return [
            fsdp("all_gather", "layers.0", at, at + 5),
            event("c10d::_allgather_base_", at + 1, at + 4),
            *launched("ncclDevKernel_AllGather_RING_LL", at + 2, start, start + 20, stream=9, correlation=number),
            fsdp("all_gather_copy_out", "layers.0", at + 6, at + 8),
        ]

    reduce = [
        fsdp("post_backward_reduce", "layers.0", 60, 70),
        event("c10d::_reduce_scatter_base_", 61, 63),
        *launched("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", 62, 400, 440, stream=10, correlation=7),
        event("c10d::allreduce_", 65, 67),
        *launched("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 66, 450, 480, stream=11, correlation=8),
    ]
    events = [
        step(3, 0, 100),
        *launched("gemm", 2, 100, 110, correlation=1),
        *gather(10, 110, 2),
        *launched("forward", 20, 130, 200, correlation=3),
        fsdp("post_forward", "layers.0", 25, 26),
        *launched("loss", 30, 200, 210, correlation=4),
        fsdp("pre_backward", "layers.0", 35, 50),
        *gather(36, 215, 5),
        *launched("backward", 52, 240, 390, correlation=6),
        fsdp("post_backward_accumulate", "layers.0", 54, 55),
        fsdp("post_backward_reshard", "layers.0", 56, 57),
        *reduce,
        callback(80),
    ]
    forward, backward = rows(tmp_path, events, backend="nccl")
    times = ("gather_start_ns", "gather_end_ns", "first_use_ns", "last_use_ns", "free_ns")
    assert [forward[name] // 1000 for name in times] == [10, 30, 30, 100, 100]
    assert [backward[name] // 1000 for name in times] == [115, 135, 140, 290, 290]
    assert (forward["free_phase"], backward["free_phase"]) == ("forward", "backward")
    (scatter,) = scatters(run_of(tmp_path / "again", events, backend="nccl")).to_dict("records")
    assert (scatter["start_ns"], scatter["end_ns"]) == (300_000, 340_000)


def test_scatters_are_recognised_by_their_range(tmp_path: Path) -> None:
    events = [
        step(3, 0, 100),
        *AGAIN,
        fsdp("post_backward_reduce", "layers.0", 57, 60),
        event("c10d::_reduce_scatter_base_", 57.5, 58),
        gloo(58, 59),
        callback(62),
        fsdp("post_backward_reduce", "", 62.5, 63.5),  # the root's, within the callback
        event("c10d::_reduce_scatter_base_", 63, 63.2),
        gloo(63.3, 70),
    ]
    table = scatters(run_of(tmp_path, events))
    assert table[["unit", "microbatch", "launch_ns", "start_ns", "end_ns"]].to_numpy().tolist() == [
        ["layers.0", 0, 57_000, 58_000, 59_000],
        ["root", 0, 62_500, 63_300, 70_000],
    ]
    assert table["bytes"].isna().all()


def test_scatters_count_microbatches_anew_with_each_step(tmp_path: Path) -> None:
    once = [fsdp("post_backward_reduce", "a", 10, 11), callback(20)]
    events = [step(3, 0, 200), step(4, 200, 300), op("mm", 0, 1), *once]
    events += [{**e, "ts": e["ts"] + shift} for e in once for shift in (100, 200)]
    table = scatters(run_of(tmp_path, events))
    assert table[["step", "microbatch"]].to_numpy().tolist() == [[3, 0], [3, 1], [4, 0]]


def sized(events: list[Event], ranks: int, elements: int = 12) -> list[Event]:
    """The gathers among these ranks, with the shapes that the profiler records."""
    dims = {"Input Dims": [[elements], [elements // ranks]], "Input type": ["float", "float"]}
    return [e | {"args": dims} if e["name"] == "c10d::_allgather_base_" else e for e in events]


def test_a_unit_resharded_to_fewer_ranks_stays_held_in_part(tmp_path: Path) -> None:
    """As torch records `reshard_after_forward=2` on four ranks: the backward gather is among two of them."""
    begun, later = fsdp("pre_backward", "", 35, 36), [e | {"ts": e["ts"] + 100} for e in sized(BLOCK, 4)]
    events = [*sized(BLOCK, 4), begun, *sized(AGAIN, 2), callback(60), *later]
    table = overlaplab.schedule(run_of(tmp_path, [step(3, 0, 100), step(4, 100, 200), *events]))
    assert table["bytes"].tolist() == [48, 48, 48]
    assert table["resharded_bytes"].tolist() == [24, 0, 0]
    assert table["resharded_until_ns"].tolist() == [40_000, pd.NA, pd.NA]
    curve = gathered_bytes(table[table["step"] == 3])[["time_ns", "bytes", "resharded_bytes", "layers"]]
    assert curve.to_numpy().tolist() == [
        [0, 0, 0, 0],
        [10_000, 48, 0, 1],
        [25_400, 24, 24, 0],
        [40_000, 48, 0, 1],
        [55_900, 0, 0, 0],
    ]
    assert schedule_steps(table)["partial_frees"].tolist() == [1, 0]
    assert any(
        "freed but for 1/2 of it" in note and "reshard_after_forward=2" in note for note in schedule_notes(table)
    )
    assert held_limit(table, 1) is None
    assert "1 free in part. At most 48 B (1 layer in full) held at a time, with the parts" in gathers_lead(
        table[table["step"] == 3], ""
    )


def test_on_a_gpu_a_part_is_held_until_the_device_comes_to_the_next_gather(tmp_path: Path) -> None:
    """Or not at all, where that is counted from before the free: layer 2's, as the next one is gathered at once."""
    events, backward = [], False
    for own in sorted(made_fsdp(1, steps=1), key=lambda own: own["ts"]):
        backward |= own["name"].startswith("FSDP::pre_backward")
        dims = [[1_000_000], [500_000 if backward else 250_000]]
        is_gather = own["name"] == "c10d::_allgather_base_"
        events.append(own | {"args": own["args"] | {"Input Dims": dims}} if is_gather else own)
    table = overlaplab.schedule(run_of(tmp_path, events, backend="nccl"))
    forward, again = table[table["resharded_bytes"] > 0], table[table["phase"] == "backward"].iloc[::-1]
    assert forward["unit"].tolist() == again["unit"].tolist() == ["layers.0", "layers.1", "layers.2"]
    assert set(forward["resharded_bytes"]) == {2_000_000}
    assert forward["resharded_until_ns"].tolist() == [*again["held_ns"][:2], forward["free_ns"].iloc[2]]
    assert schedule_steps(table)["peak_gathered_bytes"].tolist() == [16_000_000]


def test_without_group_sizes_no_peak_is_made_up(tmp_path: Path) -> None:
    """Bytes alone, as a Recorder's run.json tells them, do not tell whether half of the unit stayed."""
    begun, units = fsdp("pre_backward", "", 35, 36), [{"name": "layers.0", "bytes": 48, "parameters": []}]
    events = [step(3, 0, 100), *BLOCK, begun, *AGAIN, callback(60)]
    recorder = {"units": units, "command": "python train.py"}
    table = overlaplab.schedule(run_of(tmp_path / "a", events, manifest=recorder))
    assert schedule_steps(table)["peak_gathered_bytes"].isna().all()
    assert "for 1 of 2 gathers no event shows whether a part stayed held: unknown" in schedule_notes(table)
    engine = {"units": units, "command": "overlaplab record"}
    table = overlaplab.schedule(run_of(tmp_path / "b", events, manifest=engine))
    assert schedule_steps(table)["peak_gathered_bytes"].tolist() == [48]


def three_roots(at: int) -> list[Event]:
    """Three blocks' forward passes and their backward pass: each block is a root, gathered once."""
    forward, backward = [], []
    for place in range(3):
        begin = at + 20 * place
        root = fsdp("root_pre_forward", "", begin, begin + 0.5)
        forward += [root, *sized(gathered("", begin + 3), 2), *used("", begin + 10)]
        begin = at + 60 + 10 * place
        backward += [e for e in used("", begin, backward=True) if e["ts"] != begin + 1]  # nothing is copied then
        backward.append(callback(at + 90 + 3 * place))
    return [*forward, *backward]


def test_blocks_that_are_roots_are_units_of_their_own(tmp_path: Path) -> None:
    """Each is freed in the backward pass, the last one first; the callbacks, one for each root, end one microbatch."""
    events = [step(3, 0, 100), step(4, 100, 200), *three_roots(0), *three_roots(100)]
    table = overlaplab.schedule(run_of(tmp_path, events))
    assert table["unit"].tolist() == ["root 0", "root 1", "root 2"] * 2
    assert table["microbatch"].tolist() == [0] * 6
    assert table["free_ns"].tolist() == [85_900, 75_900, 65_900] * 2
    assert set(table["free_phase"]) == {"backward"}
    assert schedule_steps(table)["peak_gathered_bytes"].tolist() == [3 * 48] * 2


def test_roots_whose_callbacks_are_not_recorded_give_no_number(tmp_path: Path) -> None:
    """Nothing tells then how many units `root` is, but that one unit cannot be gathered so."""
    alone = [e for e in three_roots(0) if "callback" not in e["name"]]
    table = overlaplab.schedule(run_of(tmp_path, [step(3, 0, 100), *alone, callback(97)]))
    assert set(table["unit"]) == {"root"}
    assert table["free_ns"].isna().all()
    (counted,) = schedule_steps(table).to_dict("records")
    assert (counted["gathers"], counted["frees"]) == (3, 0)
    assert pd.isna(counted["peak_gathered_bytes"])
    assert gathered_bytes(table)["bytes"].isna().all()


def test_two_groups_of_one_name_are_not_one_unit(tmp_path: Path) -> None:
    """A module with two groups of parameters on meshes of one size: torch gives both the same name."""
    both = "layers.0 [pg=2]"
    events = [step(3, 0, 100), *sized([*gathered(both, 10), *gathered(both, 17)], 2), *used(both, 24)]
    table = overlaplab.schedule(run_of(tmp_path, [*events, *used(both, 50, backward=True), callback(60)]))
    assert table["free_ns"].isna().all()
    (counted,) = schedule_steps(table).to_dict("records")
    assert pd.isna(counted["peak_gathered_bytes"])
    assert pd.isna(counted["peak_layers"])
    assert "How much was held at a time is unknown." in gathers_lead(table, "")


@pytest.mark.parametrize(
    ("unit", "root", "name"),
    [
        ("root", 1, "root 1"),
        ("root [pg=4]", 1, "root 1 [pg=4]"),
        ("layers.3", 0, "root 0.layers.3"),
        ("0", 12, "root 12.0"),
    ],
)
def test_names_of_units_of_several_roots(unit: str, root: int, name: str) -> None:
    assert unit_of_root(unit, root) == name
    assert root_number(name) == root
    assert layer_number(name) == layer_number(unit)
    assert root_number(unit) is None


@pytest.mark.parametrize(
    ("name", "word", "unit"),
    [
        ("FSDP::all_gather (model.layers.3)", "all_gather", "model.layers.3"),
        ("FSDP::all_gather", "all_gather", "root"),
        ("FSDP::all_gather (layers.3._checkpoint_wrapped_module)", "all_gather", "layers.3"),
        ("FSDP::post_forward (_orig_mod.layers.3)", "post_forward", "layers.3"),
        ("FSDP::pre_backward (layers.3) [pg=4]", "pre_backward", "layers.3 [pg=4]"),
        ("FSDP::all_gather (norm, head)", "all_gather", "norm, head"),
        ("FSDP::root_pre_forward", "root_pre_forward", "root"),
        ("FSDP::root_post_backward_callback", "root_post_backward_callback", "root"),
    ],
)
def test_ranges_of_fsdp2(name: str, word: str, unit: str) -> None:
    assert fsdp2_range(name) == (word, {"unit": unit})


@pytest.mark.parametrize("name", ["FSDP::backward_prefetch for layers.3", "FSDP::inputs_to_device", "all_gather", ""])
def test_ranges_outside_the_schedule_are_ignored(name: str) -> None:
    assert fsdp2_range(name) is None


@pytest.mark.parametrize(
    ("unit", "layer"),
    [("layers.3", 3), ("12", 12), ("a.layers.3 [pg=4]", 3), ("layers.3.mlp", None), ("head", None), ("h3", None)],
)
def test_a_layer_is_what_ends_in_a_number(unit: str, layer: int | None) -> None:
    assert layer_number(unit) == layer
