"""Strips with a cell per rank and step, from which a reader chooses the one to look at: what sharding costs."""

from __future__ import annotations

import altair as alt
import pandas as pd

from overlaplab.charts.parts import Layer, row_axis, tooltip
from overlaplab.charts.theme import finish, palette
from overlaplab.findings.sharding import gather_waits_title, scatters_exposed_title
from overlaplab.words import count, rank_word, to_ms

CELL = "cell"
"""The name of the chart's selection parameter: the `rank` and `step` of the chosen cell."""
_DEEP_SHARE = 0.85  # of the deepest shade: from there on the other ink reads better, in both themes
_MOST_NUMBERED_STEPS = 24  # so many steps leave room for numbers in the cells


def gather_waits(steps: pd.DataFrame, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """How long each rank waited for gathers in each step: rows of `overlaplab.analyses.schedule_steps`.

    Rows without a rank, a step or a known wait are left out.
    """
    complete = steps.dropna(subset=["rank", "step", "wait_ns"])
    what = "Compute's waits for gathers."
    return _strip(complete, "wait_ns", "waited", gather_waits_title(complete), [what, note], dark=dark)


def scatters_exposed(steps: pd.DataFrame, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """How long each rank's reduce-scatters were exposed in each step: rows of `overlaplab.analyses.scatter_steps`.

    Rows without a rank or a step are left out.
    """
    complete = steps.dropna(subset=["rank", "step"])
    what = "Exposed time of reduce-scatters."
    return _strip(complete, "exposed_ns", "exposed", scatters_exposed_title(complete), [what, note], dark=dark)


def _strip(
    complete: pd.DataFrame, column: str, word: str, title: str, subtitle: list[str | None], *, dark: bool
) -> alt.LayerChart:
    tones = palette(dark)
    cells = pd.DataFrame(
        {
            "rank": complete["rank"].astype("int64"),
            "step": complete["step"].astype("int64"),
            "row": complete["rank"].map(rank_word),
            "ms": to_ms(complete[column].astype("float64")),
        }
    )
    cells["word"] = cells["ms"].map("{:,.1f}".format)
    ranks = cells.sort_values("rank")["row"].drop_duplicates().tolist()
    y = row_axis("row", ranks, "rank")
    x = alt.X("step:O", title="step", axis=alt.Axis(labelAngle=0, labelOverlap=True, domain=False, ticks=False))
    shade = alt.Scale(domainMin=0, range=[0.08, 1])  # no mixture of colours, which a report could not switch
    legend = alt.Legend(title=f"{word} (ms)", orient="top", tickCount=4, symbolType="square", titleColor=tones.soft)
    lines = tooltip({"row": "rank", "step:O": "step", "ms:Q": f"{word} ms"})
    chosen = alt.selection_point(name=CELL, fields=["rank", "step"])
    drawn = Layer(cells).mark_rect(cursor="pointer", fill=tones.exposed, stroke=tones.soft, strokeWidth=0.5)
    opacity = alt.Opacity("ms:Q", scale=shade, legend=legend)
    layers = [drawn.encode(x=x, y=y, opacity=opacity, tooltip=lines).add_params(chosen)]
    if cells["step"].nunique() <= _MOST_NUMBERED_STEPS and len(cells):
        deep = f"datum.ms > {float(cells['ms'].max()) * _DEEP_SHARE!r}"
        ink = alt.condition(deep, alt.value(tones.on_dark), alt.value(tones.ink))
        layers.append(Layer(cells).mark_text(fontSize=12).encode(x=x, y=y, text="word:N", color=ink))
    subtitle = [" ".join(filter(None, subtitle))]
    description = f"A strip of {count(len(ranks), 'rank')} by {count(cells['step'].nunique(), 'step')}. {title}."
    return finish(layers, title, subtitle, description, dark=dark, height=alt.Step(26 if len(ranks) <= 16 else 14))
