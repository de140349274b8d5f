"""Charts of watched trainings: what is drawn, what is left out, and what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
from made.watched import MS, eventful, step, write_watched

from overlaplab import charts
from overlaplab.charts.watched import RECORDING
from overlaplab.load.watched import CellKind, load_watched
from overlaplab.sections.live import live_section
from overlaplab.sections.watched import WatchedTables

LAST = {"rank": 1, "first_step": 0, "last_step": 99, "telling_steps": 3, "late_steps": 3, "late_share": 1.0}


def layers(chart: alt.LayerChart) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each layer with its rows."""
    spec = chart.to_dict()
    return [(layer, spec["datasets"][layer.get("data", spec.get("data"))["name"]]) for layer in spec["layer"]]


def marks(chart: alt.LayerChart) -> list[str]:
    return [layer["mark"]["type"] for layer, _ in layers(chart)]


def series(folder: Path) -> pd.DataFrame:
    return WatchedTables(load_watched(folder)).series


def test_lines_are_medians_and_what_is_unknown_is_not_drawn(tmp_path: Path) -> None:
    cells = [*step(0, 10 * MS, {CellKind.EXPOSED_GRADIENTS: 4 * MS}), *step(1, 30 * MS), *step(2, 20 * MS, {})]
    drawn = layers(charts.watched_times(series(write_watched(tmp_path, cells))))
    lines = [rows for layer, rows in drawn if layer["mark"]["type"] == "line"]
    assert [(row["at"], row["span"]) for row in lines[0]] == [(0, 10), (1, 30), (2, 20)]
    assert [(row["at"], row["exposed"]) for row in lines[1]] == [(0, 4)]
    dots = [rows for layer, rows in drawn if layer["mark"]["type"] == "circle"]  # a line of one point is unseen
    assert [row["exposed"] for row in dots[0]] == [4]
    assert [row["word"] for layer, rows in drawn if layer["mark"]["type"] == "text" for row in rows] == [
        "step",
        "exposed",
    ]


def test_nothing_exposed_is_drawn_where_none_is_known(tmp_path: Path) -> None:
    folder = write_watched(tmp_path, [*step(0, 10 * MS), *step(1, 10 * MS)])
    words = [
        row["word"] for layer, rows in layers(charts.watched_times(series(folder))) for row in rows if "word" in row
    ]
    assert words == ["step"]
    keys = [block.key for block in live_section(WatchedTables(load_watched(folder))).blocks]
    assert keys == ["watched_times", "ranks_fold"]


def test_kinds_of_steps_are_spikes_and_recordings_are_marks_that_can_be_chosen(tmp_path: Path) -> None:
    recordings = pd.DataFrame({"step": [1203], "reason": ["step > 1.3 * median"]})
    chart = charts.watched_times(series(eventful(tmp_path)), recordings)
    drawn = layers(chart)
    spikes = next(rows for layer, rows in drawn if layer["mark"]["type"] == "rule" and "base" in rows[0])
    assert len(spikes) == 20
    assert all(row["span"] > row["base"] + 40 for row in spikes)
    mark = next(rows for layer, rows in drawn if layer["mark"].get("shape") == "diamond")
    assert mark == [{"step": 1203, "reason": "step > 1.3 * median", "at": 1203}]
    assert [param["name"] for param in chart.to_dict()["params"]] == [RECORDING]
    assert chart.to_dict()["title"]["subtitle"][0].startswith("5 steps a column")


def test_steps_that_would_flatten_all_others_lie_above(tmp_path: Path) -> None:
    cells = [cell for n in range(1200) for cell in step(n, 5000 * MS if n == 0 else 10 * MS)]
    (note,) = charts.watched_times(series(write_watched(tmp_path, cells))).to_dict()["title"]["subtitle"]
    assert note.endswith("The longest steps, of up to 5,000 ms, lie above the chart.")


def test_the_strip_is_as_dark_as_often_a_rank_was_late() -> None:
    never = LAST | {"rank": 0, "late_steps": 0, "late_share": 0.0, "late_median_ns": None}
    strip = pd.DataFrame([never, LAST | {"late_median_ns": 8 * MS}]).astype({"late_median_ns": "Int64"})
    ((layer, rows),) = layers(charts.watched_late(strip))
    assert layer["encoding"]["opacity"]["field"] == "percent"
    assert [(row["row"], row["percent"], row["times"], row["late_ms"]) for row in rows] == [
        ("rank 0", 0, "0 of 3", None),
        ("rank 1", 100, "3 of 3", 8),
    ]
    title = charts.watched_late(strip).title.text
    assert title == "Who was late: most often rank 1, in 100\u00a0% of the measured steps"


def test_a_share_without_a_burst_for_long_breaks_its_line(tmp_path: Path) -> None:
    measured = {CellKind.EXPOSED_GRADIENTS: MS}
    cells = [cell for n in range(100) for cell in step(n, 10 * MS, measured if n < 10 or n > 90 else None)]
    drawn = layers(charts.watched_shares(series(write_watched(tmp_path, cells))))
    assert {row["segment"] for row in drawn[0][1]} == {0, 1}


def test_bursts_are_joined(tmp_path: Path) -> None:
    drawn = layers(charts.watched_shares(series(eventful(tmp_path, steps=400))))  # each piece is a step
    assert {row["segment"] for row in drawn[0][1]} == {0}


def test_charts_of_nothing_are_drawn(tmp_path: Path) -> None:
    assert "text" not in marks(charts.watched_times(series(write_watched(tmp_path, []))))


def test_words_of_lines_that_meet_are_above_and_below(tmp_path: Path) -> None:
    for exposed, baseline in ((4, "bottom"), (9.9, "top")):
        cells = step(0, 10 * MS, {CellKind.EXPOSED_GRADIENTS: int(exposed * MS)})
        drawn = layers(charts.watched_times(series(write_watched(tmp_path / str(exposed), cells))))
        words = {rows[0]["word"]: layer["mark"]["baseline"] for layer, rows in drawn if layer["mark"]["type"] == "text"}
        assert words == {"step": "bottom", "exposed": baseline}
