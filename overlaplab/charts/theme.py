"""The look that all charts share: a palette per theme, and titles, sizes and fonts."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt

from overlaplab.charts.quiet import QuietChart

FONT = "Source Sans, Source Sans Pro, Segoe UI, Helvetica, Arial, sans-serif"
LINE = 145  # characters of a subtitle's line in the dashboard's column at 1280 pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """Colours by meaning; readable under the three common kinds of colour blindness on the theme's background."""

    compute: str
    gather: str
    """Hidden communication, and communication where hidden and exposed are not distinguished."""
    reduce: str
    other: str
    """Communication that neither gathers nor reduces."""
    exposed: str
    waiting: str
    """Exposed, before the last rank arrived."""
    memory: str
    idle: str
    queued: str
    """Launched, but the link is still busy with earlier work."""
    ink: str
    """Text and marks on the background."""
    soft: str
    """Secondary text."""
    grid: str
    on_dark: str
    """Text on compute and exposed."""
    on_light: str
    """Text on hidden communication and idle."""


LIGHT = Palette(
    compute="#0072B2",
    gather="#C97F0A",
    reduce="#4B2A63",
    other="#3E8E7E",
    exposed="#C5263A",
    waiting="#F2A3AB",
    memory="#8C8C8C",
    idle="#DADDE5",
    queued="#5BA8DC",
    ink="#22252B",
    soft="#5A606B",
    grid="#E3E5EA",
    on_dark="#FFFFFF",
    on_light="#16181D",
)
DARK = Palette(
    compute="#56B4E9",
    gather="#F0B429",
    reduce="#9D6BFF",
    other="#7FD1AE",
    exposed="#FF5A4F",
    waiting="#BF6F6B",
    memory="#8A909B",
    idle="#3B404A",
    queued="#2F6E9A",
    ink="#F1F2F4",
    soft="#B3B8C2",
    grid="#31353E",
    on_dark="#0E1117",
    on_light="#0E1117",
)


def palette(dark: bool) -> Palette:
    """The palette of the dark or the light theme."""
    return DARK if dark else LIGHT


def colours(pairs: Sequence[tuple[str, str]], **legend: Any) -> alt.Color:
    """The colours of the field `part`, from pairs of a value and its colour; all are in the legend, in this order."""
    words, tones = [word for word, _ in pairs], [tone for _, tone in pairs]
    look: dict[str, Any] = {"orient": "top", "labelLimit": 0, "symbolType": "square"} | legend
    return alt.Color(
        "part:N",
        title=None,
        sort=words,
        scale=alt.Scale(domain=words, range=tones),
        legend=alt.Legend(**look) if words else None,  # Vega gives an empty legend an infinite size
    )


def finish(
    layers: Sequence[alt.Chart],
    *,
    title: str,
    subtitle: Iterable[str | None],
    description: str,
    dark: bool,
    width: int | Literal["container"] = "container",
    height: alt.Step | int,
    line: int = LINE,
) -> alt.LayerChart:
    """A chart of these layers with a title, a description for screen readers, a size and the theme.

    `line` is how many characters of a subtitle fit on a line; a title, which is larger, gets three quarters of it.
    """
    tones = palette(dark)
    lines = [part for words in subtitle if words for part in textwrap.wrap(words, line)]
    wrapped = _wrap_title(title, line * 3 // 4)
    head = alt.TitleParams(text=wrapped if len(wrapped) > 1 else title, subtitle=lines)
    # All at once: each of Altair's `configure_…` would copy the whole chart.
    return QuietChart(
        layer=list(layers),
        title=head,
        description=description,
        width=width,
        height=height,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        background="transparent",
        config=_config(tones),
    )


def _config(tones: Palette) -> alt.Config:
    """Fonts, sizes and colours of all charts."""
    return alt.Config(
        font=FONT,
        view=alt.ViewConfig(stroke=None),
        title=alt.TitleConfig(
            anchor="start",
            frame="bounds",
            color=tones.ink,
            fontSize=16,
            subtitleColor=tones.soft,
            subtitleFontSize=13,
            subtitleLineHeight=17,
            offset=10,
            limit=0,
        ),
        axis=alt.AxisConfig(
            labelColor=tones.soft,
            titleColor=tones.soft,
            gridColor=tones.grid,
            domainColor=tones.grid,
            tickColor=tones.grid,
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            labelLimit=320,
        ),
        legend=alt.LegendConfig(labelColor=tones.ink, labelFontSize=12, columnPadding=14, offset=10),
    )


def _wrap_title(title: str, line: int) -> list[str]:
    """The lines of a title; parentheses are not broken."""
    glued = re.sub(r"\([^)]*\)", lambda group: group[0].replace(" ", "\u00a0"), title)
    return [part.replace("\u00a0", " ") for part in textwrap.wrap(glued, line)]
