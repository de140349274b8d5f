"""The same figures as tables for a terminal of 80 columns, in ms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

__all__ = ["buckets_table", "compare_table", "plain", "summary_table"]

NS_PER_MS = 1_000_000


def summary_table(table: pd.DataFrame, title: str) -> Table:
    """`summary`'s rows: the five parts of each step, and the share of communication that was hidden."""
    shown = _table(title, "rank", "step", "step ms", "compute", "overlap", "exposed", "memory", "idle", "hidden")
    shown.caption = "ms; compute + overlap + exposed + memory + idle = step; hidden = overlap ÷ communication"
    parts = ["span_ns", "compute_only_ns", "overlapped_ns", "exposed_comm_ns", "memory_only_ns", "idle_ns"]
    for _, row in table.iterrows():
        times = (_ms(row[part]) for part in parts)
        _add(shown, [_known(row["rank"]), _known(row["step"]), *times, _percent(row["overlap_ratio"])])
    return shown


def buckets_table(table: pd.DataFrame) -> Table:
    """`buckets`' rows of one rank and step: when each was ready, ran, and which parameter it waited for."""
    first = table.iloc[0]
    begins, ends = _ms(first["backward_start_ns"]), _ms(first["backward_end_ns"])
    title = f"rank {_known(first['rank'])}, step {_known(first['step'])}: backward from {begins} to {ends} ms"
    shown = _table(title, "bucket", "MB", "ready", "start", "end", "exposed")
    shown.add_column("last gradient", overflow="ellipsis")
    for _, row in table.iterrows():
        times = (_ms(row[column]) for column in ("ready_ns", "start_ns", "end_ns", "exposed_ns"))
        _add(shown, [str(row["index"]), f"{row['bytes'] / 1e6:.1f}", *times, _known(row["last_parameter"])])
    return shown


def compare_table(table: pd.DataFrame) -> Table:
    """`compare`'s rows, the median over all ranks' steps and its interquartile range."""
    shown = _table("Runs compared", *[], first="run")
    for column in ("cap", "step ms", "± IQR", "exposed", "comm", "compute", "hidden"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.caption = "medians over every rank's steps, ms; hidden = overlap ÷ communication; cap = bucket_cap_mb"
    for _, row in table.iterrows():
        name = f"{row['path']}{' ← fastest' if row['fastest'] else ''}{' (emulated link)' if row['emulated'] else ''}"
        figures = [
            "step_ms_median",
            "step_ms_iqr",
            "exposed_ms_median",
            "comm_ms_median",
            "compute_ms_median",
        ]
        _add(
            shown,
            [
                name,
                _known(row["bucket_cap_mb"]),
                *(_number(row[f]) for f in figures),
                _percent(row["overlap_ratio"]),
            ],
        )
    return shown


def _table(title: str, *columns: str, first: str | None = None) -> Table:
    shown = Table(
        title=plain(title),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
        collapse_padding=True,
    )
    if first:
        shown.add_column(first, overflow="fold")
    for column in columns:
        shown.add_column(column, justify="right", no_wrap=True)
    return shown


def plain(text: str, style: str = "") -> Text:
    """Text as it is: what comes out of a trace is neither markup nor an order to the terminal."""
    return Text("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text), style=style)


def _add(shown: Table, cells: Iterable[str]) -> None:
    shown.add_row(*map(plain, cells))


def _known(value: Any) -> str:
    if pd.isna(value):
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _ms(value: Any) -> str:
    return "–" if pd.isna(value) else f"{value / NS_PER_MS:.1f}"


def _number(value: Any) -> str:
    return "–" if pd.isna(value) else f"{value:.1f}"


def _percent(value: Any) -> str:
    return "–" if pd.isna(value) else f"{100 * value:.0f} %"
