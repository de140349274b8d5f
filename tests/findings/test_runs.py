"""The description of a run in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from made.traces import op, run_of
from msgspec.structs import replace
from samples import sample_run

from overlaplab.costs import attained_steps, link_attained
from overlaplab.findings import comparison_note, describe_settings, link_note, note, run_title
from overlaplab.findings.runs import describe_link, link_missed, links_note
from overlaplab.manifest import Link, LinkStep, MachineStep, Manifest

LINK = Link(emulated=True, bandwidth_gbps=1.0, latency_us=200.0, world_size=2)


def test_the_note_names_the_emulated_link_and_what_it_missed() -> None:
    fields: dict[str, Any] = {
        "format_version": 1,
        "strategy": "bucketed",
        "device": "cpu",
        "backend": "gloo",
        "world_size": 2,
        "bucket_cap_mb": 25.0,
    }
    link = Link(emulated=True, bandwidth_gbps=1.0, latency_us=200.0, world_size=2)
    said = "bucketed, 2 ranks, cpu, bucket_cap_mb 25"
    assert note(None) is None
    assert note(Manifest(**fields)) == said
    assert note(Manifest(**fields, link=link)) == f"{said}, emulated link 1Gbps,200us"
    missed = note(Manifest(**fields, link=link, link_attained=False))
    assert missed == f"{said}, emulated link 1Gbps,200us, link not attained"
    assert link_note(Manifest(**fields)) is None
    assert link_note(Manifest(**fields, link=link, link_attained=False)) == (
        "emulated link 1Gbps,200us, link not attained"
    )


def test_steps_that_missed_the_link_are_named() -> None:
    fields: dict[str, Any] = {"format_version": 1, "world_size": 2, "link": LINK, "link_attained": True}

    def steps(*ratios: float, latest_ns: int = 0) -> tuple[LinkStep, ...]:
        return tuple(
            LinkStep(
                rank=rank,
                step=2 + place,
                modelled_ns=10_000_000,
                occupied_ns=int(10_000_000 * (ratio if rank else 1)),
                latest_ns=latest_ns,
                took_ns=100_000_000,
            )
            for rank in (0, 1)
            for place, ratio in enumerate(ratios)
        )

    good = Manifest(**fields, link_steps=steps(1.05, 1, 1, latest_ns=10_000_000))
    assert (link_missed(good), describe_link(good), link_attained(good)) == (None, "emulated link 1Gbps,200us", True)
    some = Manifest(**fields, link_steps=steps(1, 1, 1.06, 1, latest_ns=500_000))
    assert link_attained(some)
    assert describe_link(some) == "emulated link 1Gbps,200us, link not attained in step 4"
    assert link_missed(some) == (
        "link not attained in step 4 (1.060 × the modelled time, one collective 0.5 ms late): figures of all steps "
        "include it; `--step 2 --step 3 --step 5` leaves it out"
    )
    many = Manifest(**fields, link_steps=steps(*(1.06 if step % 4 == 3 else 1 for step in range(40))))
    assert describe_link(many).endswith("link not attained in steps 5, 9, 13, 17, 21, 25, 29, 33, … (10 in all)")
    assert (link_missed(many) or "").endswith("6 more: figures of all steps include it; `--step` chooses others")
    stalled = Manifest(**fields, link_steps=steps(1, 1, 1, latest_ns=10_000_001))
    assert link_attained(stalled) is False
    assert (links_note([stalled]) or "").endswith("link not attained in some runs")
    short = Manifest(**fields, link_steps=steps(1, 1, 1.2))
    assert [(step.step, step.ratio, step.attained) for step in attained_steps(short)] == [
        (2, 1.0, True),
        (3, 1.0, True),
        (4, 1.2, False),
    ]
    assert link_missed(short) == (
        "link not attained in step 4 (1.200 × the modelled time, one collective 0.0 ms late): 3 of 3 steps must attain "
        "it and 2 did, so that communication took longer than the link says; record on a quieter machine, or with a "
        "slower --link"
    )


def test_the_note_has_the_prefetch_depth_of_a_run_that_gathers() -> None:
    fields: dict[str, Any] = {"format_version": 1, "device": "cpu", "backend": "gloo", "world_size": 4}
    assert note(Manifest(**fields, strategy="zero3", prefetch=0)) == "zero3, 4 ranks, cpu, prefetch 0"
    assert note(Manifest(**fields, strategy="zero2", bucket_cap_mb=1.5)) == "zero2, 4 ranks, cpu, bucket_cap_mb 1.5"


def test_the_links_of_several_runs() -> None:
    fields: dict[str, Any] = {"format_version": 1, "strategy": "zero3", "world_size": 8}
    slow, fast = (Link(emulated=True, bandwidth_gbps=rate, latency_us=9.0, world_size=8) for rate in (1.0, 10.0))
    plain, at_slow = Manifest(**fields), Manifest(**fields, link=slow)
    assert links_note([None, plain]) is None
    assert links_note([at_slow, at_slow]) == "emulated link 1Gbps,9us"
    missed = Manifest(**fields, link=fast, link_attained=False)
    assert links_note([missed, at_slow, plain]) == (
        "emulated link 10Gbps,9us or 1Gbps,9us, link not attained in some runs"
    )
    alone = Manifest(**fields, link=slow, phantom_ranks=(1, 2, 3, 4, 5, 6, 7))
    group = "one rank of an emulated group of 8 (peers are phantoms)"
    assert links_note([alone]) == f"emulated link 1Gbps,9us, {group}"
    assert links_note([alone, at_slow]) == f"emulated link 1Gbps,9us, in some runs {group}"


def test_settings(tmp_path: Path) -> None:
    manifest = {
        "bucket_cap_mb": 5,
        "prefetch": 2,
        "accumulate": 4,
        "overlap_param_gather": False,
        "keep_last": True,
        "checkpointing": True,
        "main_grad": True,
    }
    run = run_of(tmp_path / "a", [op("mm", 0, 100)], manifest=manifest)
    assert describe_settings(run.manifest) == (
        "cap 5 MiB, prefetch 2, 4 microbatches, gathers before forward, last layer kept, checkpointing, fp32 gradients"
    )
    plain = {"bucket_cap_mb": None, "accumulate": 1, "overlap_param_gather": True, "keep_last": False}
    run = run_of(tmp_path / "b", [op("mm", 0, 100)], manifest=plain | {"checkpointing": False})
    assert describe_settings(run.manifest) == "gathers in forward, last layer freed"
    assert describe_settings(None) == ""


def test_a_sleeping_device_is_always_named(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"format_version": 1, "strategy": "zero3", "device": "cpu", "world_size": 2}
    asleep = Manifest(**fields, compute="sleep")
    assert note(asleep) == "zero3, 2 ranks, sleeping device"
    assert link_note(asleep) == "sleeping device"
    behind = Manifest(**fields, compute="sleep", link=LINK)
    assert link_note(behind) == "sleeping device, emulated link 1Gbps,200us"
    assert links_note([behind, behind]) == "sleeping device, emulated link 1Gbps,200us"
    awake = Manifest(**fields, compute="real", link=LINK)
    assert links_note([behind, awake]) == "in some runs sleeping device, emulated link 1Gbps,200us"
    assert link_note(awake) == "emulated link 1Gbps,200us"
    run = run_of(tmp_path, [op("mm", 0, 9)], manifest={"strategy": "zero3", "compute": "sleep"})
    assert run_title(run).endswith(": zero3, 1 rank, sleeping device")


def test_runs_side_by_side_name_the_steps_of_a_busy_machine() -> None:
    run = sample_run("bucketed")
    assert run.manifest is not None
    busy = (MachineStep(rank=0, step=2, took_ns=100, cores=2, busy=True, delayed_ns=30),)
    loaded = replace(run, path="runs/loaded", manifest=replace(run.manifest, machine=busy))
    note = comparison_note([run, loaded])
    assert note is not None
    assert note.endswith("; machine busy in step 2 of loaded")
    assert comparison_note([replace(run, manifest=None)]) is None
