"""The page Plan: what it says of what the reader enters, and what it predicts from a recording."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing.app_page import body_texts
from made.ddp import ddp_ranks
from made.traces import run_of
from streamlit.testing.v1 import AppTest

import overlaplab.dashboard

Open = Callable[..., AppTest]
SAMPLES = Path(__file__).parents[3] / "traces"
RUN = "sweep/cap-25"
"""2 ranks, 2 layers of width 256, sequences of 64, 16 in a microbatch."""
MODEL = {"parameters": 1000, "seq": 8, "batch": 2, "dtype": "float32"}
VIEW = Path(overlaplab.dashboard.__file__).parent / "views" / "plan.py"


@pytest.fixture
def app(compiled_once: None) -> AppTest:
    return AppTest.from_file(str(VIEW), default_timeout=300).run()


def said(app: AppTest) -> str:
    assert not app.exception
    return "\n".join([*(one.value for one in app.text), *(one.value for one in app.code)]).replace("\u00a0", " ")


def test_it_says_what_fits_and_what_to_try(app: AppTest) -> None:
    text = said(app)
    assert "2 × 4 × 128 GPUs = 1,024 sequences of 4,096" in text
    assert "ZeRO stage 1 fits: 64.3 GB of 80.0 GB per GPU." in text


def test_what_does_not_divide_says_what_would(app: AppTest) -> None:
    app.number_input[7].set_value(96).run()
    assert "64 or 128 GPUs" in said(app)
    app.number_input[7].set_value(512).run()
    assert "2 × 1 × 512 GPUs" in said(app)


def test_checkpointing_makes_room(app: AppTest) -> None:
    app.toggle[0].set_value(True).run()
    assert "ZeRO stage 1 fits: 3" in said(app)


def field(app: AppTest, label: str) -> Any:
    """The control with this label."""
    kinds = (app.selectbox, app.number_input, app.text_input, app.toggle)
    return next(one for kind in kinds for one in kind if one.label == label)


def enter(app: AppTest, values: dict[str, Any]) -> None:
    """Give the fields with these labels their values, one after the other."""
    for label, value in values.items():
        field(app, label).set_value(value).run()
        assert not app.exception


@pytest.fixture
def on(opened: Open) -> Callable[..., AppTest]:
    """A function that opens the page on a folder and chooses the recording."""

    def open_page(run: str, folder: Path = SAMPLES) -> AppTest:
        app = opened(folder, "plan")
        enter(app, {"Recording of the model": run})
        return app

    return open_page


def shown(app: AppTest) -> str:
    """All texts, in one line."""
    return " ".join(said(app).split())


def test_without_a_recording_nothing_is_predicted(opened: Open) -> None:
    app = opened(SAMPLES, "plan")
    assert field(app, "Recording of the model").value is None
    assert "Predicted" not in shown(app)
    assert "2 × 4 × 128 GPUs = 1,024 sequences of 4,096" in shown(app)
    assert "Price of a GPU-hour" not in [one.label for one in app.number_input]


def test_page_and_command_say_the_same(
    on: Callable[..., AppTest], command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = on(RUN)
    enter(app, {"Tokens to train on, in billions": 3.0, "Price of a GPU-hour": 2.5})
    enter(app, {"GPUs": 64, "Microbatches per step": 2, "Memory of a GPU": "24 GB"})
    monkeypatch.chdir(SAMPLES)  # where its name is its path
    goal = ("--train-tokens", "3B", "--price-per-gpu-hour", 2.5)
    asked = ("plan", "--from", RUN, "--gpus", 64, "--tokens", 2 * 64 * 16 * 64, "--gpu-memory", "24GB", *goal)
    _, out, _ = command(*asked)
    printed = " ".join(out.split()).replace("\u00a0", " ")
    begin, *lines = (" ".join(text.split()).replace("\u00a0", " ") for text in body_texts(app))
    predicted = next(line for line in lines if line.startswith(f"Predicted from {RUN} ("))
    assert "which cost" in predicted
    assert "Extrapolated beyond" in predicted
    advice = next(line for line in lines if " fits: " in line)
    assert printed.startswith(begin)
    assert advice in printed
    assert predicted in printed
    stages = json.loads(command(*asked, "--json")[1])["stages"]
    table = app.dataframe[0].value
    for name in ("parameters", "gradients", "optimizer", "activations"):
        assert table[f"{name} (MB)"].tolist() == pytest.approx([row[f"{name}_bytes"] / 1e6 for row in stages])
    assert table["fits from (GPUs)"].tolist() == [row["fits_from"] for row in stages]


def test_the_fields_are_as_recorded(on: Callable[..., AppTest]) -> None:
    app = on(RUN)
    read = {one.label: one.value for one in app.text_input if one.disabled}
    assert read == {
        "Layers": "2",
        "Width": "256",
        "Heads": "4",
        "Vocabulary": "500",
        "Tokens in a sequence": "64",
        "Sequences per microbatch": "16",
    }
    assert [field(app, label).value for label in ("Microbatches per step", "GPUs", "Precision")] == [1, 2, "fp32"]
    assert field(app, "Precision").disabled
    assert field(app, "Checkpointing").disabled
    assert field(app, "Price of a GPU-hour").disabled  # without tokens there are no hours
    assert "on 2 ranks as fast as the recorded ones" in shown(app)
    assert "hours" not in shown(app)
    enter(app, {"Recording of the model": None})
    assert field(app, "Layers").value == 32


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ("pipeline", "pipeline: its ranks share the model (pp 4), and a plan's are data-parallel"),
        (
            "parameter-server",
            "parameter-server: its workers do not wait for each other, which is not predicted",
        ),
        ("ddp-lessons/one-order", "ddp-lessons/one-order: no run.json says of which model it is"),
    ],
)
def test_what_predicts_nothing_says_why_in_a_line(on: Callable[..., AppTest], run: str, why: str) -> None:
    app = on(run)
    assert [one.value.startswith(why) for one in app.code] == [True]
    assert "\n" not in app.code[0].value
    assert "Predicted" not in shown(app)
    assert field(app, "Layers").value == 32


def test_a_run_that_cannot_be_read_is_a_line(on: Callable[..., AppTest], runs: Path) -> None:
    app = on("broken", runs)
    assert len(app.code) == 1
    assert app.code[0].value.startswith("broken: ")
    assert field(app, "Layers").value == 32


def test_sizes_that_make_no_transformer_leave_the_number_of_parameters(
    on: Callable[..., AppTest], tmp_path: Path
) -> None:
    shutil.copytree(SAMPLES / RUN, tmp_path / "other")
    run = json.loads((tmp_path / "other" / "run.json").read_text())
    run["model"] |= {"parameters": 10**15, "dtype": "float16"}
    (tmp_path / "other" / "run.json").write_text(json.dumps(run))
    app = on("other", tmp_path)
    assert field(app, "Parameters").value == "1,000,000,000,000,000"
    assert not field(app, "Precision").disabled
    assert "on 2 ranks as fast as the recorded ones" in shown(app)


def test_of_a_run_on_gpus_other_ranks_need_a_link(on: Callable[..., AppTest], tmp_path: Path) -> None:
    run_of(
        tmp_path / "gpus",
        *ddp_ranks([2 << 20]),
        backend="nccl",
        manifest={"strategy": "torch-ddp", "device": "cuda", "model": MODEL},
    )
    app = on("gpus", tmp_path)
    assert "on 2 ranks as fast as the recorded ones" in shown(app)
    enter(app, {"GPUs": 4})
    (error,) = app.code
    assert error.value.startswith("gpus: how long collectives of 4 ranks take is not known")
    assert "2 × 1 × 4 GPUs = 8 sequences of 8" in shown(app)
