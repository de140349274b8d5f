"""The page What if: its controls, and that what is predicted says so."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing.app_page import body_texts, head_texts
from made.ddp import ddp_ranks
from made.fsdp import fsdp
from made.traces import run_of
from samples import sample_run
from streamlit.testing.v1 import AppTest

from overlaplab import load_run
from overlaplab.cli import main
from overlaplab.sections.run_tables import RunTables
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.programs.setting import Setting
from overlaplab.words import ms

Open = Callable[..., AppTest]
SAMPLES = Path(__file__).parents[3] / "traces"


def specs(app: AppTest) -> list[dict[str, Any]]:
    return [json.loads(chart.proto.spec) for chart in app.get("vega_lite_chart")]


def slide(app: AppTest, label: str, run: str, value: Any) -> None:
    app.select_slider(key=f"asked_{label} of {run}").set_value(value).run()
    assert not app.exception


@pytest.fixture
def on(opened: Open) -> Callable[[str], AppTest]:
    return lambda run: opened(SAMPLES, "what_if", run)


def test_a_cap_is_predicted_beside_what_was_measured(on: Callable[[str], AppTest]) -> None:
    app = on("bucketed")
    assert body_texts(app)[0].startswith("As recorded, an undisturbed step took ")
    assert len(specs(app)) == 5
    slide(app, "bucket_cap_mb", "bucketed", 1.0)
    assert body_texts(app)[0].startswith("With bucket_cap_mb 1 a step is predicted to take ")
    assert body_texts(app)[1].startswith("A recording's mean step lies within ± ")
    slide(app, "ranks", "bucketed", 10_000)
    assert "Extrapolated beyond what was recorded: the number of ranks by a factor of 5,000." in body_texts(app)
    assert "bucket_cap_mb 1 and 10,000 ranks" in body_texts(app)[0]


def test_over_an_unknown_link_one_is_named(on: Callable[[str], AppTest]) -> None:
    app = on("torch-ddp-gloo")
    slide(app, "ranks", "torch-ddp-gloo", 8)
    assert [each.value for each in app.code] == ["without a link no other number of ranks can be played. Choose one"]
    app.selectbox(key="asked_link of torch-ddp-gloo").set_value("10Gbps_50us").run()
    assert not app.exception
    assert any("10Gbps,50us" in text and "8 ranks" in text for text in body_texts(app))


def test_an_action_is_played_on_the_page(opened: Open) -> None:
    """Of a loop by hand, of which no other setting can be asked; in the words and digits of `predict --edit`."""
    recorded = Path(__file__).parents[2] / "situations" / "recorded"
    app = opened(recorded, "what_if", "06a-local-sgd")
    app.selectbox(key="asked_action of 06a-local-sgd").set_value("background").run()
    assert not app.exception
    assert app.query_params["setting"] == "action:background"
    run = load_run(recorded / "06a-local-sgd")
    step_ns = predict(run, Setting(edits=(("background", None),))).step_ns
    begin = f"With the edit background a step is predicted to take {ms(step_ns)} ± "
    assert any(text.startswith(begin) for text in body_texts(app))


def test_a_pipeline_has_microbatches_and_schedules(opened: Open) -> None:
    """By the messages alone; in the words and digits of `predict`."""
    recorded = Path(__file__).parents[2] / "situations" / "recorded"
    app = opened(recorded, "what_if", "few-microbatches")
    labels = {each.label for each in (*app.select_slider, *app.selectbox)}
    assert {"Microbatches", "Schedule"} <= labels
    assert not labels & {"bucket_cap_mb", "Action", "Ranks"}
    slide(app, "microbatches", "few-microbatches", 8)
    app.selectbox(key="asked_schedule of few-microbatches").set_value("1f1b").run()
    assert not app.exception
    assert app.query_params["setting"] == "microbatches:8,schedule:1f1b"
    step_ns = predict(load_run(recorded / "few-microbatches"), Setting(microbatches=8, schedule="1f1b")).step_ns
    begin = f"With 8 microbatches per step and the schedule 1F1B a step is predicted to take {ms(step_ns)} ± "
    headline = next(text for text in body_texts(app) if text.startswith(begin))
    assert "A step works on 8 microbatches, not 2, each of as many samples" in headline
    assert "Collectives and messages take as long as recorded, unless another link is asked for." in body_texts(app)
    assert any("smaller microbatches of the same samples" in text for text in body_texts(app))
    slide(app, "microbatches", "few-microbatches", 2)  # fewer than stages
    assert app.selectbox(key="asked_schedule of few-microbatches").value == "gpipe"
    assert body_texts(app)[0].startswith("As recorded")


def test_of_a_mesh_a_link_is_asked_for(on: Callable[[str], AppTest]) -> None:
    app = on("dp-tp")
    assert {each.label for each in app.select_slider} == {"Bandwidth", "Latency"}
    slide(app, "bandwidth", "dp-tp", 100.0)
    assert body_texts(app)[0].startswith("With link ")


@pytest.mark.parametrize("run", ["bucketed", "naive", "zero3", "h100/torch-ddp"])
def test_of_the_recorded_setting_the_page_advises_what_every_page_advises(
    on: Callable[[str], AppTest], run: str
) -> None:
    said = RunTables(run=sample_run(run)).diagnosis
    assert said is not None
    app = on(run)
    caps = [option for slider in app.select_slider if slider.label == "bucket_cap_mb" for option in slider.options]
    advised = [each.setting for each in said.actions if each.action.name == "cap"]
    assert all(any(cap.startswith(f"{setting:g} MiB") for cap in caps) for setting in advised if caps), "can be asked"
    assert head_texts(app)[2:] == [f"As recorded: {said.headline}", f"As recorded: {said.advice}"]
    assert "What to do about it" not in [header.value for header in app.header]  # the head has said it


@pytest.mark.parametrize("root", [SAMPLES, SAMPLES / "sweep"])
def test_page_and_command_predict_the_same(
    opened: Open, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = str((SAMPLES / "sweep" / "cap-25").relative_to(root))
    app = opened(root, "what_if", run)
    slide(app, "bucket_cap_mb", run, 1.0)
    arguments = ["predict", str(SAMPLES / "sweep" / "cap-25"), "--bucket-cap-mb", "1", "--json"]
    monkeypatch.setattr(sys, "argv", ["overlaplab", *arguments])
    with pytest.raises(SystemExit):
        main()
    document = json.loads(capsys.readouterr().out)
    step, half, measured = (
        f"{ns / 1e6:.1f} ms"
        for ns in (document["predicted"]["step_ns"], document["interval"]["half_ns"], document["recorded"]["step_ns"])
    )
    assert body_texts(app)[0].startswith(
        f"With bucket_cap_mb 1 a step is predicted to take {step} ± {half} ({measured} measured). "
    )


def test_what_is_asked_stands_in_the_link(followed: Open) -> None:
    app = followed(SAMPLES, "what_if", run="bucketed", setting="bucket_cap_mb:1,first_bucket:0.5,ranks:4")
    assert body_texts(app)[0].startswith(
        "With bucket_cap_mb 1, a first bucket of 0.5 MiB and 4 ranks a step is predicted"
    )
    assert not app.warning
    slide(app, "ranks", "bucketed", 2)
    assert app.query_params["setting"] == "bucket_cap_mb:1,first_bucket:0.5"
    app.switch_page("views/buckets.py").run()
    app.switch_page("views/what_if.py").run()
    assert body_texts(app)[0].startswith("With bucket_cap_mb 1 and a first bucket of 0.5 MiB")
    app.selectbox(key="run_picker").set_value("torch-ddp").run()
    assert "setting" not in app.query_params


@pytest.mark.parametrize("setting", ["bucket_cap_mb:3", "prefetch:1", "<script>", "ranks:1e99", "a:b," * 40])
def test_a_setting_that_cannot_be_asked_for_is_one_line(followed: Open, setting: str) -> None:
    app = followed(SAMPLES, "what_if", run="bucketed", setting=setting)
    assert [own.value.partition(" that")[0] for own in app.warning] == ["The link names a setting"]
    assert body_texts(app)[0].startswith("As recorded")
    assert "setting" not in app.query_params


def test_every_chart_has_its_table_and_picture(on: Callable[[str], AppTest]) -> None:
    labels = [button.label for button in on("bucketed").get("download_button")]
    assert labels == ["Download CSV", "Download PNG"] * 5


def test_every_chart_marks_what_is_predicted(on: Callable[[str], AppTest]) -> None:
    app = on("bucketed")
    for spec in specs(app):
        assert "predicted" in json.dumps(spec)
        assert any("strokeDash" in layer["mark"] for layer in spec["layer"] if isinstance(layer["mark"], dict))
    titles = [text for text in body_texts(app) if "redicted step by" in text or "redicted throughput" in text]
    assert len(titles) == 3


def test_a_strategy_has_its_own_controls(on: Callable[[str], AppTest]) -> None:
    app = on("zero3")
    labels = {slider.label for slider in app.select_slider}
    assert "Prefetch" in labels
    assert "bucket_cap_mb" not in labels
    slide(app, "prefetch", "zero3", 2)
    assert body_texts(app)[0].startswith("With prefetch 2 a step is predicted")
    app.selectbox(key="asked_strategy of zero3").set_value("bucketed").run()
    assert "bucket_cap_mb" in {slider.label for slider in app.select_slider}
    assert body_texts(app)[0].startswith("With strategy bucketed")


def test_a_strategy_with_buckets_begins_at_the_advised_cap(on: Callable[[str], AppTest]) -> None:
    """What the page advises of a run that sends no buckets is two clicks away, and gains the same."""
    app, diagnosis = on("per-param"), RunTables(run=sample_run("per-param")).diagnosis
    assert diagnosis is not None
    advised = next(each for each in diagnosis.actions if each.action.name == "cap")
    app.selectbox(key="asked_strategy of per-param").set_value("bucketed").run()
    assert app.select_slider(key="asked_bucket_cap_mb of per-param").value == advised.setting
    assert f"is predicted to take {ms(advised.step_ns)} ±" in body_texts(app)[0]
    slide(app, "bucket_cap_mb", "per-param", "default")
    assert body_texts(app)[0].startswith("With strategy bucketed a step is predicted")


@pytest.mark.parametrize("setting", ["strategy:bucketed", "strategy:bucketed,bucket_cap_mb:default"])
def test_a_link_to_another_strategy_means_its_default_cap(followed: Open, setting: str) -> None:
    """As `predict --strategy bucketed` does, though the control begins at the advised cap."""
    app = followed(SAMPLES, "what_if", run="per-param", setting=setting)
    assert app.select_slider(key="asked_bucket_cap_mb of per-param").value == "default"
    predicted = predict(sample_run("per-param"), Setting(strategy="bucketed"))
    assert f"is predicted to take {ms(predicted.step_ns)} ±" in body_texts(app)[0]
    assert app.query_params["setting"] == "strategy:bucketed,bucket_cap_mb:default"


def test_another_strategy_of_a_server_is_predicted(on: Callable[[str], AppTest]) -> None:
    app = on("course/server")
    app.selectbox(key="asked_strategy of course/server").set_value("bucketed").run()
    predicted = predict(sample_run("course/server"), Setting(strategy="bucketed", bucket_cap_mb=25))
    assert f"is predicted to take {ms(predicted.step_ns)} ±" in " ".join(body_texts(app))


def test_another_run_begins_as_it_was_recorded(on: Callable[[str], AppTest]) -> None:
    app = on("bucketed")
    slide(app, "bucket_cap_mb", "bucketed", 1.0)
    app.selectbox(key="run_picker").set_value("torch-ddp").run()
    assert body_texts(app)[0].startswith("As recorded")


def test_strategies_that_are_offered_are_played(on: Callable[[str], AppTest]) -> None:
    """Not a parameter server's, which predict alone plays; of a tree it is said what the recording does not tell."""
    app = on("bucketed")
    strategies = app.selectbox(key="asked_strategy of bucketed")
    assert "parameter-server" not in strategies.options
    strategies.set_value("tree").run()
    assert any("short hops of tree take longer than predicted" in text for text in body_texts(app))


def test_a_run_that_does_not_tell_says_why(on: Callable[[str], AppTest]) -> None:
    app = on("parameter-server")
    assert "can play no other setting" in app.info[0].value
    assert any("Its workers do not wait for each other" in text for text in body_texts(app))
    assert not specs(app)


def test_where_nothing_can_be_asked_for_it_says_why(opened: Open, tmp_path: Path) -> None:
    """Actions need no other ranks, but of a server with a missing worker there is none that is played."""
    shutil.copytree(SAMPLES / "course" / "server", tmp_path / "server")
    (tmp_path / "server" / "rank1.pt.trace.json.gz").unlink()
    app = opened(tmp_path, "what_if")
    assert not app.select_slider
    assert app.code[0].value.startswith("3 of 4 ranks: a prediction needs them all.")


def test_what_a_setting_cannot_be_made_of_is_one_line(on: Callable[[str], AppTest]) -> None:
    app = on("bucketed")
    app.selectbox(key="asked_strategy of bucketed").set_value("zero3").run()
    assert not app.exception
    assert "where units' passes begin and end" in app.code[0].value


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Anybody's runs on GPUs; tests only read them."""
    folder = tmp_path_factory.mktemp("strangers")
    run_of(folder / "ddp", *ddp_ranks([2 << 20]), backend="nccl")
    rank = fsdp(0, host_us=450, steps=2)
    run_of(folder / "fsdp2", rank, rank, backend="nccl")
    run_of(folder / "unknown", *ddp_ranks([2 << 20], shapes=False), backend="nccl")
    return folder


@pytest.mark.parametrize(
    ("run", "label", "option", "value", "folded"),
    [
        ("ddp", "bucket_cap_mb", "--bucket-cap-mb", 8.0, "Prefetch: DDP gathers nothing."),
        ("fsdp2", "prefetch", "--prefetch", 2, "bucket_cap_mb: FSDP2 sends no buckets."),
    ],
)
def test_of_anybodys_run_on_gpus_one_option_is_predicted(
    opened: Open,
    strangers: Path,
    command: Callable[..., tuple[int, str, str]],
    run: str,
    label: str,
    option: str,
    value: float,
    folded: str,
) -> None:
    app = opened(strangers, "what_if", run)
    assert body_texts(app)[0].startswith("As recorded, an undisturbed step took ")
    assert [slider.label.lower() for slider in app.select_slider] == [label]
    assert folded in body_texts(app)
    others = [text for text in body_texts(app) if text.startswith("Ranks: ")]
    assert len(others) == (run == "ddp")
    assert len(specs(app)) == 2
    assert all("predicted" in json.dumps(spec) for spec in specs(app))
    slide(app, label, run, value)
    document = json.loads(command("predict", strangers / run, option, f"{value:g}", "--json")[1])
    step, half, measured = (
        ms(ns)
        for ns in (document["predicted"]["step_ns"], document["interval"]["half_ns"], document["recorded"]["step_ns"])
    )
    said = body_texts(app)[0]
    assert said.startswith(f"With {label} {value:g} a step is predicted to take {step} ± {half} ({measured} measured).")
    assert app.query_params["setting"] == f"{label}:{value:g}"
    for text in others:
        words = text.partition("overlaplab ")[2].partition(" predicts")[0].replace("RUN", str(strangers / run))
        assert command(*words.split())[0] == 0, "what the page names can be asked"


def test_of_a_run_on_gpus_without_known_buckets_actions_are_played(opened: Open, strangers: Path) -> None:
    app = opened(strangers, "what_if", "unknown")
    assert [box.label for box in app.main.selectbox] == ["Action"]
    assert any("bucket_cap_mb, prefetch: the sizes of its gradients are not known" in text for text in body_texts(app))
    assert len(specs(app)) == 1, "the median step, measured and played"


def test_of_several_models_the_caps_that_help_are_offered(opened: Open) -> None:
    recorded = SAMPLES.parent / "tests" / "situations" / "recorded"
    app = opened(recorded, "what_if", "two-models")
    assert not app.select_slider
    actions = app.selectbox(key="asked_action of two-models")
    assert {"bucket_cap_mb 0.1 for discriminator", "bucket_cap_mb 0.09 for generator"} <= {*actions.options}
    actions.set_value("cap-3").run()
    setting = Setting(edits=(("model-cap", "generator:0.09"),))
    begin = f"a step is predicted to take {ms(predict(load_run(recorded / 'two-models'), setting).step_ns)} ± "
    assert begin in body_texts(app)[0]
    app.selectbox(key="asked_action of two-models").set_value("none")
    app.selectbox(key="asked_link of two-models").set_value("10Gbps_50us").run()
    assert not app.exception
    assert body_texts(app)[0].startswith("With ")
