"""The compare chart: the step time of several runs and its parts."""

from __future__ import annotations

import altair as alt
import pandas as pd

from overlaplab.charts.parts import FLUSH, bars, row_axis, stack_parts, step_fills, tooltip, with_room, words
from overlaplab.charts.theme import colours, finish, labels_width, palette
from overlaplab.findings.across_runs.comparison import compare_title, run_labels
from overlaplab.words import count, duration, percent

_MEASURES = (("step", "median"), ("step", "iqr"), ("exposed", "median"), ("comm", "median"), ("compute", "median"))


def compare(table: pd.DataFrame, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """One bar per run, from `overlaplab.compare(runs)`: the median step in ms and its parts.

    Rows are named by `bucket_cap_mb` where the runs differ only in it, else by the run's folder. A bar's parts have
    their shares of all steps' time, as `table.attrs["parts_ms"]` tells; without it those of their medians.
    """
    tones = palette(dark)
    axis, labels = run_labels(table)
    rows, ends = _rows(table, labels)
    y = row_axis("run", labels, axis)
    scale = with_room(max(ends["end"], default=1.0), ends["word"])
    x = alt.X("begin:Q", title="median step time (ms)", scale=scale, axis=alt.Axis(tickCount=12, labelFlush=FLUSH))
    lines = tooltip({"run": "", "part": "what", "ms:Q": "ms of the step", "share": "of the step"})
    layers = [bars(rows, x, y, colours(step_fills(tones, rows["part"]), left=labels_width(labels)), lines, 0.72)]
    layers += [
        words(ends[ends["fastest"] == fastest], "end", y, tones.ink, align="left", dx=6, fontWeight=weight)
        for fastest, weight in ((False, "normal"), (True, "bold"))
    ]
    title = compare_title(table, labels, by_cap=axis == "bucket_cap_mb")
    subtitle = [
        "Medians over all ranks' steps, with the interquartile range (IQR) at the bar; parts by their share of all"
        " steps' time. Hidden communication runs while the rank computes.",
        note or ("emulated link" if table["emulated"].any() else None),
    ]
    description = f"Bars of {count(len(labels), 'run')} by median step time. {title}."
    return finish(layers, title, subtitle, description, dark=dark, height=alt.Step(34 if len(labels) <= 16 else 22))


def _rows(table: pd.DataFrame, labels: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The bars' parts, and the words at their ends."""
    rows, ends = [], []
    measures = [f"{name}_ms_{which}" for name, which in _MEASURES]
    figures = table[measures].astype("float64").fillna(0.0).to_numpy().tolist()
    parts_ms = table.attrs.get("parts_ms", {})
    of_run = zip(labels, table["path"], figures, table["fastest"], strict=True)
    for label, path, (step, iqr, *medians), fastest in of_run:
        lengths = (
            [part or 0.0 for part in parts_ms[path].values()] if path in parts_ms else _scale_medians(step, *medians)
        )
        parts = stack_parts(lengths)
        rows += [(label, part, took, percent(took, step), begin, end) for part, took, begin, end in parts]
        word = f"{duration(step)}, IQR {duration(iqr)}" + (", fastest" if fastest else "")
        ends.append((label, parts[-1][-1] if parts else 0.0, word, bool(fastest)))
    return (
        pd.DataFrame(rows, columns=["run", "part", "ms", "share", "begin", "end"]),
        pd.DataFrame(ends, columns=["run", "end", "word", "fastest"]),
    )


def _scale_medians(step: float, exposed: float, comm: float, computing: float) -> list[float]:
    """Medians of parts, which may add up to more than the median step, as parts of it."""
    hidden = max(comm - exposed, 0.0)
    compute = max(computing - hidden, 0.0)
    whole = compute + hidden + exposed
    scale = step / whole if whole > step else 1.0
    return [scale * compute, scale * hidden, scale * exposed, max(step - whole, 0.0)]
