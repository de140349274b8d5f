"""The compare chart: the step time of several runs and its parts."""

from __future__ import annotations

import altair as alt
import pandas as pd

from overlaplab.charts.parts import FLUSH, bars, row_axis, stack_parts, step_fills, tooltip, with_room, words
from overlaplab.charts.theme import colours, finish, labels_width, palette
from overlaplab.findings import compare_title, run_labels
from overlaplab.words import count, duration

_MEASURES = (("step", "median"), ("step", "iqr"), ("exposed", "median"), ("comm", "median"), ("compute", "median"))


def compare(table: pd.DataFrame, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """One bar per run, from `overlaplab.compare(runs)`: the median step in ms and its parts.

    Rows are named by `bucket_cap_mb` where the runs differ only in it, else by the run's folder. Medians of
    parts need not add up to the median of the whole: the last part takes up the difference.
    """
    tones = palette(dark)
    axis, labels = run_labels(table)
    rows, ends = _rows(table, labels)
    y = row_axis("run", labels, axis)
    scale = with_room(max(ends["end"], default=1.0), ends["word"])
    x = alt.X("begin:Q", title="median step time (ms)", scale=scale, axis=alt.Axis(tickCount=12, labelFlush=FLUSH))
    lines = tooltip({"run": "", "part": "what", "ms:Q": "median ms"})
    layers = [bars(rows, x, y, colours(step_fills(tones), left=labels_width(labels)), lines, 0.72)]
    layers += [
        words(ends[ends["fastest"] == fastest], "end", y, tones.ink, align="left", dx=6, fontWeight=weight)
        for fastest, weight in ((False, "normal"), (True, "bold"))
    ]
    title = compare_title(table, labels, by_cap=axis == "bucket_cap_mb")
    subtitle = [
        "Medians over all ranks' steps, with the interquartile range (IQR) at the bar."
        " Hidden communication runs while the rank computes.",
        note or ("emulated link" if table["emulated"].any() else None),
    ]
    description = f"Bars of {count(len(labels), 'run')} by median step time. {title}."
    return finish(layers, title, subtitle, description, dark=dark, height=alt.Step(34 if len(labels) <= 16 else 22))


def _rows(table: pd.DataFrame, labels: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The bars' parts, and the words at their ends."""
    rows, ends = [], []
    measures = [f"{name}_ms_{which}" for name, which in _MEASURES]
    figures = table[measures].astype("float64").fillna(0.0).to_numpy().tolist()
    for label, (step, iqr, exposed, comm, computing), fastest in zip(labels, figures, table["fastest"], strict=True):
        hidden = max(comm - exposed, 0.0)
        compute = max(computing - hidden, 0.0)
        parts = stack_parts((compute, hidden, exposed, step - compute - hidden - exposed))
        rows += [(label, *part) for part in parts]
        word = f"{duration(step)}, IQR {duration(iqr)}" + (", fastest" if fastest else "")
        ends.append((label, parts[-1][-1] if parts else 0.0, word, bool(fastest)))
    return (
        pd.DataFrame(rows, columns=["run", "part", "ms", "begin", "end"]),
        pd.DataFrame(ends, columns=["run", "end", "word", "fastest"]),
    )
