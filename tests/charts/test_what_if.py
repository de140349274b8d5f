"""The charts of the page What if: where their words stand."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd
import pytest

from overlaplab import charts
from overlaplab.analyses.systems.plan import PLAN_PARTS


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


@pytest.mark.parametrize(("found_ms", "under"), [(595, True), (300, False), (None, False)])
def test_no_line_strikes_the_word_measured_through(found_ms: int | None, under: bool) -> None:
    """It stands under a line that runs close below its dot."""
    caps = pd.DataFrame({"bucket_cap_mb": [1.0, 25.0], "step_ns": [620 * 10**6, 800 * 10**6]})
    measured = pd.DataFrame({"bucket_cap_mb": [25.0], "step_ns": [610 * 10**6]})
    found_ns = None if found_ms is None else found_ms * 10**6
    chart = charts.caps_predicted(caps, measured, 25.0, 90e6, found_ns=found_ns)
    assert (word(chart, "measured")["dy"] > 14) is under


@pytest.mark.parametrize(("measured_ms", "below"), [(120, False), (700, True)])
def test_the_word_measured_is_not_on_the_axis(measured_ms: int, below: bool) -> None:
    table = pd.DataFrame({"ranks": [2, 16, 128], "step_ns": [120_000_000, 500_000_000, 1_000_000_000]})
    chart = charts.ranks_predicted(table, recorded=2, measured_ns=measured_ms * 10**6, chosen=2, half=0.1)
    assert (word(chart, "measured")["dy"] > 0) is below


def test_the_best_buckets_possible_are_a_named_line_below_the_curve() -> None:
    table = pd.DataFrame({"bucket_cap_mb": [1.0, 25.0], "step_ns": [170_000_000, 208_000_000]})
    chart = charts.caps_predicted(table, table.head(0), 25.0, 10e6, least_ns=159_600_000)
    spec = chart.to_dict()
    row = {"value": 159.6, "word": "best buckets possible: 159.6 ms"}
    named = [layer for layer in spec["layer"] if spec["datasets"][layer["data"]["name"]] == [row]]
    assert [layer["mark"]["type"] for layer in named] == ["rule", "text"]
    lowest = next(layer["encoding"]["y"]["scale"]["domainMin"] for layer in spec["layer"] if "y2" in layer["encoding"])
    assert lowest < 159.6
    assert "no buckets give a shorter step" in str(chart.title.subtitle)
    assert "best buckets" not in str(charts.caps_predicted(table, table.head(0), 25.0, 10e6).to_dict())


def test_a_step_of_an_unknown_cap_is_a_named_line() -> None:
    table = pd.DataFrame({"bucket_cap_mb": [1.0, 25.0], "step_ns": [170_000_000, 208_000_000]})
    chart = charts.caps_predicted(table, table.head(0), None, 10e6, measured_ns=201_000_000)
    assert "measured: 201.0 ms" in str(chart.to_dict())
    depths = pd.DataFrame({"prefetch": [1, 2], "step_ns": [170_000_000, 170_000_000]})
    drawn = charts.depths_predicted(depths, chosen=2, measured_ns=201_000_000, half_ns=10e6)
    assert "measured: 201.0 ms" in str(drawn.to_dict())
    assert " ".join(drawn.title.text) == "Predicted step by prefetch: shortest with 1, 170.0 ms"


def test_a_depth_of_none_has_its_place() -> None:
    depths = pd.DataFrame({"prefetch": [0, 1, 2], "step_ns": [190_000_000, 170_000_000, 170_000_000]})
    drawn = charts.depths_predicted(depths, chosen=0, measured_ns=201_000_000, half_ns=10e6).to_dict()
    scales = [layer["encoding"]["x"]["scale"] for layer in drawn["layer"] if "scale" in layer["encoding"].get("x", {})]
    assert scales
    assert all(scale["type"] == "linear" and scale["domain"] == [0, 2] for scale in scales)


@pytest.mark.parametrize(("limit", "side"), [(80 * 10**9, "right"), (10**9, "left")])
def test_the_memory_of_a_gpu_is_a_named_line(limit: int, side: str) -> None:
    parts = {f"{part}_bytes": [10**10] for part in PLAN_PARTS}
    table = pd.DataFrame({"ranks": [8], "total_bytes": [4 * 10**10], **parts})
    layers = charts.planned_memory(table, limit=limit, planned=8, title="").to_dict()["layer"]
    name = next(layer for layer in layers if layer["mark"]["type"] == "text")
    assert name["encoding"]["text"]["value"] == f"a GPU has {limit // 10**9} GB"
    assert name["mark"]["align"] == side
