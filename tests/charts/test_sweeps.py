"""The charts of a sweep, from tables written by hand."""

from __future__ import annotations

import json
import re
from typing import Any

import altair as alt
import pandas as pd
import pytest

from overlaplab import charts
from overlaplab.charts.theme import DARK, LIGHT

MS = 1_000_000
FLICKER = (("hidden", 0, 0.03), ("exposed", 0.03, 0.1))  # in ms, faster than the eye can see


def spec(chart: alt.LayerChart) -> dict[str, Any]:
    """The chart as Vega-Lite, checked against its schema, and fit to be sent as JSON."""
    found: dict[str, Any] = json.loads(json.dumps(chart.to_dict(), allow_nan=False))
    return found


def rows(chart: alt.LayerChart, layer: int) -> list[dict[str, Any]]:
    found = spec(chart)
    name = found["layer"][layer].get("data", found.get("data"))["name"]
    return list(found["datasets"][name])


def swept(**columns: Any) -> pd.DataFrame:
    table = {
        "bucket_cap_mb": [1.0, 25.0, 100.0],
        "buckets": [128, 33, 1],
        "step_ms": [105.1, 95.5, 101.0],
        "spread_ms": [2.0, 2.0, 2.0],
        "compute_only_ms": [60.0, 60.0, 70.0],
        "hidden_ms": [30.0, 32.0, 20.0],
        "exposed_ms": [13.1, 3.5, 11.0],
        "rest_ms": [2.0, 0.0, 0.0],
        "fastest": [False, True, False],
        "tier": [2, 1, 2],
        "runs": [1, 1, 1],
        "emulated": [True, True, True],
    }
    return pd.DataFrame(table | columns).astype({"buckets": "Int64"})


def on_link(*stretches: tuple[float, int | None, str, float, float]) -> pd.DataFrame:
    """Cap, bucket, part, start and end in ms."""
    table = pd.DataFrame(stretches, columns=["bucket_cap_mb", "bucket", "part", "start_ns", "end_ns"])
    table[["start_ns", "end_ns"]] = (table[["start_ns", "end_ns"]] * MS).astype("int64")
    table = table.assign(path="x", rank=0, step=4, bytes=4_000_000)
    return table.astype({"bucket": "Int64", "rank": "Int64", "bytes": "Int64"})


def test_a_cap_is_its_parts_one_after_the_other() -> None:
    chart = charts.caps(swept())
    drawn = [(row["cap"], row["part"], row["begin"], row["end"], row["share"]) for row in rows(chart, 0)]
    assert drawn[:5] == [
        ("1", "compute only", 0, 60, "57\u00a0%"),
        ("1", "communication hidden by compute", 60, 90, "29\u00a0%"),
        ("1", "communication exposed", 90, pytest.approx(103.1), "12\u00a0%"),
        ("1", "neither (idle, memory)", pytest.approx(103.1), pytest.approx(105.1), "2\u00a0%"),
        ("25", "compute only", 0, 60, "63\u00a0%"),
    ]
    assert [row["word"] for row in rows(chart, 1)] == ["105.1 ms, 128 buckets", "101.0 ms, 1 bucket"]
    assert [row["word"] for row in rows(chart, 2)] == ["95.5 ms, 33 buckets"]
    assert [row["fastest"] for row in rows(chart, 3)] == ["fastest"]
    assert spec(chart)["layer"][3]["mark"]["fontWeight"] == "bold"
    assert spec(chart)["title"] == {
        "text": "Fastest: bucket_cap_mb 25, 95.5 ms per step",
        "subtitle": ["Medians over every rank's steps of all recordings of a cap.", "emulated link"],
    }
    assert spec(chart)["layer"][0]["encoding"]["y"]["sort"] == ["1", "25", "100"]


def test_without_a_winner_nothing_is_fastest() -> None:
    chart = charts.caps(swept(fastest=[False] * 3, tier=[1] * 3, buckets=[None] * 3, emulated=[False] * 3))
    assert rows(chart, 3) == []
    assert [row["word"] for row in rows(chart, 1)] == ["105.1 ms", "95.5 ms", "101.0 ms"]
    assert spec(chart)["title"]["text"] == "Step time: all tie with the shortest"
    assert len(spec(chart)["title"]["subtitle"]) == 1
    chart = charts.caps(swept(fastest=[False] * 3, tier=[1] * 3, spread_ms=[2.0, None, 2.0]))
    assert spec(chart)["title"]["text"] == "Step time: too few steps to show a difference"


def test_buckets_are_drawn_in_the_colour_of_what_they_mostly_were() -> None:
    chart = charts.links(
        on_link(
            (1, 0, "hidden", 30, 40),
            (1, 1, "hidden", 40, 45),
            (1, 1, "exposed", 45, 70),
            (25, 0, "hidden", 30, 50),
            (25, 0, "exposed", 50, 50.001),  # nobody could see it
            (25, 0, "hidden", 50.001, 130),
            *((100, 0, part, at + start, at + end) for at in (30, 30.1) for part, start, end in FLICKER),
        ),
        note="emulated link 1Gbps,500us",
    )
    drawn = [(row["cap"], row["what"], row["part"].split()[1], row["begin"], row["end"]) for row in rows(chart, 0)]
    gap = 0.6 * 100 / 400
    assert drawn == [
        ("1", "0", "hidden", 30, pytest.approx(40 - gap)),
        ("1", "1", "hidden", 40, pytest.approx(45, abs=0.3)),
        ("1", "1", "exposed", pytest.approx(45, abs=0.3), pytest.approx(70 - gap)),
        ("25", "0", "hidden", 30, pytest.approx(130 - gap)),
        ("100", "0", "exposed", 30, pytest.approx(30.2 - 0.04)),
    ]
    assert [row["exposed"] for row in rows(chart, 0)] == pytest.approx([0, 25, 25, 0.001, 0.14])
    assert {row["weight"] for row in rows(chart, 0)} == {"4.00 MB"}
    assert spec(chart)["title"]["subtitle"] == [
        "Rank 0's step nearest the median, per cap.",
        "emulated link 1Gbps,500us",
    ]
    colours = spec(chart)["layer"][0]["encoding"]["color"]["scale"]
    assert colours["range"] == [LIGHT.hidden, LIGHT.exposed]


def test_communication_outside_buckets_is_drawn_thin() -> None:
    found = on_link((1, 0, "hidden", 30, 40), (1, None, "exposed", 50, 60), (1, None, "exposed", 70, 75))
    chart = charts.links(found, dark=True)
    assert [(row["what"], row["begin"]) for row in rows(chart, 1)] == [("no bucket", 50), ("no bucket", 70)]
    first, second = (layer["mark"]["height"]["band"] for layer in spec(chart)["layer"])
    assert first > second
    assert spec(chart)["title"]["subtitle"] == ["Rank 0's step nearest the median, per cap. Thin: no bucket's."]
    assert spec(chart)["layer"][0]["encoding"]["color"]["scale"]["range"] == [DARK.hidden, DARK.exposed]


def test_a_sweep_without_communication_draws_nothing() -> None:
    assert spec(charts.links(on_link()))["title"]["text"] == "No communication was recorded"


def test_both_charts_have_their_rows_at_the_same_height() -> None:
    """As many lines of title, subtitle and legend, and the same row height."""
    table = swept()
    links = on_link(*((cap, 0, "hidden", 30.0, 40.0) for cap in table["bucket_cap_mb"]))
    note = "emulated link 0.25Gbps,1000us, link not attained in some runs"
    found = [spec(charts.caps(table, note=note)), spec(charts.links(links, note=note))]
    assert [len(one["title"]["subtitle"]) for one in found] == [2, 2]
    assert [one["height"] for one in found] == [found[0]["height"]] * 2
    legends = [one["layer"][0]["encoding"]["color"] for one in found]
    lines = []
    for one in legends:
        widest = re.match(r"[^>]+ >= [0-9]+ \? ([0-9]) :", one["legend"]["columns"]["expr"])  # as many columns at most
        lines.append(len(one["scale"]["domain"]) // (int(widest[1]) if widest else 1))
    assert lines == [2, 2]
