"""Recorded runs as programs: played as they are, they give the recorded steps."""

from __future__ import annotations

import gzip
import json
import shutil
from math import hypot
from pathlib import Path

import pytest
from made.gloo import ddp_over_gloo
from made.traces import op, run_of
from msgspec.structs import replace
from samples import sample_run, unlabelled, with_recorders_labels

import overlaplab
from overlaplab.events import step_windows
from overlaplab.simulate.advice.remedies import gains, remedies
from overlaplab.simulate.advice.tried import played_gain_half_ns, replayed_spans_ns
from overlaplab.simulate.player import End, Launch, Mark, Wait, Work, play
from overlaplab.simulate.programs import made_programs
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.programs.uncertainty import units_apart_ns
from overlaplab.simulate.recorded import recorded_programs
from overlaplab.simulate.undisturbed import mean_step_ns, recorded_spans_ns

SAMPLES = Path(__file__).parents[2] / "traces"
SITUATIONS = Path(__file__).parents[1] / "situations" / "recorded"
PLAYED = [
    *("naive", "per-param", "bucketed", "zero2", "zero3", "zero3-serial", "torch-ddp", "torch-fsdp2"),
    *(
        pytest.param(f"sweep/{folder.name}", marks=pytest.mark.slow if folder.name.count("-") > 1 else [])
        for folder in sorted((SAMPLES / "sweep").iterdir())
    ),
]
"""Of the sweep's recordings of one cap the second and further ones are repetitions."""


@pytest.mark.parametrize("name", [*PLAYED, "ring", "tensor", "dp-tp"])
def test_a_replay_gives_the_recorded_steps(name: str) -> None:
    """Within 0.1 %, by design 1 % in the mean."""
    run = sample_run(name)
    recorded = recorded_programs(run)
    assert recorded is not None
    played = play(recorded.programs)
    for rank, trace in enumerate(run.traces):
        took = [window.end_ns - window.start_ns for window in step_windows(trace)]
        assert played.spans_ns(rank) == pytest.approx(took, rel=0.001)


def test_a_replay_needs_no_labels_of_passes(tmp_path: Path) -> None:
    """The Recorder writes none around anybody's loop, nor when a bucket is done: torch's ranges tell."""
    run = overlaplab.load_run(with_recorders_labels("torch-ddp", tmp_path))
    replayed_ns = replayed_spans_ns(run)
    assert replayed_ns.size == 6
    assert replayed_ns == pytest.approx(recorded_spans_ns(run), rel=0.001)
    gains, labelled = (
        table.set_index("remedy")["gain_ns"] for table in (remedies(run), remedies(sample_run("torch-ddp")))
    )
    assert gains.to_dict() == pytest.approx(labelled.to_dict(), abs=0.01 * recorded_spans_ns(run).mean())


@pytest.mark.parametrize("name", PLAYED)
def test_without_communication_a_step_is_what_is_not_exposed(name: str) -> None:
    """So waiting is not taken for work: on a link that takes no time each rank works for as long as nothing was
    exposed. What the host did while communication was exposed (pauses, launches) stays.
    """
    run = sample_run(name)
    recorded = recorded_programs(run)
    assert recorded is not None
    spans = overlaplab.summary(run)
    causes = overlaplab.exposed(run)
    pauses = causes[causes["cause"] == "compute gap"].groupby("rank")["exposed_ns"].sum()
    for rank, program in enumerate(recorded.programs):
        own = spans[spans["rank"] == rank]
        begun = next(place for place, move in enumerate(program) if isinstance(move, End))
        worked = sum(move.ns for move in program[begun:] if isinstance(move, Work))
        alone = int((own["span_ns"] - own["exposed_comm_ns"]).sum())
        assert alone * 0.99 <= worked <= (alone + int(pauses.get(rank, 0))) * 1.06


def test_every_bucket_is_launched_and_waited_for() -> None:
    recorded = recorded_programs(sample_run("bucketed"))
    assert recorded is not None
    for program in recorded.programs:
        launched = [move.key for move in program if isinstance(move, Launch)]
        assert launched == [move.key for move in program if isinstance(move, Wait)]
    buckets = {move.what: move.bytes for move in recorded.programs[0] if isinstance(move, Launch)}
    assert sum(whole for _, whole in recorded.gradients.values()) == pytest.approx(sum(buckets.values()), rel=0.001)


def test_what_cannot_be_played_has_no_remedies() -> None:
    run = sample_run("pipeline")
    assert recorded_programs(run) is None
    assert remedies(run).empty
    assert gains(sample_run("dp-tp")).empty


def test_fsdp2_is_played_with_larger_units() -> None:
    assert {"larger_units", "half_the_bytes"} <= set(gains(sample_run("torch-fsdp2"))["remedy"])


def test_fsdp2_is_played_though_its_loop_ended_within_a_step(tmp_path: Path) -> None:
    """Ranges that follow the last whole step launch nothing in steps."""
    for path in (SAMPLES / "torch-fsdp2").glob("rank*.gz"):
        document = json.loads(gzip.decompress(path.read_bytes()))
        begun = [event for event in document["traceEvents"] if event["name"].startswith("ProfilerStep#")]
        document["traceEvents"].remove(max(begun, key=lambda event: float(event["ts"])))
        (tmp_path / path.stem).write_text(json.dumps(document))
    shutil.copy(SAMPLES / "torch-fsdp2" / "run.json", tmp_path)
    assert recorded_programs(overlaplab.load_run(tmp_path)) is not None


@pytest.mark.parametrize("name", ["torch-fsdp2", "11-fsdp2-tiny-units"])
def test_larger_units_are_one_play_whoever_asks(name: str) -> None:
    """As an action and as an edit; T of larger collectives is known of the one run, and unknown of the other."""
    run = sample_run(name if name == "torch-fsdp2" else SITUATIONS / name)
    action = gains(run).set_index("remedy").loc["larger_units"]
    together = f"{action['setting']:g}"
    programs = made_programs(run, Setting(edits=(("larger-units", together),)))
    assert round(mean_step_ns(run, play(programs).all_spans_ns())) == action["step_ns"]
    apart_ns = units_apart_ns(run, int(together), run.manifest.link if run.manifest else None)
    assert (apart_ns > 0) == (name != "torch-fsdp2")
    doubt_ns = played_gain_half_ns(run)
    assert doubt_ns is not None
    assert action["half_ns"] == round(hypot(doubt_ns, apart_ns))


def test_collectives_of_plain_gloo_do_not_queue(tmp_path: Path) -> None:
    """Its threads carry several at once. Without labels what they move is unknown, so that none is left out."""
    run = sample_run("torch-ddp-gloo")
    recorded = recorded_programs(run)
    assert recorded is not None
    assert not any(move.queues for program in recorded.programs for move in program if isinstance(move, Launch))
    replayed_ns = replayed_spans_ns(run)
    assert replayed_ns == pytest.approx(recorded_spans_ns(run), rel=0.01)
    plain = overlaplab.load_run(unlabelled(SAMPLES / "torch-ddp-gloo", tmp_path))
    assert replayed_spans_ns(plain).shape == replayed_ns.shape
    assert "leave_out" not in set(remedies(plain)["remedy"])


@pytest.mark.parametrize("name", ["bucketed", "zero3", "torch-ddp-gloo", "torch-fsdp2"])
def test_a_rank_alone_is_played_as_its_collectives_took(name: str) -> None:
    """The recorded steps come of it, and no edit that needs to know how long other collectives take."""
    run = sample_run(name)
    alone = replace(run, traces=run.traces[:1])
    assert replayed_spans_ns(alone) == pytest.approx(recorded_spans_ns(alone), rel=0.001)
    assert not {"cap", "half_the_bytes", "balance", "even_work", "larger_units"} & set(gains(alone)["remedy"])


def test_a_smaller_cap_gains_what_the_sweep_shows() -> None:
    """From a recording with one bucket: about 1 MiB is best, as in the sweep; the gain is what computation can hide."""
    table = remedies(sample_run("sweep/cap-25"))
    own = table[table["remedy"] == "cap"]
    assert set(own["setting"]) == {1.2}
    assert 0.15 < float((own["gain_ns"] / (own["gain_ns"] + own["step_ns"])).median()) < 0.25


@pytest.mark.parametrize("optimizer", [True, False])
@pytest.mark.parametrize("late_us", [0, 3000])
def test_ddp_that_nobody_labelled_waits_at_the_end_of_its_backward_pass(
    tmp_path: Path, late_us: float, optimizer: bool
) -> None:
    """Whether or not the thread of the second bucket could end its range in time, and the last step an optimizer."""
    (program,) = recorded_programs(run_of(tmp_path, ddp_over_gloo(late_us=late_us, optimizer=optimizer))).programs
    moves = [move for move in program if not isinstance(move, Work)]
    played = play([program])
    ends = {move.what: played.carried[move.key][1] / 1000 for move in moves if isinstance(move, Launch)}
    assert ends == pytest.approx({"0": 7000, "1": 14_010 if late_us else 14_000}, abs=11)
    words = [move.word if isinstance(move, Mark) else type(move).__name__ for move in moves]
    assert words[:4] == ["End", "forward", "forward_end", "backward"]
    passes = ["gradient", "Launch", "gradient", "Launch", "Wait", "Wait", "backward_end"]
    assert words[4:] == [*passes, *(["optimizer", "optimizer_end"] if optimizer else []), "End"]


def test_of_ddp_that_nobody_labelled_gradients_are_called_by_their_order(tmp_path: Path) -> None:
    recorded = recorded_programs(run_of(tmp_path, ddp_over_gloo()))
    assert recorded.gradients == {"gradient 1 (250)": (1000, 1000), "gradient 2 (500)": (2000, 2000)}
    other = ddp_over_gloo()
    accumulated = next(own for own in other if own["name"] == "torch::autograd::AccumulateGrad")
    accumulated["args"] = {}
    assert recorded_programs(run_of(tmp_path / "shapeless", other)).gradients == {}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_pause_before_a_launch_ends_no_collective(tmp_path: Path, ranks: int) -> None:
    """The host pauses for longer than the second bucket takes, less than 5 ms before that ends."""
    events = [
        own for own in ddp_over_gloo(second_ends_us=10_000) if not (own["name"] == "backward" and own["ts"] == 6100)
    ]
    events.append(op("backward", 7700, 8000))
    run = run_of(tmp_path, *[sorted(events, key=lambda own: float(own["ts"]))] * ranks)
    (program, *_) = recorded_programs(run).programs
    took = [move.transfer_ns for move in program if isinstance(move, Launch)]
    assert took == [2_990_000, 1_990_000]


def test_a_collective_has_one_end_whichever_rank_saw_it(tmp_path: Path) -> None:
    """One rank waits for bucket 0 at the end of its pass, and its thread is held up; the other one still computes."""
    waiting, computing = ddp_over_gloo(late_us=3000), ddp_over_gloo()
    took = []
    for name, order in (("one", (waiting, computing)), ("other", (computing, waiting))):
        programs = recorded_programs(run_of(tmp_path / name, *order)).programs
        took.append({move.what: move.transfer_ns for moves in programs for move in moves if isinstance(move, Launch)})
    assert took[0] == took[1]


def test_hops_by_hand_need_no_link(tmp_path: Path) -> None:
    """Their rows are not those of recorded collectives."""
    for path in (SAMPLES / "ring").glob("rank*"):
        shutil.copy(path, tmp_path)
    document = json.loads((SAMPLES / "ring" / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(document | {"link": None}))
    run = overlaplab.load_run(tmp_path)
    assert replayed_spans_ns(run) == pytest.approx(recorded_spans_ns(run), rel=0.01)
