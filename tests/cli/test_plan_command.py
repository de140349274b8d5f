"""`overlaplab plan`: what it prints, and what it says of bad input."""

from __future__ import annotations

import json
from typing import Any

import pytest

MODEL = (
    *("--layers", "32", "--width", "4096", "--seq", "4k", "--microbatch", "2", "--tokens", "4M"),
    *("--gpus", "128", "--gpu-memory", "80GB"),
)


def test_the_first_stage_that_fits_is_advised(command: Any) -> None:
    code, out, _ = command("plan", *MODEL)
    assert code == 0
    said = " ".join(out.split())
    assert "2 × 4 × 128 GPUs = 1,024 sequences of 4,096" in said
    assert "Try ZeRO stage 1: 64.3 GB of 80.0 GB per GPU." in said


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
        ("--params 7B --gpu-memory 100GB --gpus 2", "Try ZeRO stage 1: 70.0 GB of 100 GB per GPU."),
        ("--params 7B --gpu-memory 120GB --gpus 2", "Try plain data parallelism"),
        ("--params 7B --gpu-memory 1GB --gpus 2", "It fits from 112 GPUs with ZeRO stage 3, not on 2."),
        ("--layers 2 --width 1024 --microbatch 64 --gpu-memory 100MB", "try a smaller microbatch or checkpointing"),
        ("--params 7B", "Name the GPU's memory"),
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
