"""The examples of recording one's own loop, run as their docstrings say, by two processes; every page opens each."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from browsing.app_page import PAGES
from ranks.warm_ranks import run_launcher, run_warm
from streamlit.testing.v1 import AppTest

import overlaplab
import overlaplab.dashboard
import overlaplab.integrations

ROOT = Path(__file__).parents[2]
EXAMPLES = {
    "ddp": ROOT / "examples" / "ddp.py",
    "fsdp2": ROOT / "examples" / "fsdp2.py",
    "accelerate": ROOT / "examples" / "with_accelerate.py",
    "accelerate-fsdp2": ROOT / "tests" / "support" / "programs" / "accelerate_fsdp2.py",
    "lightning": ROOT / "examples" / "with_lightning.py",
    "transformers": ROOT / "examples" / "with_transformers.py",
}
FEW = ("ddp", "fsdp2")
"""Those that every run of the tests tries."""
LAYERS = [f"layers.{i}.{name}" for i in range(4) for name in ("up.weight", "up.bias", "down.weight", "down.bias")]
NAMES = sorted(["embedding.weight", "head.weight", "head.bias", *LAYERS])
LLAMA_LAYER = (
    *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
    *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    *("input_layernorm.weight", "post_attention_layernorm.weight"),
)
LLAMA = ["embed_tokens.weight", "norm.weight", *(f"layers.{i}.{name}" for i in range(4) for name in LLAMA_LAYER)]
"""And `lm_head.weight`, outside the model of which these are."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[] if name in FEW else pytest.mark.slow) for name in EXAMPLES],
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first by torchrun, the others by the ranks that it would start."""
    out = tmp_path_factory.mktemp(request.param) / "runs" / str(request.param)
    line = [str(EXAMPLES[request.param]), str(out)]
    if request.param == "ddp":
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        done = run_launcher(*torchrun, *line, CUDA_VISIBLE_DEVICES="")
        assert done.code == 0, done.stderr
    else:
        for rank in run_warm(2, *line, CUDA_VISIBLE_DEVICES=""):
            assert rank.code == 0, rank.stderr
    return out


def names_of(run: Path) -> list[str]:
    """The parameters' names, without the `model.` before them."""
    return sorted([*LLAMA, "lm_head.weight"]) if run.name == "transformers" else NAMES


def microbatches(run: Path) -> int:
    """Of a step; the frameworks' examples accumulate two."""
    return 1 if run.name in ("ddp", "fsdp2") else 2


@pytest.mark.parametrize(
    "run",
    [pytest.param(name, marks=[] if name in ("fsdp2", "lightning") else pytest.mark.slow) for name in EXAMPLES],
    indirect=True,
)
@pytest.mark.usefixtures("compiled_once")
def test_a_run_opens_on_every_page(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["main.py", str(run.parent)])
    main = Path(overlaplab.dashboard.__file__).with_name("main.py")
    app = AppTest.from_file(str(main), default_timeout=300).run()
    sharded = "fsdp2" in run.name
    for page in PAGES:
        app.switch_page(f"views/{page}.py").run()
        assert not app.exception, (page, app.exception[0].message)
        assert not app.error, (page, app.error[0].value)
        drawn = len(app.get("vega_lite_chart")) + bool(app.get("bidi_component"))
        assert bool(drawn) == (page != ("buckets" if sharded else "zero3")), page
        if page == "buckets" and not sharded:
            last = [name.removeprefix("model.") for name in app.dataframe[0].value["last gradient"]]
            assert set(last) < set(names_of(run))


def test_what_moves_has_its_names(run: Path) -> None:
    if "fsdp2" in run.name:
        expect_units(run)
    else:
        expect_buckets(run)


def test_every_collective_has_its_counterpart(run: Path) -> None:
    """Over gloo none has a number, and on a busy machine they end whenever a rank gets a core."""
    table = overlaplab.collectives(overlaplab.load_run(run))
    assert table["unmatched"].isna().all()
    assert table.groupby("index")["rank"].nunique().eq(2).all()
    synchronous = ~table["kind"].isin(["broadcast"])
    assert table.loc[synchronous, "wait_ns"].notna().all()


def expect_buckets(path: Path) -> None:
    """Each backward pass sent every gradient once, in buckets that were ready when launched."""
    table = overlaplab.buckets(overlaplab.load_run(path))
    assert set(table["source"]) == {"engine"}
    for (_, step), buckets in table.groupby(["rank", "step"]):
        assert step in (2, 3, 4)
        assert len(buckets) > 2
        names = [name.removeprefix("model.") for held in buckets["parameters"] for name in held]
        assert sorted(names) == names_of(path)
        assert all(None not in arrived for arrived in buckets["gradient_ready_ns"])
        assert (buckets["backward_start_ns"] < buckets["ready_ns"]).all()
        assert (buckets["ready_ns"] <= buckets["launch_ns"]).all()
        assert (buckets["launch_ns"] < buckets["start_ns"]).all()
    assert len(table.groupby(["rank", "step"])) == 6


def expect_units(path: Path) -> None:
    """Each step gathered every layer for either pass, and what run.json says that they hold."""
    units = {unit["name"]: unit for unit in json.loads((path / "run.json").read_text())["units"]}
    assert list(units) == ["root", *(f"layers.{i}" for i in range(4))]
    assert sorted(name for unit in units.values() for name in unit["parameters"]) == NAMES
    table = overlaplab.schedule(overlaplab.load_run(path))
    assert (table["bytes"] == table["unit"].map(lambda unit: units[unit]["bytes"])).all()
    for (_, step), gathers in table.groupby(["rank", "step"]):
        assert step in (2, 3, 4)
        assert gathers["layer"].count() == 8 * microbatches(path)
        assert set(gathers["unit"]) == set(units)
    assert len(table.groupby(["rank", "step"])) == 6


def test_run_json_says_what_was_recorded(run: Path) -> None:
    manifest = json.loads((run / "run.json").read_text())
    expected = "torch-fsdp2" if "fsdp2" in run.name else "torch-ddp"
    assert (manifest["strategy"], manifest["backend"], manifest["world_size"]) == (expected, "gloo", 2)
    assert sorted(p["name"].removeprefix("model.") for p in manifest["parameters"]) == names_of(run)
    assert sorted(p.name for p in run.iterdir()) == ["rank0.pt.trace.json.gz", "rank1.pt.trace.json.gz", "run.json"]


def test_gradients_are_sent_once_per_step_and_evaluation_is_in_none(run: Path) -> None:
    """Lightning's and transformers' examples evaluate after step 2."""
    for trace in overlaplab.load_run(run).traces:
        names = trace.events["name"].astype(str)
        if "fsdp2" not in run.name:
            passes = names[names.str.match(r"engine::first_use .*layers\.0 phase=forward")]
            assert len(passes) == 3 * microbatches(run), passes
        evaluated = names.str.startswith("overlaplab::next_step").any()
        assert evaluated == (run.name in ("lightning", "transformers"))


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_lightnings_checkpoints_of_weights_alone_are_in_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning tells its callbacks nothing of these."""
    from lightning.pytorch import Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.demos.boring_classes import BoringModel

    slow_s, save = 1.0, Trainer.save_checkpoint
    monkeypatch.setattr(Trainer, "save_checkpoint", lambda *args: (time.sleep(slow_s), save(*args)))
    recorder = overlaplab.integrations.LightningRecorder(tmp_path / "run", warmup=1, steps=4)
    checkpoints = ModelCheckpoint(tmp_path, every_n_train_steps=3, save_weights_only=True, save_top_k=-1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(accelerator="cpu", max_steps=6, limit_val_batches=0, callbacks=[recorder, checkpoints], **quiet)
    trainer.fit(BoringModel())
    assert sorted(file.name for file in tmp_path.glob("*.ckpt")) == ["epoch=0-step=3.ckpt", "epoch=0-step=6.ckpt"]
    steps = overlaplab.summary(overlaplab.load_run(tmp_path / "run"))
    assert len(steps) == 4
    assert steps["span_ns"].max() < slow_s * 1e9
    assert trainer.save_checkpoint.__func__ is Trainer.save_checkpoint


@pytest.mark.parametrize("name", EXAMPLES)
def test_recording_takes_three_lines(name: str) -> None:
    lines = [line for line in EXAMPLES[name].read_text().splitlines() if "ecorder" in line and "speak" not in line]
    spoken = {
        "lightning": ["from", "callbacks=[LightningRecorder(out,"],
        "transformers": ["from", "recorder", "Trainer(model,"],
        "accelerate-fsdp2": [],
    }
    assert [line.split()[0] for line in lines] == spoken.get(name, ["from", "with", "recorder.step()"])
