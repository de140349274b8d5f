"""The compare chart: step time of several runs, by what it is made of."""

from __future__ import annotations

from pathlib import PurePath
from typing import Literal

import altair as alt
import pandas as pd

from overlaplab.charts.theme import colours, finish, palette
from overlaplab.findings import compare_title
from overlaplab.words import count, duration, shorten

__all__ = ["compare", "run_labels"]

COMPUTE = "compute only"
HIDDEN = "communication hidden by compute"
EXPOSED = "communication exposed"
REST = "neither (idle, memory)"


def compare(table: pd.DataFrame, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """One bar per run out of `overlaplab.compare(runs)`: the median step in ms and its parts.

    Rows are named by `bucket_cap_mb` where the runs differ only in it, else by the run's folder. Medians of
    parts need not add up to the median of the whole: the rest takes up the difference.
    """
    tones = palette(dark)
    axis, labels = run_labels(table)
    rows, ends = _rows(table, labels)
    y = alt.Y("run:N", sort=labels, title=axis, axis=alt.Axis(domain=False, ticks=False, labelOverlap=False))
    longest = max(ends["end"], default=1.0)
    x = alt.X(
        "begin:Q",
        title="median step time (ms)",
        scale=alt.Scale(domain=[0, longest * 1.28], nice=False),
        axis=alt.Axis(tickCount=12),
    )
    fills = [(COMPUTE, tones.compute), (HIDDEN, tones.gather), (EXPOSED, tones.exposed), (REST, tones.idle)]
    bars: alt.Chart = (
        alt.Chart(rows)
        .mark_bar(height={"band": 0.72}, opacity=1)
        .encode(
            x=x,
            x2=alt.X2("end:Q"),
            y=y,
            color=colours(fills),
            tooltip=[
                alt.Tooltip("run:N"),
                alt.Tooltip("part:N", title="what"),
                alt.Tooltip("ms:Q", title="median ms", format=",.3f"),
            ],
        )
    )
    layers = [bars]
    for fastest in (False, True):
        weight: Literal["bold", "normal"] = "bold" if fastest else "normal"
        words: alt.Chart = (
            alt.Chart(ends[ends["fastest"] == fastest])
            .mark_text(align="left", dx=6, color=tones.ink, fontSize=12, fontWeight=weight)
            .encode(x=alt.X("end:Q"), y=y, text=alt.Text("word:N"))
        )
        layers.append(words)
    title = compare_title(table, labels, by_cap=axis == "bucket_cap_mb")
    return finish(
        layers,
        title=title,
        subtitle=[
            "Medians over all ranks' steps, with the interquartile range (IQR) at the bar."
            " Hidden communication runs while the rank computes.",
            note or ("emulated link" if table["emulated"].any() else None),
        ],
        description=f"Bars of {count(len(labels), 'run')} by median step time. {title}.",
        dark=dark,
        height=alt.Step(34 if len(labels) <= 16 else 22),
    )


def run_labels(table: pd.DataFrame) -> tuple[str, list[str]]:
    """The axis' title and a distinct word per run."""
    caps = table["bucket_cap_mb"]
    same = all(table[column].nunique(dropna=False) <= 1 for column in ("strategy", "ranks", "emulated"))
    if same and caps.notna().all() and caps.nunique() == len(table) > 1:
        return "bucket_cap_mb", [f"{cap:g}" for cap in caps]
    folders = [PurePath(str(path)) for path in table["path"]]
    labels = [shorten(folder.name or str(folder), 40) for folder in folders]
    for depth in (2, 3):
        if len(set(labels)) == len(labels):
            break
        labels = [shorten("/".join(folder.parts[-depth:]), 40) for folder in folders]
    if len(set(labels)) < len(labels):
        labels = [f"{number}: {label}" for number, label in enumerate(labels, 1)]
    mixed = table["emulated"].nunique() > 1
    return "run", [
        f"{label} (emulated link)" if mixed and emulated else label
        for label, emulated in zip(labels, table["emulated"], strict=True)
    ]


def _rows(table: pd.DataFrame, labels: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The bars' parts, and the words at their ends."""
    rows, ends = [], []
    for label, run in zip(labels, table.to_dict("records"), strict=True):
        step, exposed = _number(run["step_ms_median"]), _number(run["exposed_ms_median"])
        hidden = max(_number(run["comm_ms_median"]) - exposed, 0.0)
        compute = max(_number(run["compute_ms_median"]) - hidden, 0.0)
        done = 0.0
        parts = [(COMPUTE, compute), (HIDDEN, hidden), (EXPOSED, exposed)]
        for part, took in [*parts, (REST, step - compute - hidden - exposed)]:
            if took > 0:
                rows.append((label, part, took, done, done + took))
                done += took
        fastest = bool(run["fastest"])
        word = f"{duration(step)}, IQR {duration(_number(run['step_ms_iqr']))}" + (", fastest" if fastest else "")
        ends.append((label, done, word, fastest))
    return (
        pd.DataFrame(rows, columns=["run", "part", "ms", "begin", "end"]),
        pd.DataFrame(ends, columns=["run", "end", "word", "fastest"]),
    )


def _number(value: object) -> float:
    return 0.0 if value is None or pd.isna(value) else float(value)  # type: ignore[call-overload,arg-type]
