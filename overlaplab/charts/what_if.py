"""Charts of the page What if. What is predicted is pale and dashed, and says so; what was measured is solid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd
from msgspec import Struct

from overlaplab.charts.parts import FLUSH, Layer, bars, fills_drawn, known_ms, row_axis, tooltip, with_room, words
from overlaplab.charts.theme import Palette, colours, finish, labels_width, palette
from overlaplab.findings import what_if
from overlaplab.simulate.transfers import EXTRAPOLATED
from overlaplab.words import byte_unit, ms, to_ms

_HEIGHT_PX = 190
_LINE_CHARACTERS = 66  # characters of a line in half the dashboard's column at 1280 pixels
_WORD_PX = 22  # pixels below a dot in which a line would go through the dot's word
_DASHES = [5, 4]
_OUTLINED_SHARE = 0.005
"""Predicted stretches are outlined that take more of the longest step."""
_PALE_OPACITY = 0.35
_WORD_SHARE = 0.15  # of a curve's height: as much as a word needs
_PARTS = ("works", "transfer while it works", "transfer while it waits")
_ROWS = ("recorded: rank", "recorded: link", "predicted: rank", "predicted: link")


def caps_predicted(
    table: pd.DataFrame,
    measured: pd.DataFrame,
    chosen: float | None,
    half_ns: float,
    advised_mb: float | None = None,
    *,
    measured_ns: int | None = None,
    found_ns: int | None = None,
    least_ns: int | None = None,
    dark: bool = False,
    note: str | None = None,
) -> alt.LayerChart:
    """The step by cap: rows of `what_if.steps_by_cap` and `recorded_caps`, on either side the interval's half.

    A named line at the recorded step, `measured_ns`, whose cap is not known, at `cpu_answers.best_found_ns`,
    and at `device_answers.device_least_ns`. `advised_mb`: the cap that `advise` finds best.
    """
    named = (("measured", measured_ns), (what_if.BEST_FOUND, found_ns), (what_if.BEST_POSSIBLE, least_ns))
    levels = [level for name, ns in named for level in _level(name, ns)]
    reading = what_if.best_buckets_reading(is_found=found_ns is not None, possible=least_ns is not None)
    title = what_if.caps_predicted_title(table, advised_mb)
    curve = _Curve("bucket_cap_mb (MiB)", "step (ms)", title, "compute", chosen)
    rows = table.assign(at=table["bucket_cap_mb"], value=to_ms(table["step_ns"]))
    dots = measured.assign(what="measured", at=measured["bucket_cap_mb"], ms=to_ms(measured["step_ns"]))
    return _draw_curve(curve, rows, [reading, note], dark, half=to_ms(half_ns), dots=dots, levels=levels)


def depths_predicted(
    table: pd.DataFrame,
    *,
    chosen: int | None,
    measured_ns: int | None,
    half_ns: float,
    dark: bool = False,
    note: str | None = None,
) -> alt.LayerChart:
    """The step by prefetch depth: rows of `what_if.steps_by_depth`, on either side the interval's half.

    A named line stands at the recorded step, `measured_ns`, if its depth is not known.
    """
    title = what_if.depths_predicted_title(table)
    curve = _Curve("prefetch (units gathered ahead)", "step (ms)", title, "gather", chosen)
    rows = table.assign(at=table["prefetch"], value=to_ms(table["step_ns"]))
    return _draw_curve(curve, rows, [note], dark, half=to_ms(half_ns), levels=_level("measured", measured_ns))


def ranks_predicted(
    table: pd.DataFrame,
    *,
    recorded: int,
    measured_ns: int | None,
    chosen: int,
    half: float,
    dark: bool = False,
    note: str | None = None,
) -> alt.LayerChart:
    """The step by ranks: rows of `what_if.steps_by_ranks`; `half`: half of the interval, as a share of the step."""
    dots = pd.DataFrame({"what": ["measured"], "at": [recorded], "ms": [known_ms(measured_ns)]}).dropna()
    rows = table.assign(at=table["ranks"], value=to_ms(table["step_ns"]))
    curve = _Curve(_ranks_axis(recorded), "step (ms)", what_if.ranks_predicted_title(table), "hidden", chosen)
    return _draw_curve(curve, rows, [note], dark, half=half * rows["value"], dots=dots)


def _ranks_axis(recorded: int) -> str:
    return f"ranks (extrapolated beyond {EXTRAPOLATED * recorded})"


def throughput_predicted(
    table: pd.DataFrame, *, recorded: int, chosen: int, dark: bool = False, note: str | None = None
) -> alt.LayerChart:
    """What is left of a rank's throughput: rows of `what_if.steps_by_ranks`."""
    y_title = f"% of that with {int(table['ranks'].iloc[0])} ranks"
    title = what_if.throughput_predicted_title(table)
    curve = _Curve(_ranks_axis(recorded), y_title, title, "hidden", chosen, zero=True)
    return _draw_curve(curve, table.assign(at=table["ranks"], value=100 * table["throughput"]), [note], dark)


def held_predicted(table: pd.DataFrame, *, chosen: int, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """What each rank holds by formula: rows of `what_if.steps_by_ranks` that know it."""
    with_bytes = table.dropna(subset=["held_bytes"])
    unit, scale = byte_unit(float(with_bytes["held_bytes"].max()) if len(with_bytes) else 0.0)
    y_title = f"parameters, gradients, optimizer ({unit})"
    curve = _Curve("ranks", y_title, what_if.held_predicted_title(with_bytes), "memory", chosen, zero=True)
    held = with_bytes["held_bytes"].astype("float64") / scale
    return _draw_curve(curve, with_bytes.assign(at=with_bytes["ranks"], value=held), [note], dark)


class _Curve(Struct, frozen=True):
    """What a curve is about."""

    x_title: str
    y_title: str
    title: str
    tone: str
    """Its colour's name in the palette."""
    chosen: float | None
    """Where a rule marks the chosen value."""
    zero: bool = False
    """Whether the axis begins at 0."""


def _draw_curve(
    curve: _Curve,
    table: pd.DataFrame,
    subtitle: Sequence[str | None],
    dark: bool,
    *,
    half: Any = None,
    dots: pd.DataFrame | None = None,
    levels: Sequence[tuple[str, float]] = (),
) -> alt.LayerChart:
    """A dashed line through `value` over `at`, a band of `half` around it, measured dots, and a rule at what is chosen.

    Across the chart a named line at each of the `levels`; of several the last has its name below.
    """
    tones = palette(dark)
    tone = getattr(tones, curve.tone)
    places = sorted({*table["at"], *(dots["at"] if dots is not None else ())})
    ticks = _spread(places)
    spacing: dict[str, Any] = {"type": "log", "base": 2} if places[0] > 0 else {"type": "linear"}
    scale = alt.Scale(**spacing, domain=[places[0], places[-1]], nice=False)
    label = "format(datum.value, datum.value < 1 ? '~g' : ',~f')"
    x = alt.X("at:Q", title=curve.x_title, scale=scale, axis=alt.Axis(values=ticks, labelExpr=label, labelFlush=True))
    heights = [value for _, value in levels]
    lowest = 0.0 if curve.zero else min([(table["value"] - (0 if half is None else half)).min(), *heights])
    room = _WORD_SHARE * (max([table["value"].max(), *heights]) - lowest)  # what a word under a line takes
    values = alt.Scale(zero=curve.zero, nice=True, **({"domainMin": lowest - room} if levels else {}))
    y = alt.Y("value:Q", title=curve.y_title, scale=values, axis=alt.Axis(tickCount=5))
    shown = table[["at", "value"]].assign(what="predicted")
    lines = tooltip(
        {"what": "", "at:Q": curve.x_title.partition(" (")[0], "value:Q": curve.y_title}, at=",~f", value=",.1f"
    )
    layers: list[alt.Chart] = []
    if half is not None:
        band = shown.assign(low=shown["value"] - half, high=shown["value"] + half)
        drawn = Layer(_inline(band)).mark_area(color=tone, opacity=0.18)
        lower = alt.Y("low:Q", title=curve.y_title, scale=values, axis=alt.Axis(tickCount=5))
        layers.append(drawn.encode(x=x, y=lower, y2=alt.Y2("high:Q")))
    if curve.chosen is not None:
        at = alt.InlineData(values=[{"at": curve.chosen}])
        layers.append(Layer(at).mark_rule(color=tones.soft, strokeWidth=1).encode(x=x))
    for place, (name, level) in enumerate(levels):
        layers += _draw_named_line(name, level, y, tones, below=place == len(levels) - 1)
    rows = _inline(shown)
    layers.append(Layer(rows).mark_line(color=tone, strokeDash=_DASHES, strokeWidth=2).encode(x=x, y=y))
    layers.append(Layer(rows).mark_point(color=tone, size=45, filled=False).encode(x=x, y=y, tooltip=lines))
    falls = len(shown) > 1 and shown["value"].iloc[-1] < shown["value"].iloc[-2]
    below = falls and shown["value"].iloc[-1] - lowest > room
    last = shown.tail(1).assign(word="predicted")
    layers.append(words(_inline(last), x, y, tones.ink, align="right", dy=14 if below else -10, fontStyle="italic"))
    if dots is not None and len(dots):
        top = max([(table["value"] + (0 if half is None else half)).max(), dots["ms"].max(), *heights])
        px_per_ms = _HEIGHT_PX / (top - lowest + room)
        gaps_px = [(dots["ms"].min() - height) * px_per_ms for height in heights]
        clear = max((gap for gap in gaps_px if 0 <= gap < _WORD_PX), default=0.0)  # below the line, not across it
        layers += _draw_dots(dots.assign(value=dots["ms"]), lowest + room, x, y, tones, lines, clear)
    description = f"A dashed, predicted line over {curve.x_title}. {curve.title}."
    return finish(layers, curve.title, subtitle, description, dark=dark, height=_HEIGHT_PX, line=_LINE_CHARACTERS)


def _level(name: str, ns: int | None) -> list[tuple[str, float]]:
    """A name that says the time, and the time in ms; none where it is unknown."""
    return [] if ns is None else [(f"{name}: {ms(ns)}", to_ms(float(ns)))]


def _draw_named_line(name: str, level: float, y: alt.Y, tones: Palette, *, below: bool) -> list[alt.Chart]:
    """A line across the chart, and its name at the left end."""
    row = alt.InlineData(values=[{"value": level, "word": name}])
    rule: alt.Chart = Layer(row).mark_rule(color=tones.ink, strokeDash=[2, 3], strokeWidth=1.5)
    text = Layer(row).mark_text(color=tones.ink, fontSize=12, align="left", dx=6, dy=10 if below else -8)
    left = alt.XValue(0)  # type: ignore[no-untyped-call]  # `alt.value` takes 2 ms to become this
    return [rule.encode(y=y), text.encode(x=left, y=y, text=alt.Text("word:N"))]


def _inline(table: pd.DataFrame) -> Any:
    """The rows as they are sent: Altair takes several milliseconds to find out what a table holds, for each layer."""
    rows: list[Any] = table.to_dict("records")
    return alt.InlineData(values=rows)


def _draw_dots(
    dots: pd.DataFrame, low: float, x: alt.X, y: alt.Y, tones: Palette, lines: Sequence[alt.Tooltip], clear: float
) -> list[alt.Chart]:
    """The dots, and the word `measured`: beside the highest if they stand at several places, else below the dot, or
    above it if it is under `low`. `clear`: pixels that the word goes further down, past a line.
    """
    drawn: alt.Chart = Layer(_inline(dots)).mark_circle(color=tones.exposed, size=70, opacity=1)
    first = dots.sort_values("value").tail(1).assign(word="measured")
    look: dict[str, Any] = {"align": "left", "dx": 8, "fontWeight": 600}
    if dots["at"].nunique() == 1:
        look["dy"] = 10 + clear if first["value"].iloc[0] > low else -16
    elif first["at"].iloc[0] == dots["at"].max():
        look |= {"align": "right", "dx": -8}
    return [drawn.encode(x=x, y=y, tooltip=list(lines)), words(_inline(first), x, y, tones.ink, **look)]


def _spread(places: Sequence[float], most: int = 9) -> list[float]:
    """So many of the places at most, evenly."""
    return list(places[:: -(-len(places) // most)])


def step_lanes(
    recorded: pd.DataFrame,
    predicted: pd.DataFrame,
    spans_ns: tuple[int, int],
    *,
    dark: bool = False,
    note: str | None = None,
) -> alt.LayerChart:
    """One step as it was recorded and, below, as it is predicted, both played: rows of `answer.lane_table`."""
    tones = palette(dark)
    measured_ns, step_ns = spans_ns
    y = row_axis("row", _ROWS, "")
    longest = to_ms(float(max(spans_ns)))
    scale = with_room(longest, [f"{ms(max(spans_ns))} predicted"])
    x = alt.X("begin:Q", title="time in step (ms)", scale=scale, axis=alt.Axis(tickCount=10, labelFlush=FLUSH))
    lines = tooltip({"row": "", "part": "what", "what": "of", "begin:Q": "from ms", "end:Q": "to ms"})
    solid, pale = _stretches(recorded, "recorded"), _stretches(predicted, "predicted")
    fills = zip(_PARTS, (tones.compute, tones.hidden, tones.exposed), strict=True)
    pairs = fills_drawn(fills, pd.concat([solid, pale])["part"])
    tinted = colours(pairs, left=labels_width(_ROWS))
    dashed = {"strokeDash": [3, 2], "fillOpacity": _PALE_OPACITY}
    wide = alt.when(f"datum.end - datum.begin > {_OUTLINED_SHARE * longest}")
    width = wide.then(alt.value(1)).otherwise(alt.value(0))  # an outline would make the others several times as wide
    outlines = alt.Scale(domain=[part for part, _ in pairs], range=[tone for _, tone in pairs])
    outline = alt.Stroke("part:N", scale=outlines, legend=None)
    words_of_ends = [ms(measured_ns), f"{ms(step_ns)} predicted"]
    ends = pd.DataFrame({"row": [*_ROWS[::2]], "begin": [to_ms(float(ns)) for ns in spans_ns], "word": words_of_ends})
    layers = [
        bars(_inline(solid), x, y, tinted, lines, 0.72),
        bars(_inline(pale), x, y, tinted, lines, 0.72, **dashed).encode(stroke=outline, strokeWidth=width),
        Layer(_inline(ends)).mark_tick(color=tones.ink, thickness=1.5, size=40).encode(x=x, y=y),
        words(_inline(ends), "begin", y, tones.ink, align="left", dx=6, fontWeight=600),
    ]
    title = what_if.lanes_title(step_ns, measured_ns)
    subtitle = [
        "Both are played: a transfer begins when the last recorded rank has come. Pale and dashed: predicted.",
        note,
    ]
    description = f"Four rows: a rank and its link, as recorded and as predicted. {title}."
    return finish(layers, title, subtitle, description, dark=dark, height=alt.Step(30))


def _stretches(table: pd.DataFrame, which: str) -> pd.DataFrame:
    parts = [
        _PARTS[0] if lane == "rank" else _PARTS[2] if exposed else _PARTS[1]
        for lane, exposed in zip(table["lane"], table["exposed"], strict=True)
    ]
    return pd.DataFrame(
        {
            "row": f"{which}: " + table["lane"],
            "part": parts,
            "what": table["what"],
            "begin": to_ms(table["start_ns"].astype("float64")),
            "end": to_ms(table["end_ns"].astype("float64")),
        }
    )
