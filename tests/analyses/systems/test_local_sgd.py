"""What a recording of local SGD shows: averages of parameters, in every so many steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks.warm_ranks import run_warm
from samples import sample_run

import overlaplab
from overlaplab.analyses import step_phases, volume, volume_theory
from overlaplab.evidence.step_kinds import step_kinds
from overlaplab.findings.diagnosis.step_kinds import kinds_finding
from overlaplab.simulate.advice.remedies import gains
from overlaplab.timeline.timeline import timeline_events

SAMPLE = "course/local-sgd"


def test_every_fourth_step_is_of_another_kind() -> None:
    run = sample_run(SAMPLE)
    assert step_kinds(run) == {step: int(step in (3, 7)) for step in range(1, 9)}
    assert "one step in 4 (3 and 7) with" in str(kinds_finding(overlaplab.summary(run), step_phases(run)))


def test_what_is_averaged_has_a_name_and_a_lane() -> None:
    run = sample_run(SAMPLE)
    table = overlaplab.exposed(run)
    assert {*table["what"]} == {"parameters of bucket 0"}
    assert {*table["kind"]} == {"all_reduce"}
    assert "rank 0 averages" in timeline_events(run).lanes["label"].tolist()


def test_it_sends_what_theory_says() -> None:
    run = sample_run(SAMPLE)
    theory = volume_theory(run)
    assert theory is not None
    assert theory.formula == "2Ψ/4"
    sent = volume(run).groupby("rank")["sent_bytes"].sum()
    assert (sent / 8).tolist() == [theory.sent_bytes] * 2
    (row,) = overlaplab.compare([run]).to_dict("records")
    assert row["sent_bytes"] == row["theory_sent_bytes"] == theory.sent_bytes


def test_waiting_a_step_later_gains_what_is_exposed() -> None:
    """Two of eight steps wait, and the next one computes for longer."""
    run = sample_run(SAMPLE)
    (gain,) = gains(run).set_index("remedy").loc[["background"], "gain_ns"]
    exposed_ns = overlaplab.summary(run)["exposed_comm_ns"].mean()
    assert gain == pytest.approx(exposed_ns, rel=0.15)


@pytest.mark.parametrize("background", [False, True])
def test_it_is_recorded(tmp_path: Path, background: bool) -> None:
    options = [
        *("--strategy", "local-sgd", "--every", "2", *(["--background"] * background), "--device", "cpu"),
        *("--layers", "1", "--width", "16", "--vocab", "20", "--seq", "8", "--warmup", "1", "--steps", "4"),
    ]
    for rank in run_warm(2, "-m", "overlaplab_engine", "--out", str(tmp_path / "run"), *options):
        assert (rank.code, rank.stderr) == (0, "")
    run = overlaplab.load_run(tmp_path / "run")
    assert run.manifest is not None
    assert (run.manifest.every, run.manifest.background) == (2, background)
    assert overlaplab.collectives(run)["step"].unique().tolist() == [1, 3]
