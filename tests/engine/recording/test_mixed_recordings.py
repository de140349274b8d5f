"""Recordings in mixed precision: what run.json says, and that bytes follow each collective's own type."""

import json
from pathlib import Path

import pytest
from overlaplab_engine.cli import main
from ranks.warm_ranks import run_warm

import overlaplab
from overlaplab.analyses import memory, volume, volume_theory

TINY = ["--device", "cpu", "--layers", "3", "--width", "32", "--seq", "8", "--vocab", "50", "--batch", "2"]
TINY += ["--steps", "1", "--warmup", "1", "--nproc", "2"]
PARAMETERS = 50 * 32 + 8 * 32 + 3 * (12 * 32 * 32 + 13 * 32) + 2 * 32 + 50 * 32


@pytest.mark.parametrize(
    ("strategy", "reduce", "formula", "kept"),
    [
        pytest.param(
            "zero3",
            "float32",
            "3Ψ − layers.2 − embedding − head, parameters in bfloat16, gradients in float32",
            1,
            marks=pytest.mark.slow,
        ),
        ("zero3", None, "3Ψ − layers.2 − embedding − head, parameters in bfloat16, gradients in bfloat16", 1),
        pytest.param(
            "torch-fsdp2",
            "float32",
            "3Ψ − root, parameters in bfloat16, gradients in float32",
            0,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_bytes_follow_each_collectives_type(
    strategy: str, reduce: str | None, formula: str, kept: int, tmp_path: Path
) -> None:
    options = ["--param-dtype", "bfloat16", *(["--reduce-dtype", reduce] if reduce else [])]
    command = ["-m", "overlaplab_engine", "--strategy", strategy, *TINY, *options]
    for rank in run_warm(2, *command, "--out", str(tmp_path)):
        assert rank.code == 0, rank.stderr
    document = json.loads((tmp_path / "run.json").read_text())
    assert (document["param_dtype"], document["reduce_dtype"]) == ("bfloat16", reduce)
    assert {p["dtype"] for p in document["parameters"]} == {"float32"}
    assert sum(p["bytes"] for p in document["parameters"]) == 4 * PARAMETERS
    units = {unit["name"]: unit["bytes"] for unit in document["units"]}
    assert sum(units.values()) == 2 * PARAMETERS
    run = overlaplab.load_run(tmp_path, cache=False)
    theory = volume_theory(run)
    assert theory is not None
    once = sum(size for name, size in units.items() if not name.startswith("layers.") or (kept and name == "layers.2"))
    gathered, reduced = 2 * 2 * PARAMETERS - once, (4 if reduce else 2) * PARAMETERS
    assert theory.sent_bytes == (gathered + reduced) // 2
    assert sorted(theory.formula.replace(",", " −,").split(" − ")) == sorted(formula.replace(",", " −,").split(" − "))
    table = volume(run)
    for kind, want in (("all_gather", gathered), ("reduce_scatter", reduced)):
        sent = table[table["kind"] == kind].set_index("rank")["bytes"]
        assert sent.tolist() == pytest.approx([want, want], rel=0.01)  # with padding
    held = memory(run)
    assert held["formula"].tolist() == ["4Ψ/N", "4Ψ/N", "8Ψ/N"] * 2
    assert held["bytes"].tolist() == pytest.approx(held["formula_bytes"].tolist(), rel=0.02)


def test_options_that_do_not_fit_are_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for options, line in {
        ("--strategy", "bucketed", "--param-dtype", "bfloat16"): (
            "--param-dtype and --reduce-dtype are for zero3 and torch-fsdp2"
        ),
        ("--strategy", "zero3", "--reduce-dtype", "half"): (
            "--reduce-dtype 'half' is none of float32, bfloat16, float64"
        ),
        ("--strategy", "zero3", "--dtype", "bfloat16", "--main-grad", "--param-dtype", "bfloat16"): (
            "--main-grad goes without --param-dtype and --reduce-dtype, with which shards and their gradients keep the "
            "parameters' type; leave it out"
        ),
    }.items():
        assert main([*options, *TINY, "--out", str(tmp_path / "run")]) == 2
        assert capfd.readouterr().err == f"overlaplab record: {line}\n"
