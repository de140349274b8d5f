"""Every page marks a predicted run."""

from __future__ import annotations

from pathlib import Path

import pytest
from browsing.app_page import head_texts
from samples import sample_run

from overlaplab.findings.runs import PREDICTED
from overlaplab.report.predicted_run import write_run
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.programs.setting import Setting


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two predicted runs: buckets with another cap, and units with another prefetch."""
    found = tmp_path_factory.mktemp("predicted")
    for name, setting in (("bucketed", Setting(bucket_cap_mb=1.0)), ("zero3", Setting(prefetch=2))):
        prediction = predict(sample_run(name), setting)
        write_run(found / name, prediction.manifest, prediction.ranks)
    return found


@pytest.mark.parametrize(
    ("page", "run"),
    [
        *((page, "bucketed") for page in ("summary", "timeline", "buckets", "collectives", "what_if", "compare")),
        *((page, "zero3") for page in ("summary", "zero3", "collectives")),
    ],
)
def test_every_page_says_that_the_run_was_predicted(opened, folder: Path, page: str, run: str) -> None:
    app = opened(folder, page, run)
    assert any(f"{PREDICTED}, not recorded" in element.value.lower() for element in app.text)
    bars = [html.proto.body for html in app.get("html") if 'class="bar' in html.proto.body]
    assert bool(bars) == (page == "summary")
    assert all('class="bar predicted"' in bar for bar in bars)
    if page == "what_if":
        assert head_texts(app)[2].startswith("As predicted: ")
    for chart in app.get("vega_lite_chart"):
        assert '"strokeDash": [3, 2]' in chart.proto.spec
