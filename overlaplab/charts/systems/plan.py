"""What a planned training run would hold per GPU, over the number of GPUs."""

from __future__ import annotations

import altair as alt
import pandas as pd

from overlaplab.analyses.systems.plan import PLAN_PARTS
from overlaplab.charts.parts import Layer, dashed_lines, fills_drawn, row_axis, tooltip
from overlaplab.charts.theme import colours, finish, labels_width, palette
from overlaplab.words import byte_unit, size_exact


def planned_memory(
    table: pd.DataFrame, *, limit: int | None, planned: int, title: str, dark: bool = False, note: str | None = None
) -> alt.LayerChart:
    """A stacked bar per number of GPUs, from one stage of `plan_over_ranks`; a dashed line at the GPU's `limit` bytes.

    The planned number's label is marked.
    """
    tones = palette(dark)
    unit, scale = byte_unit(float(max(table["total_bytes"].max(), limit or 0)))
    labels = {ranks: f"{ranks:,}" + (" ◂ planned" if ranks == planned else "") for ranks in table["ranks"]}
    drawn = table.melt(["ranks", "total_bytes"], [f"{part}_bytes" for part in PLAN_PARTS], "part", "bytes")
    part = drawn["part"].str.removesuffix("_bytes")
    drawn = drawn.assign(
        part=part,
        order=part.map(PLAN_PARTS.index),
        held=drawn["bytes"] / scale,
        label=drawn["ranks"].map(labels),
        word=drawn["bytes"].map(size_exact),
        whole=drawn["total_bytes"].map(size_exact),
    )
    tones_of_parts = (tones.gather, tones.scatter, tones.to_all, tones.memory)
    fills = fills_drawn(zip(PLAN_PARTS, tones_of_parts, strict=True), drawn.loc[drawn["bytes"] > 0, "part"])
    bars = Layer(drawn).mark_bar(height={"band": 0.7}, opacity=1)
    bars = bars.encode(
        y=row_axis("label", labels.values(), "GPUs"),
        x=alt.X("held:Q", title=f"memory per GPU ({unit})", stack="zero"),
        order=alt.Order("order:Q"),
        color=colours(fills, left=labels_width(labels.values()), offset=22),
        tooltip=tooltip({"label": "GPUs", "part": "", "word": "takes", "whole": "of"}),
    )
    layers = [bars]
    if limit is not None:
        near = limit < table["total_bytes"].max() / 2  # where a name to the left would stand beside the chart
        look = {"align": "left", "dx": -4} if near else {"align": "right", "dx": 4}
        place, name = pd.DataFrame({"held": [limit / scale]}), f"a GPU has {limit / scale:g} {unit}"
        layers += dashed_lines(place, "x", "held", name, tones.ink, width=2, dy=-7, **look)
    subtitle = ["States by ZeRO's formulas, and activations of one microbatch.", note]
    description = f"Stacked bars of the memory per GPU over {len(labels)} numbers of GPUs. {title}."
    return finish(layers, title, subtitle, description, dark=dark, height=alt.Step(26))
