"""What a reader takes away: a chart as PNG, a table as CSV; both are made on this machine when they are asked for."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from functools import partial

import altair as alt
import pandas as pd
import streamlit as st

_WIDTH = 1100  # pixels, of which the PNG has twice as many
_BACKGROUND = {True: "#0E1117", False: "#FFFFFF"}  # Streamlit's own
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def download_buttons(
    draw: Callable[[], alt.LayerChart], key: str, table: pd.DataFrame | None, *, dark: bool, run: str
) -> None:
    """Buttons for a chart of `run`, drawn where its picture is asked for: PNG, and CSV where there is a table."""
    with st.container(horizontal=True, horizontal_alignment="right", gap="small", key=f"downloads_{key}"):
        if table is not None:
            csv_button("Download CSV", table, key, run)
        _button("Download PNG", lambda: png_bytes(draw(), dark=dark), key, run, "png", "image/png")


def csv_button(label: str, table: pd.DataFrame, key: str, run: str) -> None:
    """A button for a table about `run` as CSV."""
    _button(label, partial(csv_bytes, table), key, run, "csv", "text/csv")


def _button(label: str, content: Callable[[], bytes], key: str, run: str, ending: str, mime: str) -> None:
    st.download_button(
        label, content, file_name(run, key, ending), mime, f"{key}_{ending}", on_click="ignore", type="tertiary"
    )


def file_name(run: str, key: str, ending: str) -> str:
    """The name of the file of a chart or table: `sweep-cap-25_waits.png`; without the run where that is empty."""
    return "_".join(filter(None, (re.sub(r"[^\w.+-]+", "-", run).strip("-."), f"{key}.{ending}")))


def csv_bytes(table: pd.DataFrame) -> bytes:
    """A table as CSV in UTF-8, in which no text out of a trace is a formula for a spreadsheet."""
    return table.map(_quote_formula).to_csv(index=False).encode()


def png_bytes(chart: alt.LayerChart, *, dark: bool) -> bytes:
    """A chart as PNG of 2200 pixels' width and more, on the theme's background; needs no network."""
    drawn = chart.properties(width=_WIDTH, background=_BACKGROUND[dark])
    file = io.BytesIO()
    drawn.save(file, format="png", scale_factor=2)
    return file.getvalue()


def _quote_formula(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
