"""Meshes of several axes, as the engine runs them: their recordings, played again, take as long as they took."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest
from ranks.warm_ranks import run_warm

import overlaplab
from overlaplab.simulate.player import Launch, play
from overlaplab.simulate.predictions.error import measured_steps
from overlaplab.simulate.programs import all_programs
from overlaplab.simulate.programs.setting import Setting

COMMON = (
    *("--device", "cpu", "--layers", "2", "--width", "64", "--vocab", "64", "--seq", "8", "--batch", "1"),
    *("--steps", "2", "--warmup", "2", "--attempts", "1", "--compute", "sleep:4ms,8ms,1ms", "--link", "0.1Gbps,1000us"),
)
SCRIPT = Path(__file__).parents[2] / "support" / "programs" / "patient_ranks.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "roles"),
    [
        (("--strategy", "tensor", "--dp", "2", "--tp", "2", "--sequence-parallel"), {"", "activations", "bucket"}),
        (("--strategy", "zero3", "--hsdp", "2x2"), {"", "gather", "scatter", "replicas"}),
        (("--strategy", "torch-fsdp2", "--hsdp", "2x2"), {"gather", "scatter", "replicas"}),
    ],
    ids=["tensor", "zero3", "torch-fsdp2"],
)
def test_a_recorded_mesh_is_played_again(options: tuple[str, ...], roles: set[str], tmp_path: Path) -> None:
    """Within 5 % in the mean; zero3's within 15 %: groups that ask for a link at nearly the same time may take it in
    either order, and its groups often do.
    """
    for rank in run_warm(4, str(SCRIPT), json.dumps([[*COMMON, *options, "--out", str(tmp_path / "run")]])):
        assert rank.code == 0, rank.stderr
    run = overlaplab.load_run(tmp_path / "run")
    programs = all_programs(run, Setting())
    played = play(programs)
    replayed = played.all_spans_ns().mean()
    often = "replicas" in roles and "" in roles
    assert replayed == pytest.approx(fmean(measured_steps(run)), rel=0.15 if often else 0.05)
    assert {move.role for program in programs for move in program if isinstance(move, Launch)} == roles
