"""The strip of marks: no words meet or leave the chart, whatever the marks."""

from __future__ import annotations

import pandas as pd
import pytest

from overlaplab import charts

MS = 1_000_000


def strip(**ms: int) -> pd.DataFrame:
    return pd.DataFrame({"word": list(ms), "ns": [took * MS for took in ms.values()]})


@pytest.mark.parametrize(
    ("marks", "levels"),
    [
        (strip(alone=400, best=420, launched=650, measured=870), [2, 1, -1, -2]),
        (strip(alone=7, best=17, launched=18, measured=19), [1, -1, -2, -3]),
        (strip(alone=10, best=11, launched=12, measured=30), [3, 2, 1, -1]),
        (strip(alone=10, measured=30), [1, -1]),
    ],
)
def test_each_mark_has_a_line_of_words_of_its_own(marks: pd.DataFrame, levels: list[int]) -> None:
    spec = charts.step_marks(marks).to_dict()
    texts = {layer["mark"]["align"]: layer for layer in spec["layer"] if layer["mark"]["type"] == "text"}
    assert set(texts) == {"left", "right"}
    rows = [row for rows in spec["datasets"].values() for row in rows if "label" in row and row["level"] != 0]
    shown = {row["label"]: (row["level"], row["align"]) for row in rows}
    assert [level for level, _ in shown.values()] == levels
    # What begins in the left half is written to the right above the line, and the other way round.
    assert all((align == "left") == (level > 0) for level, align in shown.values())
    assert list(shown)[-1] == f"{marks['ns'].iloc[-1] / MS:.1f} ms measured"


def test_the_line_begins_at_nothing() -> None:
    """Of 200 ms 10 may go: the reader sees a twentieth."""
    spec = charts.step_marks(strip(alone=190, measured=200)).to_dict()
    assert spec["layer"][0]["encoding"]["x"]["scale"]["domain"] == [0, 204]
    labels = [row["label"] for rows in spec["datasets"].values() for row in rows if "label" in row]
    assert "190.0 ms alone (−10.0 ms, 5\u00a0%)" in labels


def test_it_says_all_in_words() -> None:
    spec = charts.step_marks(strip(alone=10, measured=30), note="if nobody waits").to_dict()
    heading = "How short this step could be with less exposed communication"
    assert spec["description"] == f"{heading}: 10.0 ms alone (−20.0 ms, 67\u00a0%), 30.0 ms measured."
    assert spec["title"]["subtitle"] == ["if nobody waits"]
    assert "subtitle" not in charts.step_marks(strip(alone=10, measured=30)).to_dict()["title"]
