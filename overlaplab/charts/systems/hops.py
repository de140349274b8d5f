"""Where every chunk of a bucket is after each hop of an all-reduce that is made by hand."""

from __future__ import annotations

import altair as alt
import pandas as pd

from overlaplab.charts.parts import Layer, empty_chart, fills_drawn, row_axis, tooltip
from overlaplab.charts.theme import colours, finish, palette
from overlaplab.findings import hops_remark, hops_title
from overlaplab.words import count, rank_word

PARTIAL, WHOLE = "the sum of some ranks", "the sum of all ranks"
MOST_CELLS = 2000
"""More are no picture that anybody reads: 8 ranks around a ring have 960."""
_MOST_NUMBERED_CELLS = 60  # cells side by side that leave room for numbers in them


def hops(table: pd.DataFrame, moments: pd.DataFrame, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """A row per rank, a column per hop, and in each a cell per chunk with the number of ranks whose sum it holds.

    Takes rows of `overlaplab.analyses.hops` of one step and bucket, and of `chunks_after_hops` of these. What arrived
    in the hop has a border.
    """
    if table.empty:
        return empty_chart("No hop was recorded", dark)
    tones = palette(dark)
    ranks = int(moments["rank"].nunique())
    cells = pd.DataFrame(
        {
            "row": moments["rank"].map(rank_word),
            "after": moments["hop"].map(lambda hop: "start" if hop < 0 else str(hop)),
            "chunk": moments["chunk"],
            "part": (moments["ranks"] == ranks).map({True: WHOLE, False: PARTIAL}),
            "ranks": moments["ranks"],
            "came": moments["arrived"].map({True: "in this hop", False: "earlier"}),
        }
    )
    after = cells["after"].drop_duplicates().tolist()
    x = alt.X("after:N", sort=after, title="after hop", axis=alt.Axis(labelAngle=0, domain=False, ticks=False))
    y = row_axis("row", sorted(set(cells["row"]), key=int), "rank")
    place = {"x": x, "xOffset": alt.XOffset("chunk:O"), "y": y}
    lines = tooltip({"row": "rank", "after": "after hop", "chunk": "", "ranks": "sum of ranks", "came": "came"})
    border = alt.condition("datum.came == 'in this hop'", alt.value(tones.ink), alt.value("transparent"))
    fills = colours(fills_drawn([(PARTIAL, tones.idle), (WHOLE, tones.gather)], cells["part"]))
    layers = [Layer(cells).mark_rect(strokeWidth=1.5).encode(**place, color=fills, stroke=border, tooltip=lines)]
    if len(after) * cells["chunk"].nunique() <= _MOST_NUMBERED_CELLS:
        ink = alt.condition(f"datum.part == '{WHOLE}'", alt.value(tones.on_dark), alt.value(tones.ink))
        layers.append(Layer(cells).mark_text(fontSize=11).encode(**place, text="ranks:Q", color=ink))
    title = hops_title(moments)
    reading = (
        "In each column a cell per chunk, with the number of ranks whose sum it holds; bordered: came in this hop."
    )
    subtitle = [hops_remark(table), reading, note]
    description = f"A grid of {count(ranks, 'rank')} by {count(len(after), 'moment')}, a cell per chunk. {title}."
    return finish(layers, title, subtitle, description, dark=dark, height=alt.Step(34))
