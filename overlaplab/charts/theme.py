"""The look that all charts share: a palette per theme, and titles, sizes and fonts."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import altair as alt

from overlaplab.causes import Cause
from overlaplab.findings import says_predicted

FONT = "Source Sans, Source Sans Pro, Segoe UI, Helvetica, Arial, sans-serif"
_LETTER, _SYMBOL = 5.8, 30  # pixels of a legend's letter, and of what stands beside a word
_LABEL = 6.4  # pixels of an axis' letter
WIDTH = 880  # pixels of a chart that nothing makes as wide as its place: saved from Python, or in a notebook
LINE = 145  # characters of a subtitle's line in the dashboard's column at 1280 pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """Colours by meaning, one each, of one hue in both themes; those that meet on a chart are told apart under the
    three common kinds of colour blindness (tests/charts/test_colours.py says how far).
    """

    # Where a step's time goes
    compute: str
    """Computation; where passes are told apart, that of the backward pass."""
    forward: str
    """Computation of the forward pass."""
    hidden: str
    """Communication that computation hides."""
    exposed: str
    """Communication that nothing hides; as a cause, that of the tail."""
    waiting: str
    """Exposed, before the last rank arrived."""
    memory: str
    idle: str
    # What goes before a transfer, and causes of exposed time
    held: str
    """Ready, and not launched yet."""
    queued: str
    """Launched, but the link is still busy with earlier work."""
    starting: str
    """Launched and not started, for no reason that the trace shows."""
    blocking: str
    """Waited for at once."""
    bound: str
    """What nothing can hide: longer than the computation there is."""
    gap: str
    """The host paused."""
    bubble: str
    """A pipeline's schedule leaves nothing to do."""
    uneven: str
    """A slower stage is not done."""
    sending: str
    """A message between stages is on its way."""
    # Kinds of collectives
    gather: str
    reduce: str
    """All-reduce; where reductions are not told apart, all of them."""
    scatter: str
    """Reduce-scatter."""
    to_all: str
    other: str
    """Communication of another kind, or of any."""
    # What is not data
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
    forward="#81BCEB",
    hidden="#C97F0A",
    exposed="#C5263A",
    waiting="#FF9386",
    memory="#868693",
    idle="#DADDE5",
    held="#424390",
    queued="#5473EF",
    starting="#747576",
    blocking="#A14EA8",
    bound="#5B0216",
    gap="#D5BF2E",
    bubble="#9F8C91",
    uneven="#11C9AF",
    sending="#22A4C6",
    gather="#3DA558",
    reduce="#452075",
    scatter="#C36AFD",
    to_all="#803102",
    other="#1F546D",
    ink="#22252B",
    soft="#5A606B",
    grid="#E3E5EA",
    on_dark="#FFFFFF",
    on_light="#16181D",
)
DARK = Palette(
    compute="#56B4E9",
    forward="#3166A3",
    hidden="#F0B429",
    exposed="#FF5862",
    waiting="#BC909B",
    memory="#B9B8B8",
    idle="#3B404A",
    held="#8A83FA",
    queued="#5869E8",
    starting="#A3BEBE",
    blocking="#C260A3",
    bound="#B62F77",
    gap="#8F7401",
    bubble="#5E584A",
    uneven="#24A062",
    sending="#17DBF9",
    gather="#6C9B89",
    reduce="#9D81BF",
    scatter="#C83FF8",
    to_all="#B75C2C",
    other="#3D7097",
    ink="#F1F2F4",
    soft="#B3B8C2",
    grid="#31353E",
    on_dark="#0E1117",
    on_light="#0E1117",
)


def palette(dark: bool) -> Palette:
    """The palette of the dark or the light theme."""
    return DARK if dark else LIGHT


def cause_colours(tones: Palette) -> dict[Cause, str]:
    """The colour of each cause of exposed time: that of what goes on meanwhile."""
    return {cause: getattr(tones, cause.colour) for cause in Cause}


def labels_width(labels: Iterable[str]) -> int:
    """Pixels that an axis with these labels and a title takes at most."""
    return round(_LABEL * max(map(len, labels), default=0)) + 36


def colours(pairs: Sequence[tuple[str, str]], *, left: int = 60, **legend: Any) -> alt.Color:
    """The colours of the field `part`, from pairs of a value and its colour; all are in the legend, in this order.

    `left`: pixels that the other axis takes at most.
    """
    words, tones = [word for word, _ in pairs], [tone for _, tone in pairs]
    look: dict[str, Any] = {"orient": "top", "labelLimit": 0, "symbolType": "square", "columns": len(words)} | legend
    look["columns"] = alt.ExprRef(_columns(words, look["columns"], left))
    return alt.Color(
        "part:N",
        title=None,
        sort=words,
        scale=alt.Scale(domain=words, range=tones),
        legend=alt.Legend(**look) if words else None,  # Vega gives an empty legend an infinite size
    )


def _columns(words: Sequence[str], most: int, left: int) -> str:
    """An expression: into how many columns of a legend these words go, `most` at most, in the chart's width.

    Vega makes room for the legend's rows while `width` is still the container's: were there more once it is the plot's,
    the first would be cut.
    """
    room = f"min(width, (containerSize()[0] || 1e9) - {left})"
    expression = "1"
    for number in range(2, min(most, len(words)) + 1):
        letters = sum(max(map(len, words[column::number])) for column in range(number))
        expression = f"{room} >= {number * _SYMBOL + letters * _LETTER:.0f} ? {number} : {expression}"
    return expression


_JOINER = "\N{WORD JOINER}"
"""Invisible; put after each `<` that would begin a closing tag or a comment."""


class EscapedChart(alt.LayerChart):
    """A layered chart whose `to_dict`, on which all of Altair's output is based, holds no `</` and no `<!`.

    Altair's HTML, which notebooks show and `Chart.save` writes, puts a chart's JSON into a script element without
    escaping: a kernel called `</script><script>…` would end that element and begin its own.
    """

    checked: ClassVar[bool] = False
    """Whether to validate charts against Vega-Lite's schema: only in tests, since it takes a third of a page's time."""

    def to_dict(self, validate: bool = True, **options: Any) -> dict[str, Any]:
        """Return Altair's dictionary, the chart's tables included, with the beginnings of tags escaped."""
        options["validate"] = validate and self.checked
        quiet: dict[str, Any] = _escape_tags(super().to_dict(**options))
        return quiet


def _escape_tags(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("</", f"<{_JOINER}/").replace("<!", f"<{_JOINER}!") if "<" in value else value
    if isinstance(value, dict):
        return {key: _escape_tags(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_escape_tags(member) for member in value]
    return value


def finish(
    layers: Sequence[alt.Chart],
    *,
    title: str,
    subtitle: Iterable[str | None],
    description: str,
    dark: bool,
    height: alt.Step | int,
    line: int = LINE,
) -> alt.LayerChart:
    """A chart of these layers with a title, a description for screen readers, a size and the theme.

    It is `WIDTH` wide; a page that sets its width to `"container"` has it fill its place.
    `line` is how many characters of a subtitle fit on a line; a title, which is larger, gets three quarters of it.
    """
    tones = palette(dark)
    texts = list(subtitle)
    lines = [part for words in texts if words for part in textwrap.wrap(words, line)]
    wrapped = _wrap_title(title, line * 3 // 4)
    below = lines or alt.Undefined  # Vega leaves room for an empty subtitle, too
    head = alt.TitleParams(text=wrapped if len(wrapped) > 1 else title, subtitle=below)
    # All at once: each of Altair's `configure_…` would copy the whole chart.
    return EscapedChart(
        layer=list(layers),
        title=head,
        description=description,
        width=WIDTH,
        height=height,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        background="transparent",
        config=_config(tones, predicted=any(map(says_predicted, texts))),
    )


def _config(tones: Palette, *, predicted: bool) -> alt.Config:
    """Fonts, sizes and colours of all charts; what was predicted is pale, in dashed lines."""
    dashed: dict[str, Any] = {"fillOpacity": 0.45, "stroke": tones.soft, "strokeDash": [3, 2], "strokeWidth": 1}
    look: dict[str, Any] = {"bar": dashed, "rect": dashed, "line": {"strokeDash": [3, 2]}} if predicted else {}
    return alt.Config(
        **look,
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
            labelSeparation=6,
        ),
        legend=alt.LegendConfig(labelColor=tones.ink, labelFontSize=12, columnPadding=14, offset=10),
    )


def _wrap_title(title: str, line: int) -> list[str]:
    """The lines of a title; parentheses are not broken."""
    glued = re.sub(r"\([^)]*\)", lambda group: group[0].replace(" ", "\u00a0"), title)
    return [part.replace("\u00a0", " ") for part in textwrap.wrap(glued, line)]
