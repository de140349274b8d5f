"""Each page in its states, run by Streamlit's own tester."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from browsing.app_page import PAGES, unfold
from made.traces import event, run_of, write
from streamlit.testing.v1 import AppTest

import overlaplab.dashboard
from overlaplab.dashboard.server import command

NOTHING = {"buckets": "has no buckets", "zero3": "gathers no parameters"}


def words(app: AppTest) -> str:
    return "\n".join(element.value for element in app.text)


def charts(app: AppTest) -> int:
    canvas = [found for found in app.get("bidi_component") if "history" not in found.proto.component_name]
    return len(app.get("vega_lite_chart")) + bool(canvas)  # the timeline's canvas


@pytest.mark.parametrize(
    ("run", "page", "drawn", "tables"),
    [
        ("bucketed", "summary", 2, 0),  # its tables are folded away
        ("bucketed", "timeline", 1, 2),
        ("bucketed", "buckets", 1, 1),
        ("bucketed", "zero3", 0, 0),
        ("bucketed", "compare", 2, 2),
        ("one-rank", "summary", 2, 0),
        ("one-rank", "timeline", 1, 2),
        ("one-rank", "buckets", 1, 1),
        ("one-rank", "zero3", 0, 0),
        ("foreign", "summary", 2, 0),
        ("foreign", "timeline", 1, 2),
        ("foreign", "buckets", 0, 0),
        ("foreign", "zero3", 0, 0),
    ],
)
def test_every_page_draws_every_kind_of_run(opened, runs: Path, page: str, run: str, drawn: int, tables: int) -> None:
    app = opened(runs, page, run)
    assert (charts(app), len(app.dataframe)) == (drawn, tables)
    assert [NOTHING[page] in info.value for info in app.info] == [True] * (drawn == 0)


def test_buckets_name_the_parameter_that_came_last(opened, runs: Path) -> None:
    app = opened(runs, "buckets", "bucketed")
    line = next(text.value for text in app.text if text.value.startswith("Bucket 1: "))
    assert line == (
        "Bucket 1: body.weight came last, the only one in it, and then waited 0.096 ms behind what was sent before it;"
        " 0.35 ms of its communication is exposed."
    )
    assert app.dataframe[0].value["exposed (ms)"].tolist() == [0.0, 0.35]


def test_buckets_of_anybodys_ddp_have_gradients_without_names(opened, tmp_path: Path) -> None:
    name = "torch::autograd::AccumulateGrad"
    events = [
        event("ProfilerStep#3", 0, 90, cat="user_annotation"),
        event("DistributedDataParallel.forward", 1, 9, cat="user_annotation"),
        event(f"autograd::engine::evaluate_function: {name}", 20, 29),
        event(name, 20, 21, **{"Input Dims": [[1024, 8]], "Input type": ["float"]}),
        event("c10d::allreduce_", 25, 26),
        event("gloo:all_reduce", 27, 60, cat="user_annotation", tid=7),
    ]
    run_of(tmp_path / "strange", events)
    app = opened(tmp_path, page="buckets", run="strange")
    assert (
        "Bucket 0: gradient 1 (1024×8) came last, the only one in it; 0.033 ms of its communication is exposed."
        in words(app)
    )
    assert "launched while a gradient is accumulated" in words(app)
    assert app.dataframe[0].value["last gradient"].tolist() == ["gradient 1 (1024×8)"]
    assert charts(app) == 1


def test_compare_leaves_the_broken_run_out(opened, runs: Path) -> None:
    app = opened(runs, "compare")
    app.multiselect(key="compared").set_value(["broken", "bucketed", "foreign", "one-rank"]).run()
    assert not app.exception
    assert app.dataframe[0].value["run"].tolist() == ["bucketed (emulated link)", "foreign", "one-rank"]
    assert "Left out" in app.warning[0].value
    assert app.code[0].value.startswith("broken: ")


@pytest.mark.parametrize("page", ["summary", "timeline", "buckets"])
def test_a_broken_run_shows_one_line_and_the_rest_keeps_working(opened, runs: Path, page: str) -> None:
    app = opened(runs, page, "broken")
    assert app.title[0].value == page.capitalize()
    assert "cannot be read" in app.error[0].value
    assert "rank0.pt.trace.json.gz" in app.code[0].value
    assert "\n" not in app.code[0].value
    app.selectbox(key="run_picker").set_value("bucketed").run()
    assert not app.error
    assert charts(app) == 1 + (page == "summary")


def test_a_run_that_disappears_shows_one_line(opened, own_runs: Path) -> None:
    app = opened(own_runs, run="one-rank")
    for file in (own_runs / "one-rank").iterdir():
        file.unlink()
    (own_runs / "one-rank" / "rank0.json").write_text("{")
    app.run()
    assert "cannot be read" in app.error[0].value


def test_a_changed_trace_is_read_anew(opened, own_runs: Path) -> None:
    app = opened(own_runs, run="foreign")
    unfold(app, "steps_fold")
    before = app.dataframe[-1].value["step time (ms)"].tolist()
    trace = own_runs / "foreign" / "trace.json.gz"
    write(trace, [event("aten::mm", 0, 500), event("gloo:all_reduce", 100, 300, cat="user_annotation", tid=5)])
    os.utime(trace, ns=(1, 1))
    app.run()
    assert before == [0.1]
    assert app.dataframe[-1].value["step time (ms)"].tolist() == [0.5]


def test_an_empty_folder_says_how_to_fill_it(opened, tmp_path: Path) -> None:
    app = opened(tmp_path)
    assert app.subheader[0].value == "There are no runs in this folder yet"
    assert "overlaplab record" in app.code[1].value


def test_a_folder_that_is_not_there(opened, tmp_path: Path) -> None:
    app = opened(tmp_path / "nowhere")
    assert app.subheader[0].value == "There is no such folder"


def test_a_gpu_trace_without_device_activity(opened, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write(tmp_path / "run" / "t.json", [event("cudaLaunchKernel", 0, 5, cat="cuda_runtime", correlation=1)])
    for page in ("summary", "timeline"):
        app = opened(tmp_path, page)
        assert "Device activity was not recorded" in app.warning[0].value


def test_strings_of_a_trace_never_become_markdown(opened, tmp_path: Path) -> None:
    """Markdown and HTML stand in names of runs, parameters, operators, and in the manifest."""
    bad = "![x](http://evil.example/x.png)</script><img src=http://evil.example/y>"
    named = "![x](http://evil.example/z.png)"
    from_percent = "%21%5Bx%5D%28http%3A%2F%2Fevil.example%2Fp.png%29"
    events = [
        event(f"aten::{bad}", 0, 100),
        *engine_like(from_percent),
        event("gloo:all_reduce", 150, 300, cat="user_annotation", tid=7),
    ]
    run_of(tmp_path / named.replace("/", "_"), events, manifest={"strategy": bad, "device": bad})
    (tmp_path / "unknown").mkdir()
    device = [{"id": 0, "name": bad}]
    write(tmp_path / "unknown" / "t.json", [event("aten::mm", 0, 5, cat=bad)], deviceProperties=device)
    for run, page in [(named.replace("/", "_"), page) for page in (*PAGES, "what_if")] + [("unknown", "summary")]:
        app = opened(tmp_path, page, run)
        spoken = [
            *(
                element.value
                for kind in ("markdown", "title", "subheader", "caption")
                for element in getattr(app, kind)
            ),
            *(element.value for kind in ("error", "warning", "info") for element in getattr(app, kind)),
            *(f"{metric.label}{metric.value}{metric.help}" for metric in app.metric),
            *(widget.label for widget in (*app.selectbox, *app.multiselect, *app.button)),
        ]
        assert not any("evil" in text or "![x]" in text for text in spoken), spoken
    assert "evil" in " ".join(text.value for text in app.text)
    assert "evil" in str(opened(tmp_path, "summary", named.replace("/", "_")).text[0].value)


def engine_like(parameter: str) -> list[dict[str, object]]:
    def label(text: str, start: float, end: float) -> dict[str, object]:
        return event(f"engine::{text}", start, end, cat="user_annotation")

    return [
        label("backward microbatch=0 sync=1", 0, 130),
        label(f"gradient_ready parameter={parameter}", 110, 111),
        label(f"bucket_ready bucket=0 bytes=4 parameters={parameter}", 112, 113),
        label("bucket_launch bucket=0", 114, 115),
        label("bucket_done bucket=0", 301, 302),
        label(f"gather_launch unit={parameter} phase=forward microbatch=0 bytes=4", 310, 311),
        label(f"first_use unit={parameter} phase=forward microbatch=0", 312, 313),
        label(f"free unit={parameter} phase=forward microbatch=0 bytes=4", 314, 315),
    ]


def test_the_command_opens_this_app(tmp_path: Path) -> None:
    line = command(tmp_path, 8501)
    assert Path(line[4]) == Path(overlaplab.dashboard.__file__).with_name("main.py")
    assert line[-2:] == ["--", str(tmp_path)]
