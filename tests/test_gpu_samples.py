"""What the runs recorded on a GPU say: one rank of an emulated group of eight behind 100 Gbit/s and 10 µs."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest
from samples import TRACES, gpu_samples, sample_run, sample_tables

from overlaplab import collectives, schedule, summary
from overlaplab.analyses import peaks, transfer_lines
from overlaplab.costs.attained import link_attained
from overlaplab.evidence.dependencies import device_events
from overlaplab.sections.what_if import what_if_parts
from overlaplab.simulate import best_cap_mb
from overlaplab.simulate.predictions.answer import Question
from overlaplab.simulate.predictions.device import predict_device
from overlaplab.simulate.predictions.error import recorded_caps
from overlaplab.simulate.programs.setting import Setting

RUNS = [str(run.relative_to(TRACES)) for run in gpu_samples()]


def test_all_are_there() -> None:
    """Under 3 MB each."""
    named = {Path(name).name for name in RUNS}
    ours = {"naive", "per-param", "bucketed-cap-5", "bucketed-cap-25", "bucketed-cap-100", "zero1", "zero2", "zero3"}
    assert named >= ours | {"torch-ddp", "torch-fsdp2"}
    sweeps = [run.parent for run in TRACES.rglob("run.json") if run.parts[-4:-2] == ("h100", "sweep")]
    assert len(sweeps) == 16
    for run in [*(TRACES / name for name in RUNS), *sweeps]:
        assert sum(path.stat().st_size for path in run.iterdir()) < 3_000_000


@pytest.mark.parametrize("name", RUNS)
def test_the_link_was_attained(name: str) -> None:
    """But for per-param, whose host takes longer to launch some of its 102 collectives than they are to take."""
    manifest = sample_run(name).manifest
    assert manifest is not None
    assert link_attained(manifest) is (not name.endswith("per-param"))


@pytest.mark.parametrize("name", ["h100/naive", "h100/bucketed-cap-25", "h100/zero3", "h100/torch-fsdp2"])
def test_lines_through_the_transfers_are_the_link(name: str) -> None:
    """A ring of eight, though one rank alone has a trace: 10 µs per message, 12.5 GB/s."""
    lines = transfer_lines(sample_run(name))
    several = lines[lines["sizes"] > 1]
    assert len(several) > 0
    assert several["latency_ns"].tolist() == pytest.approx([10_000] * len(several), rel=0.03)
    assert several["bus_gb_per_s"].tolist() == pytest.approx([12.5] * len(several), rel=0.003)


def test_zero3_gathers_63_times_for_32_layers() -> None:
    rows = schedule(sample_run("h100/zero3"))
    layers = rows[rows["unit"].str.startswith("layers.")]
    assert layers.groupby("step").size().tolist() == [63, 63, 63]


def test_what_hides_communication() -> None:
    """Exposed in % of the median step, from waiting for each gradient to gathering ahead."""
    steps = {name: summary(sample_run(f"h100/{name}"))[["exposed_comm_ns", "span_ns"]].median() for name in NAMED}
    shares = {name: round(100 * row["exposed_comm_ns"] / row["span_ns"]) for name, row in steps.items()}
    assert shares == dict(zip(NAMED, (35, 4, 4, 7, 17, 7, 17, 2, 2, 7), strict=True))


NAMED = [
    *("naive", "per-param", "bucketed-cap-5", "bucketed-cap-25", "bucketed-cap-100"),
    *("torch-ddp", "zero1", "zero2", "zero3", "torch-fsdp2"),
]


def test_a_rank_holds_less_the_more_is_sharded() -> None:
    held = [int(peaks(sample_run(f"h100/zero{stage}"))["peak_bytes"].iloc[0]) for stage in (1, 2, 3)]
    assert held == sorted(held, reverse=True)


def test_zero1_is_told_to_send_during_the_backward_pass() -> None:
    """The engine's sends nothing before it is over. zero2 does: its steps are 54 ms shorter."""
    diagnosis = sample_tables("h100/zero1").diagnosis
    assert diagnosis is not None
    assert diagnosis.advice.startswith("Try sending buckets during the backward pass (strategy zero2), not after it")


CAPS = {"bucketed-cap-{}": (5, 25, 100), "sweep/cap-{}": (1, 5, 25, 100)}


@pytest.mark.parametrize(("runs", "cap"), [(runs, cap) for runs, caps in CAPS.items() for cap in caps])
def test_other_caps_are_predicted_as_they_were_recorded(runs: str, cap: int) -> None:
    """Within 2 % of the median step, from one recording of this cap; `pytest -s` prints the figures."""
    run = sample_run(f"h100/{runs.format(cap)}")
    for other in CAPS[runs]:
        played_ns = predict_device(run, Setting(bucket_cap_mb=other)).predicted_ns
        recorded_ns = median_of(runs.format(other))
        off = median(played_ns[0]) / recorded_ns - 1
        print(f"{runs.format(cap)} → {other} MiB: {median(played_ns[0]) / 1e6:.2f} ms, {off:+.1%}")
        assert abs(off) < 0.02


def median_of(name: str) -> float:
    """The median step of a cap's recordings, in ns."""
    again = [f"h100/{name}{repeat}" for repeat in ("", "-2", "-3", "-4") if (TRACES / f"h100/{name}{repeat}").exists()]
    return median(median(summary(sample_run(run))["span_ns"].tolist()) for run in again)


@pytest.mark.parametrize("name", ["h100/naive", "h100/torch-ddp", "h100/zero2", "h100/zero3", "h100/torch-fsdp2"])
def test_behind_its_own_link_a_run_is_played_as_recorded(name: str) -> None:
    """Each collective takes what the link's formula says for eight ranks, seven of which are phantoms."""
    run = sample_run(name)
    assert run.manifest is not None
    played = predict_device(run, Setting(link=run.manifest.link))
    assert played.predicted_ns[0] == pytest.approx(summary(run)["span_ns"].tolist(), rel=1e-4)


def test_a_collective_behind_the_link_is_one_event_of_its_stream() -> None:
    """Its first kernel, the copies for the peers, and the kernel that waits for T."""
    (trace,) = sample_run("h100/bucketed-cap-100").traces
    whole = [own for own in device_events(trace) if own.communicates]
    assert len(whole) == 9  # three buckets in three steps
    names = trace.events["name"]
    assert {names.iloc[own.row] for own in whole} == {"emulated_link_begin"}
    assert not any("emulated_link_wait" in names.iloc[own.row] for own in device_events(trace))
    rows = collectives(sample_run("h100/bucketed-cap-100"))
    assert sorted(own.end_ns - own.start_ns for own in whole) == sorted((rows["end_ns"] - rows["start_ns"]).tolist())


@pytest.mark.parametrize("name", ["bucketed-cap-100", pytest.param("torch-ddp", marks=pytest.mark.slow)])
def test_screens_name_one_cap(name: str) -> None:
    """The verdict, `advise` and What if; and What if shows no recordings by run.json, whose time is the host's."""
    run = sample_run(f"h100/{name}")
    cap = f"bucket_cap_mb {best_cap_mb(run):g}"
    diagnosis = sample_tables(f"h100/{name}").diagnosis
    assert diagnosis is not None
    assert cap in diagnosis.advice
    assert run.manifest is not None
    seen = recorded_caps(run.manifest, [run.manifest])
    assert seen.empty
    advice = what_if_parts(run, Question(setting=Setting()), seen, None).advice
    assert cap.replace(" ", "=") in advice or cap in advice
