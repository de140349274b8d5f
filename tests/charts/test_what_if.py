"""The charts of the page What if: where their words stand."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd
import pytest

from overlaplab import charts


def word(chart: alt.LayerChart, text: str) -> Any:
    """The mark of this word."""
    spec = chart.to_dict()
    rows = {layer["data"]["name"]: spec["datasets"][layer["data"]["name"]] for layer in spec["layer"]}
    return next(
        layer["mark"] for layer in spec["layer"] if any(row.get("word") == text for row in rows[layer["data"]["name"]])
    )


@pytest.mark.parametrize(
    ("held", "below"), [((100, 90, 60), True), ((100, 50, 1), False), ((50, 50, 50), False), ((1, 2, 3), False)]
)
def test_the_word_predicted_is_not_on_the_axis(held: tuple[int, ...], below: bool) -> None:
    table = pd.DataFrame(
        {"ranks": [2, 16, 128], "held_bytes": pd.array([size * 10**6 for size in held], dtype="Int64")}
    )
    assert (word(charts.held_predicted(table, chosen=2), "predicted")["dy"] > 0) is below


@pytest.mark.parametrize(("measured_ms", "below"), [(120, False), (700, True)])
def test_the_word_measured_is_not_on_the_axis(measured_ms: int, below: bool) -> None:
    table = pd.DataFrame({"ranks": [2, 16, 128], "step_ns": [120_000_000, 500_000_000, 1_000_000_000]})
    chart = charts.ranks_predicted(table, recorded=2, measured_ns=measured_ms * 10**6, chosen=2, half=0.1)
    assert (word(chart, "measured")["dy"] > 0) is below
