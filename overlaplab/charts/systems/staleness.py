"""A histogram of how stale the gradients were that an asynchronous server applied."""

from __future__ import annotations

import altair as alt
import pandas as pd

from overlaplab.charts.parts import Layer, empty_chart, tooltip
from overlaplab.charts.theme import finish, palette
from overlaplab.columns import column
from overlaplab.findings.systems.staleness import staleness_remark, staleness_title

_HEIGHT_PX = 220


def staleness(table: pd.DataFrame, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """A bar per staleness: how many updates had it. Takes rows of `overlaplab.analyses.staleness`."""
    if table.empty:
        return empty_chart("No update was recorded", dark)
    counted = table.groupby("staleness").agg(updates=("worker", "size"), by=("worker", _ranks)).reset_index()
    every = pd.DataFrame({"staleness": range(int(table["staleness"].max()) + 1)})
    rows = every.merge(counted, how="left").fillna({"updates": 0, "by": ""})
    x = alt.X("staleness:O", title="staleness (updates)", axis=alt.Axis(labelAngle=0))
    y = alt.Y("updates:Q", title="updates", axis=alt.Axis(tickMinStep=1, format="d"))
    lines = tooltip({"staleness": column("staleness", "staleness").header, "updates": "", "by": "of ranks"})
    layers = [Layer(rows).mark_bar(color=palette(dark).compute, opacity=1).encode(x=x, y=y, tooltip=lines)]
    title = staleness_title(table)
    subtitle = [staleness_remark(table), note]
    description = f"Bars of {len(table)} updates by their staleness. {title}."
    return finish(layers, title, subtitle, description, dark=dark, height=_HEIGHT_PX)


def _ranks(workers: pd.Series[int]) -> str:
    return ", ".join(str(worker) for worker in sorted({*workers}))
