"""Every page in every state: it says what it shows, draws it or says why it cannot, and ends with advice."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing.app_page import PAGES, body_texts, head_texts
from made.runs import engine_events, gpu_events, zero3_manifest
from made.traces import event, gloo, op, run_of, step, write
from made.zero3 import zero3_events
from streamlit.testing.v1 import AppTest

from overlaplab.dashboard import folder

Open = Callable[..., AppTest]
NOTHING = {
    "buckets": "has no buckets",
    "zero3": "gathers no parameters",
    "collectives": "has no collectives",
}
"""The text of a page that has nothing to show."""


def cpu_events(late: float) -> list[dict[str, Any]]:
    """Anybody's steps on a CPU: 50 µs of compute, then an all-reduce that ends at 90 on all ranks."""
    found: list[dict[str, Any]] = []
    for number in range(2):
        at = 100.0 * number
        found += [step(number, at, at + 100), op("mm", at + 5, at + 45 + late), gloo(at + 50 + late, at + 90)]
    return found


def sending_events() -> list[dict[str, Any]]:
    """What measures a link: NCCL's kernels, and none that computes."""
    return [each for each in gpu_events() if each.get("args", {}).get("correlation") != 1]


def bare_events() -> list[dict[str, Any]]:
    """No step, no rank, no group."""
    return [op("mm", 0, 60), gloo(50, 90)]


STATES: dict[str, tuple[set[str], Callable[[Path], object]]] = {
    # name: (pages that draw nothing, what makes the run)
    "zero3": ({"buckets"}, lambda folder: run_of(folder, zero3_events(4, 1), zero3_events(4, 1), manifest={})),
    "one rank": ({"zero3"}, lambda folder: run_of(folder, engine_events(), manifest={})),
    "cpu": ({"buckets", "zero3"}, lambda folder: run_of(folder, cpu_events(0), cpu_events(30))),
    "gpu": ({"buckets", "zero3"}, lambda folder: run_of(folder, gpu_events(), backend="nccl")),
    "bare": ({"buckets", "zero3"}, lambda folder: write(folder / "t.json.gz", bare_events())),
    "no communication": ({"buckets", "zero3", "collectives"}, lambda folder: run_of(folder, [op("mm", 0, 60)])),
    "not recorded": (
        set(PAGES) - {"compare"},
        lambda folder: write(folder / "t.json", [event("cudaLaunchKernel", 0, 5, cat="cuda_runtime", correlation=1)]),
    ),
    "GPU without its events": (
        set(PAGES) - {"compare", "collectives"},
        lambda folder: run_of(folder, engine_events(), manifest={"device": "cuda"}),
    ),
    "communication alone": (
        {"summary", "timeline", "buckets", "zero3"},
        lambda folder: run_of(folder, sending_events(), sending_events(), backend="nccl"),
    ),
    "broken": (set(PAGES) - {"compare"}, lambda folder: (folder / "rank0.json").write_text("{")),
}


def turned(app: AppTest, page: str) -> AppTest:
    app.switch_page(f"views/{page}.py").run()
    assert not app.exception, (page, app.exception[0].message)
    return app


@pytest.mark.parametrize("state", STATES)
def test_every_page_in_every_state(opened: Open, tmp_path: Path, state: str) -> None:
    empty, make = STATES[state]
    (tmp_path / "run").mkdir()
    make(tmp_path / "run")
    app = opened(tmp_path)
    heads: dict[bool, list[str]] = {}
    for page, title in PAGES.items():
        turned(app, page)
        assert [found.value for found in app.title] == [title]
        head = head_texts(app)
        assert head[0].endswith(".") if page == "compare" else head[0] == "run", page
        heads.setdefault(page == "compare", head)
        assert heads[page == "compare"] == head, page  # as on the Summary
        if "summary" not in empty and page != "compare":
            _, about, verdict, *advice = head
            assert re.search(r" · rank \w+(, step \d+)? \(.+\)$", about), about
            assert all(text.endswith(".") for text in (verdict, *advice))
            assert advice
        if page == "compare":
            continue  # one run alone is not compared
        drawn = len(app.get("vega_lite_chart")) + len(app.get("bidi_component"))
        if state == "broken":
            assert "cannot be read" in app.error[0].value
            assert drawn == 0
        elif page in empty:
            said = [found.value for found in (*app.info, *app.warning)]
            assert len(said) == 1, (page, said)
            unrecorded = state in ("not recorded", "GPU without its events")
            assert (
                "Device activity was not recorded" if unrecorded else NOTHING.get(page, "launched a compute kernel")
            ) in said[0]
            assert drawn == 0
        else:
            tables = len(app.dataframe) if page == "collectives" else 0  # where no rank is late, few sizes are a table
            assert drawn + tables > 0, page
            assert not app.error


def test_zero3_without_forward_passes(opened: Open, tmp_path: Path) -> None:
    """Labels may be missing: its diagnosis has no model to play, and says so."""
    events = [each for each in zero3_events(4, 1) if not str(each["name"]).startswith("engine::forward")]
    run_of(tmp_path / "run", events, events, manifest=zero3_manifest(1))
    assert head_texts(opened(tmp_path))[0] == "run"


def test_no_run_at_all(opened: Open, tmp_path: Path) -> None:
    app = opened(tmp_path)
    for page in PAGES:
        turned(app, page)
        assert app.subheader[0].value == "There are no runs in this folder yet"
        assert len(app.file_uploader) == 1


@pytest.mark.parametrize("page", ["buckets", "zero3", "collectives"])
def test_a_page_begins_as_the_summary_does_and_does_not_say_it_again(opened: Open, tmp_path: Path, page: str) -> None:
    events = zero3_events(4, 1) if page == "zero3" else engine_events()
    run_of(tmp_path / "run", events, events, manifest={})
    app = opened(tmp_path)
    head = head_texts(app)
    turned(app, page)
    assert head_texts(app) == head
    assert [link.proto.label for link in app.main.get("page_link")] == ["Summary ›"]
    assert not app.header
    assert not any(head[2] in text or head[3] in text for text in body_texts(app))


def test_a_folder_of_too_many_runs_says_that_some_are_not_listed(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        run_of(tmp_path / name, cpu_events(late=0))
    whole = [text.value for text in opened(tmp_path).sidebar.text]
    monkeypatch.setattr(folder, "_MOST", 2)
    assert [entry.name for entry in folder.scan_runs(tmp_path).runs] == ["a", "b"]
    cut = [text.value for text in opened(tmp_path).sidebar.text]
    assert [text for text in cut if text not in whole] == [
        "Too many folders to look into them all: for a run that is not listed, open a folder further down."
    ]
