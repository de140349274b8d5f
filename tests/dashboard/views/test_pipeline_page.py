"""The Pipeline page: what it says of a run with stages, and of one without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from made.pipeline import made_pipeline
from made.strangers import one_f_one_b, run_of
from streamlit.testing.v1 import AppTest


def test_the_page(opened: Callable[..., AppTest], runs: Path) -> None:
    made_pipeline(runs / "stages")
    app = opened(runs, "pipeline", "stages")
    said = "\n".join(element.value for element in app.text).replace("\u00a0", " ")
    assert "45 % of the stages' time is bubble" in said
    assert said.index("45 % of") < said.index("Try the schedule 1F1B")  # the verdict, what to try
    assert said.count("Try the schedule 1F1B") == 1
    assert len(app.get("vega_lite_chart")) == 2
    app.selectbox(key="run_picker").set_value("bucketed").run()
    assert not app.exception
    assert "This run has no pipeline." in app.info[0].value


def test_of_a_strangers_pipeline_the_waits_are_told(opened: Callable[..., AppTest], runs: Path) -> None:
    run_of(runs / "megatron", *one_f_one_b(steps=2))
    app = opened(runs, "pipeline", "megatron")
    assert not app.exception
    said = "\n".join(element.value for element in app.text).replace("\u00a0", " ")
    assert "Rank 0 computes nothing while it waits for messages of the pipeline for 45 % of the time" in said
    (table,) = (own.value for own in app.dataframe)
    assert len(table) == 2
