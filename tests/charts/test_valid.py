"""Charts that tests draw are held against Vega-Lite's schema (`_valid_charts` in tests/conftest.py)."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from jsonschema import ValidationError

from overlaplab import charts
from overlaplab.charts.theme import EscapedChart


def bar(opacity: float, data: str = "data-1") -> dict[str, Any]:
    layer = {"mark": {"type": "bar", "opacity": opacity}, "data": {"name": data}, "encoding": {"x": {"field": "a"}}}
    return {"layer": [layer, layer]}


def test_what_the_schema_does_not_allow_is_noticed_beside_charts_alike() -> None:
    for opacity in (0.2, 0.4):
        EscapedChart.validate(bar(opacity, f"data-{opacity}"))
    for opacity in (-0.4, 1.4):
        with pytest.raises(ValidationError):
            EscapedChart.validate(bar(opacity))
    with pytest.raises(ValidationError):
        EscapedChart.validate({"layer": [bar(0.2)["layer"][0] | {"mark": "blot"}]})


def test_charts_are_validated_as_they_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[dict[str, Any]] = []
    monkeypatch.setattr(EscapedChart, "validate", held.append)
    drawn = charts.step_marks(pd.DataFrame({"word": ["alone", "measured"], "ns": [10_000_000, 30_000_000]})).to_dict()
    assert [len(chart["layer"]) for chart in held] == [len(drawn["layer"])]
