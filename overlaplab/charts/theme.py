"""The look that all charts share: a palette per theme, and titles, sizes and fonts."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, cast

import altair as alt

from overlaplab.causes import Cause
from overlaplab.findings.runs import says_predicted

FONT = "Source Sans, Source Sans Pro, Segoe UI, Helvetica, Arial, sans-serif"
_LETTER = 5.8  # pixels of a letter in a legend
_SYMBOL = 30  # pixels beside each word of a legend: its symbol and padding
_LABEL = 6.4  # pixels of a letter of an axis' label
WIDTH = 880  # pixels of a chart that nothing makes as wide as its place: saved from Python, or in a notebook
LINE = 145  # characters of a subtitle's line in the dashboard's column at 1280 pixels


def _tone(light: str, dark: str) -> Any:
    """A field with its colour in either theme."""
    return field(metadata={"light": light, "dark": dark})


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """Colours by meaning, one each, of one hue in both themes; those that meet on a chart are told apart under the
    three common kinds of colour blindness (tests/charts/test_colours.py says how far).
    """

    # Where a step's time goes
    compute: str = _tone("#0072B2", "#56B4E9")  # computation; where passes are told apart, that of the backward pass
    forward: str = _tone("#81BCEB", "#3166A3")  # computation of the forward pass
    hidden: str = _tone("#C97F0A", "#F0B429")  # communication that computation hides
    exposed: str = _tone("#C5263A", "#FF5862")  # communication that nothing hides; as a cause, that of the tail
    waiting: str = _tone("#FF9386", "#BC909B")  # exposed, before the last rank arrived
    memory: str = _tone("#868693", "#CACBC8")
    idle: str = _tone("#DADDE5", "#595A4A")
    # What goes before a transfer, and causes of exposed time
    held: str = _tone("#403BB7", "#8A83FA")  # ready, and not launched yet
    queued: str = _tone("#5473EF", "#5869E8")  # launched, but the link is still busy with earlier work
    starting: str = _tone("#747576", "#A3BEBE")  # launched and not started, for no reason that the trace shows
    blocking: str = _tone("#A14EA8", "#C260A3")  # waited for at once
    bound: str = _tone("#5B0216", "#B62F77")  # what nothing can hide: longer than the computation there is
    gap: str = _tone("#D5BF2E", "#8F7401")  # the host paused
    bubble: str = _tone("#9F8C91", "#47413B")  # a pipeline's schedule leaves nothing to do
    uneven: str = _tone("#11C9AF", "#24A062")  # a slower stage is not done
    sending: str = _tone("#22A4C6", "#17DBF9")  # a message between stages is on its way
    # Kinds of collectives
    gather: str = _tone("#3DA558", "#6C9B89")
    reduce: str = _tone("#452075", "#9D81BF")  # all-reduce; where reductions are not told apart, all of them
    scatter: str = _tone("#C36AFD", "#C83FF8")  # reduce-scatter
    to_all: str = _tone("#803102", "#B75C2C")
    other: str = _tone("#1F546D", "#3D7097")  # communication of another kind, or of any
    # What is not data
    ink: str = _tone("#22252B", "#F1F2F4")  # text and marks on the background
    soft: str = _tone("#5A606B", "#B3B8C2")  # secondary text
    grid: str = _tone("#E3E5EA", "#31353E")
    on_dark: str = _tone("#FFFFFF", "#0E1117")  # text on compute and exposed
    on_light: str = _tone("#16181D", "#0E1117")  # text on hidden communication and idle


LIGHT, DARK = (Palette(**{tone.name: tone.metadata[theme] for tone in fields(Palette)}) for theme in ("light", "dark"))


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
    """The colours of the field `part`, from pairs of a value and its colour; the legend has them, or those of its
    `values`, in this order.

    `left`: pixels that the other axis takes at most.
    """
    words, tones = [word for word, _ in pairs], [tone for _, tone in pairs]
    look: dict[str, Any] = {"orient": "top", "labelLimit": 0, "symbolType": "square", "columns": len(words)} | legend
    named = look.get("values", words)
    look["columns"] = alt.ExprRef(_columns(named, look["columns"], left))
    return alt.Color(
        "part:N",
        title=None,
        sort=words,
        scale=alt.Scale(domain=words, range=tones),
        legend=alt.Legend(**look) if named else None,  # Vega gives an empty legend an infinite size
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
        return cast(dict[str, Any], _escape_tags(super().to_dict(**options)))


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
    title: str,
    subtitle: Iterable[str | None],
    description: str,
    *,
    dark: bool,
    height: alt.Step | int,
    line: int = LINE,
) -> alt.LayerChart:
    """A chart of these layers with a title, a description for screen readers, a size and the theme.

    It is `WIDTH` wide; a page that sets its width to `"container"` has it fill its place.
    `line` is how many characters of a subtitle fit on a line; a title, which is larger, gets three quarters of it.
    """
    tones = palette(dark)
    texts = list(filter(None, subtitle))
    lines = [part for words in texts for part in textwrap.wrap(words, line)]
    wrapped = _wrap_title(title, line * 3 // 4)
    # Vega leaves room for an empty subtitle, too.
    head = alt.TitleParams(text=wrapped if len(wrapped) > 1 else title, subtitle=lines or alt.Undefined)
    # All at once: each of Altair's `configure_…` would copy the whole chart.
    return EscapedChart(
        layer=list(layers),
        title=head,
        description=description,
        width=WIDTH,
        height=height,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        background="transparent",
        config=_config(tones, predicted=any(says_predicted(text.lower()) for text in texts)),
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
