"""What a reader takes away from a chart."""

from __future__ import annotations

import struct

import pandas as pd
import pytest

from overlaplab import charts
from overlaplab.dashboard.downloads import csv_bytes, file_name, png_bytes


def test_a_table_as_csv_holds_no_formula() -> None:
    table = pd.DataFrame(
        {
            "name": ["=cmd()", "+1", "-1", "@x", "plain", None],
            "ms": pd.array([1.5, -2.5, None, 0, 1, 2], dtype="Float64"),
            "step": pd.array([1, 2, None, 4, 5, 6], dtype="Int64"),
        }
    )
    assert csv_bytes(table).decode().splitlines() == [
        "name,ms,step",
        "'=cmd(),1.5,1",
        "'+1,-2.5,2",
        "'-1,,",
        "'@x,0.0,4",
        "plain,1.0,5",
        ",2.0,6",
    ]


def test_a_chart_as_png_stands_on_its_themes_background() -> None:
    late = {"rank": 1, "collectives": 2, "last": 1, "late_median_ns": 5, "late_max_ns": 5, "cost_ns": 5, "alone_ns": 5}
    chart = charts.late_ranks(pd.DataFrame([late]))
    pictures = [png_bytes(chart, dark=dark) for dark in (False, True)]
    for picture in pictures:
        assert picture.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", picture[16:24])
        assert width >= 2200
        assert 100 < height < width
    assert pictures[0] != pictures[1]


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("bucketed", "bucketed_waits.png"),
        ("sweep/cap-0.25", "sweep-cap-0.25_waits.png"),
        ("2024-05-01 lr=1e-4…/run", "2024-05-01-lr-1e-4-run_waits.png"),
        ("../<x>:", "x_waits.png"),
        ("", "waits.png"),
    ],
)
def test_a_file_is_named_after_its_run(run: str, name: str) -> None:
    assert file_name(run, "waits", "png") == name
