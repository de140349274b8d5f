"""What a reader takes away from a chart."""

from __future__ import annotations

import struct

import pandas as pd

from overlaplab import charts
from overlaplab.dashboard.downloads import csv_of, png_of


def test_a_table_as_csv_holds_no_formula() -> None:
    table = pd.DataFrame(
        {
            "name": ["=cmd()", "+1", "-1", "@x", "plain", None],
            "ms": pd.array([1.5, -2.5, None, 0, 1, 2], dtype="Float64"),
            "step": pd.array([1, 2, None, 4, 5, 6], dtype="Int64"),
        }
    )
    assert csv_of(table).decode().splitlines() == [
        "name,ms,step",
        "'=cmd(),1.5,1",
        "'+1,-2.5,2",
        "'-1,,",
        "'@x,0.0,4",
        "plain,1.0,5",
        ",2.0,6",
    ]


def test_a_chart_as_png_stands_on_its_themes_background() -> None:
    row = {"rank": 0, "step": 1, "start_ns": 0, "span_ns": 100, "comm_ns": 30, "compute_ns": 60, "overlapped_ns": 20}
    row |= {"compute_only_ns": 40, "exposed_comm_ns": 10, "memory_only_ns": 5, "idle_ns": 25}
    row |= {"exposed_wait_ns": 4, "exposed_transfer_ns": 6}
    chart = charts.summary(pd.DataFrame([row]))
    pictures = [png_of(chart, dark=dark) for dark in (False, True)]
    for picture in pictures:
        assert picture.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", picture[16:24])
        assert width >= 2200
        assert 100 < height < width
    assert pictures[0] != pictures[1]
