"""`overlaplab plan`: what it prints, and what it says of bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

TRACES = Path(__file__).parents[2] / "traces"
RUN = TRACES / "sweep" / "cap-25"
"""2 ranks, 2 layers of width 256, sequences of 64, 16 in a microbatch."""
BUSY = [{"rank": 0, "step": step, "took_ns": 9, "cores": 2, "busy": True, "delayed_ns": 6} for step in range(20)]
"""Of run.json's `machine`: a machine on which computation waited for a core for most of each step."""
MODEL = (
    *("--layers", "32", "--width", "4096", "--seq", "4k", "--microbatch", "2", "--tokens", "4M"),
    *("--gpus", "128", "--gpu-memory", "80GB"),
)


def test_the_first_stage_that_fits_is_advised(command: Any) -> None:
    code, out, _ = command("plan", *MODEL)
    assert code == 0
    said = " ".join(out.split())
    assert "2 × 4 × 128 GPUs = 1,024 sequences of 4,096" in said
    assert "ZeRO stage 1 fits: 64.3 GB of 80.0 GB per GPU." in said


def test_json_has_the_arithmetic(command: Any) -> None:
    code, out, _ = command("plan", *MODEL, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["layer_parameters"] == 12 * 4096**2 + 13 * 4096
    assert found["batch"] == {
        "seq": 4096,
        "microbatch": 2,
        "accumulate": 4,
        "ranks": 128,
        "samples": 1024,
        "tokens": 4 * 1024**2,
    }
    assert [row["fits_from"] for row in found["stages"]] == [None, 6, 4, 3]
    assert all(
        row["total_bytes"]
        == sum(row[f"{part}_bytes"] for part in ("parameters", "gradients", "optimizer", "activations"))
        for row in found["stages"]
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--params 7B --gpu-memory 100GB --gpus 2", "ZeRO stage 1 fits: 70.0 GB of 100 GB per GPU."),
        ("--params 7B --gpu-memory 120GB --gpus 2", "Plain data parallelism fits"),
        ("--params 7B --gpu-memory 1GB --gpus 2", "It fits from 112 GPUs with ZeRO stage 3, not on 2."),
        ("--layers 2 --width 1024 --microbatch 64 --gpu-memory 100MB", "try a smaller microbatch or checkpointing"),
        ("--params 7B", "Name the GPU's memory"),
        ("--params 7B --layers 32 --width 4096", "7B parameters"),
        ("--params 7.6B --layers 28 --width 3584 --vocab 152064", "7.6B parameters"),
        ("--params 999.9M", "1B parameters"),
        ("--params 15000B", "15T parameters"),
        ("--params 10 --seq 1 --gpus 1 --tokens 2", "It takes 120 FLOP, 120 FLOP on each GPU."),
        ("--params 162700 --seq 1k --gpus 1 --tokens 1k", "It takes 1 GFLOP, 1 GFLOP on each GPU."),
    ],
)
def test_what_to_try(command: Any, options: str, said: str) -> None:
    code, out, _ = command("plan", *options.split())
    assert code == 0
    assert said in " ".join(out.split()).replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "the model is unknown"),
        ("--layers 32", "the model is unknown. Give --params 7B, or --layers 32 --width 4096."),
        ("--params 7B --layers 32", "the model's sizes are incomplete. Give --layers and --width together."),
        ("--params 7B --layers 2 --width 64 --heads 1", "--params 7,000,000,000: the model's sizes make 6,"),
        ("--params 7X", "--params 7X: not a number"),
        ("--params 7B --gpus 3 --tokens 4M", "do not divide among 3 GPUs"),
        ("--layers 2 --width 100 --heads 3", "no multiple of --heads 3"),
        ("--params 7B --precision fp8", "--precision fp8: not known. There are fp32, bf16"),
        ("--params 0", "--params 0: not a positive number"),
    ],
)
def test_bad_input_is_one_line(command: Any, options: str, said: str) -> None:
    code, _, error = command("plan", *options.split())
    assert code == 2
    assert said in error
    assert error.count("\n") == 1


def test_the_step_is_that_of_predict(command: Any) -> None:
    code, out, err = command("plan", "--from", RUN, "--gpus", 4, "--tokens", 3 * 4 * 16 * 64, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    expected = json.loads(command("predict", RUN, "--ranks", 4, "--accumulate", 3, "--json")[1])
    found = document["predicted"]
    assert found["step_ns"] == expected["predicted"]["step_ns"] != expected["recorded"]["step_ns"]
    assert found["interval"] == expected["interval"]
    assert found["extrapolated"] == expected["extrapolated"]
    assert document["batch"]["tokens"] == 12_288
    assert found["tokens_per_s"] == pytest.approx(12_288 / (found["step_ns"] / 1e9))
    assert [found[name] for name in ("hours", "gpu_hours", "cost")] == [None] * 3


def test_what_is_not_given_is_as_recorded(command: Any) -> None:
    document = json.loads(command("plan", "--from", RUN, "--json")[1])
    found = document["batch"]
    assert (found["seq"], found["microbatch"], found["accumulate"], found["ranks"]) == (64, 16, 1, 2)
    assert (document["parameters"], document["precision"]) == (1_852_416, "fp32")
    assert document["predicted"]["extrapolated"] == {}
    given = ("--layers", 2, "--width", 256, "--heads", 4, "--vocab", 500, "--seq", 64, "--microbatch", 16)
    same = command("plan", "--from", RUN, *given, "--precision", "fp32", "--gpus", 2, "--json")[1]
    assert json.loads(same) == document
    assert json.loads(command("plan", *MODEL, "--json")[1])["predicted"] is None


def test_hours_and_cost(command: Any) -> None:
    goal = ("--gpus", 4, "--train-tokens", "3B", "--price-per-gpu-hour", "2.5")
    code, out, _ = command("plan", "--from", RUN, *goal, "--json")
    assert code == 0
    found = json.loads(out)["predicted"]
    hours = 3e9 / 4096 * found["step_ns"] / 1e9 / 3600
    assert found["hours"] == pytest.approx(hours)
    assert found["gpu_hours"] == pytest.approx(4 * hours)
    assert found["cost"] == pytest.approx(10 * hours)
    said = " ".join(command("plan", "--from", RUN, *goal)[1].split()).replace("\u00a0", " ")
    assert (
        f"a step takes {found['step_ns'] / 1e6:.1f} ms ± {found['interval']['half_ns'] / 1e6:.1f} ms on 4 ranks" in said
    )
    assert f"3B tokens take {hours:.3g} hours" in said
    assert f"{4 * hours:,.0f} GPU-hours, which cost {10 * hours:,.0f} at 2.5 each." in said


@pytest.mark.parametrize(
    ("run", "options", "said"),
    [
        (RUN, "--layers 3", "is of another model than the plan: layers 2 (planned: 3) and parameters 1,852,416"),
        (RUN, "--seq 128 --microbatch 2", "seq 64 (planned: 128) and microbatch 16 (planned: 2)"),
        (RUN, "--params 7B", "parameters 1,852,416 (planned: 7,000,000,000)"),
        (RUN, "--tied", "output untied (planned: tied)"),
        (RUN, "--checkpointing --precision bf16", "checkpointing off (planned: on) and precision fp32 (planned: bf16)"),
        (RUN, "--gpus 200000", "no more than 100,000 ranks are predicted"),
        (RUN, "--train-tokens many", "--train-tokens many: not a number"),
        (RUN, "--price-per-gpu-hour 2", "--price-per-gpu-hour needs hours. Give the tokens"),
        (RUN, "--train-tokens 3B --price-per-gpu-hour=-1", "--price-per-gpu-hour -1: not a price"),
        (RUN, "--train-tokens 3B --price-per-gpu-hour nan", "--price-per-gpu-hour nan: not a price"),
        (None, "--params 7B --train-tokens 3B", "--train-tokens needs a step. Give a recording of the model"),
        (RUN / "rank0.pt.trace.json.gz", "", "no run.json says of which model it is"),
        (TRACES / "pipeline", "", "its ranks share the model (pp 4)"),
        (TRACES / "parameter-server", "", "its workers do not wait for each other, which is not predicted"),
    ],
)
def test_what_is_not_predicted_is_one_line(command: Any, run: Path | None, options: str, said: str) -> None:
    code, out, error = command("plan", *(() if run is None else ("--from", run)), *options.split())
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert said in error


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"machine": BUSY}, "the machine was busy"),
        ({"world_size": 3}, "2 of 3 ranks: a prediction needs them all"),
        ({"model": {"layers": 2, "parameters": 100}}, "no run.json says of which model it is"),
    ],
)
def test_recordings_that_cannot_be_trusted_plan_nothing(
    command: Any, tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    for file in RUN.glob("rank*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    run = json.loads((RUN / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(run | changed))
    code, out, error = command("plan", "--from", tmp_path)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert said in error
