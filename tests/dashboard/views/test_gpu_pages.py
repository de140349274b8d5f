"""Runs of one rank of an emulated group on a GPU, on every page and in the report."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from browsing.app_page import PAGES, unfold
from made.gpu import LAYERS, UNIT_BYTES, UNITS, bucketed, fsdp2, zero3
from made.phantoms import phantom_run
from samples import TRACES, each_gpu_sample, gpu_samples
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from overlaplab.cli import app as command_line

Open = Callable[..., AppTest]
TOLD = "one rank of an emulated group of 8 (peers are phantoms; losses are meaningless)"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tests only read them."""
    parameters = [
        {"name": f"{unit}.w", "shape": [UNIT_BYTES // 2], "dtype": "bfloat16", "bytes": UNIT_BYTES, "unit": unit}
        for unit in UNITS
    ]
    held = {"rank": 0, "parameters": 2_000_000, "gradients": 2_000_000, "optimizer": 12_000_000}
    told = {
        "device": "cuda",
        "model": {"layers": len(LAYERS), "dtype": "bfloat16", "parameters": len(UNITS) * UNIT_BYTES // 2},
        "parameters": parameters,
        "memory": [held | {"peak_allocated": 25_000_000, "scratch": 3_000_000}],
    }
    folder = tmp_path_factory.mktemp("gpu") / "traces" / "h200"
    phantom_run(folder / "zero3", zero3(1), strategy="zero3", prefetch=1, keep_last=True, bucket_cap_mb=None, **told)
    phantom_run(folder / "bucketed", bucketed(), strategy="bucketed", **told)
    phantom_run(folder / "torch-fsdp2", fsdp2(), strategy="torch-fsdp2", bucket_cap_mb=None, **told)
    return folder


@pytest.mark.parametrize(("run", "nothing"), [("zero3", "buckets"), ("bucketed", "zero3"), ("torch-fsdp2", "buckets")])
def test_every_page(opened: Open, runs: Path, run: str, nothing: str) -> None:
    app = opened(runs, "summary", run)
    for page in PAGES:
        app.switch_page(f"views/{page}.py").run()
        assert not app.exception, (page, app.exception[0].message)
        assert not app.warning, page
        drawn = len(app.get("vega_lite_chart")) + bool(app.get("bidi_component"))
        tables = page == "collectives" and bool(app.dataframe)  # few sizes are a table
        assert bool(drawn or tables) == (page != nothing), page
        if page == "compare":  # in the line about the runs, and again at each chart
            told = [text.value for text in app.text if TOLD in text.value]
            assert len(told) == 1 + len(app.get("vega_lite_chart"))
        elif page != nothing:
            assert any(TOLD in text.value for text in app.text), page


@pytest.mark.parametrize("sample", ["made", *each_gpu_sample()])
def test_every_page_of_every_sample(opened: Open, runs: Path, sample: str | Path) -> None:
    """Found in traces/ whatever GPU their folder is named after, as those made here are."""
    traces = TRACES if isinstance(sample, Path) else runs.parent
    run = str(sample.relative_to(TRACES)) if isinstance(sample, Path) else "h200/bucketed"
    assert traces / run in gpu_samples(traces)
    app = opened(traces, "summary", run)
    for page in ("collectives",) if sample == "made" else PAGES:  # the others are drawn above
        app.switch_page(f"views/{page}.py").run()
        assert not app.exception, (page, app.exception[0].message)
    assert any(TOLD in text.value for text in app.text)  # on the last page


def test_peak_and_what_is_lent_stand_beside_theory(opened: Open, runs: Path) -> None:
    """16 Ψ of mixed precision, an eighth of all; the peak has no formula."""
    app = opened(runs, "summary", "zero3")
    unfold(app, "costs_fold")
    table = next(frame.value for frame in app.dataframe if "measured (MB)" in frame.value)
    assert table[["part", "measured (MB)"]].to_numpy().tolist() == [
        ["parameters", 2],
        ["gradients", 2],
        ["optimizer", 12],
        ["peak", 25],
        ["lent to phantoms", 3],
    ]
    assert table["theory (MB)"].tolist()[:3] == [2, 2, 12]
    assert table["theory (MB)"].isna().tolist()[3:] == [True, True]
    app.switch_page("views/compare.py").run()
    app.multiselect(key="compared").set_value(["bucketed", "torch-fsdp2", "zero3"]).run()
    assert not app.exception
    costs = next(frame.value for frame in app.dataframe if "peak memory (MB)" in frame.value)
    assert costs["peak memory (MB)"].tolist() == [25, 25, 25]


def test_the_report(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    names = ("zero3", "bucketed", "torch-fsdp2")
    done = CliRunner().invoke(command_line, ["report", *(str(runs / name) for name in names), "-o", str(out)])
    assert done.exit_code == 0, done.output
    page = out.read_text()
    assert len(re.findall(rf'<p class="note">[^<]*{re.escape(TOLD)}', page)) == len(names)
    assert f"in some runs {TOLD}" not in page  # in all
