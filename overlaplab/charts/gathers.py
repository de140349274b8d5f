"""The schedule chart: when each unit's parameters are gathered, waited for, used, freed, and its gradients sent."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from overlaplab.charts.held import LABELS_WIDTH, time_axis
from overlaplab.charts.theme import LINE, colours, finish, palette
from overlaplab.charts.units import shown_rows, unit_rows
from overlaplab.findings import schedule_remarks, schedule_title, turn_label
from overlaplab.words import size_exact, to_ms, unit_name

__all__ = ["schedule", "schedule_window"]

LIVE = "parameters live"
GATHER = "all-gather"
WAIT = "compute waits for gather"
FORWARD = "forward compute"
BACKWARD = "backward compute"
SCATTER = "reduce-scatter"

_BAR_COLUMNS = ["row", "unit", "part", "phase", "microbatch", "begin", "end", "ms", "size"]
_MOST_TURNS = 8


def schedule(
    table: pd.DataFrame,
    scatters: pd.DataFrame | None = None,
    *,
    prefetch: int | None = None,
    window_ns: tuple[int, int] | None = None,
    dark: bool = False,
    note: str | None = None,
    line: int = LINE,
) -> alt.LayerChart:
    """One row per unit out of `overlaplab.schedule(run)` for one rank and step; time from the step's start.

    `scatters` is `overlaplab.analyses.scatters` of the same rank and step, `prefetch` the depth that the manifest
    tells, `window_ns` the time axis (by default `schedule_window`), `line` how many characters of a subtitle fit on
    a line. What is null is not drawn, and the subtitle says that it is unknown.
    """
    tones = palette(dark)
    scatters = pd.DataFrame() if scatters is None else scatters
    names = unit_rows(table, scatters)
    step = 16 if len(names) <= 40 else 11 if len(names) <= 72 else 7
    labels = list(names.values())
    y = alt.Y(
        "row:N",
        sort=labels,
        title="layer" if table["layer"].notna().any() else "unit",
        scale=alt.Scale(domain=labels, padding=0),
        axis=alt.Axis(
            domain=False,
            ticks=False,
            grid=False,
            labelOverlap=False,
            values=shown_rows(table, names, step),
            minExtent=LABELS_WIDTH,
            maxExtent=LABELS_WIDTH,
            labelPadding=4,
        ),
    )
    x = time_axis(window_ns or schedule_window(table, scatters), line)
    bars = _bars(table, scatters, names)
    colour = {
        LIVE: tones.idle,
        GATHER: tones.gather,
        WAIT: tones.exposed,
        FORWARD: tones.queued,
        BACKWARD: tones.compute,
        SCATTER: tones.reduce,
    }
    fills = [(part, tone) for part, tone in colour.items() if part in set(bars["part"])]
    title = schedule_title(table)
    layers = [
        _layer(bars[bars["part"] == LIVE], x, y, fills, 0.86, line),
        _layer(bars[bars["part"] != LIVE], x, y, fills, 0.6, line),
        _frees(table, names, x, y, tones.ink, (step, 1.5 if line > LINE / 2 else 1.0)),
        *_turns(table, tones.ink, named=line > LINE / 2),
    ]
    return finish(
        layers,
        title=title,
        subtitle=[*schedule_remarks(table, prefetch, _undrawn(table)), note],
        description=f"{len(names)} units on a time axis: {', '.join(part for part, _ in fills)}, freed. {title}.",
        dark=dark,
        height=alt.Step(step),
        line=line,
    )


def schedule_window(table: pd.DataFrame, scatters: pd.DataFrame | None = None) -> tuple[int, int]:
    """The time axis of one rank's step, in ns: to the last end of anything that is drawn.

    It begins at the step's start, or before where a gather does: a GPU's window begins with the first computation.
    """
    columns = [
        (table, ("gather_end_ns", "last_use_ns", "backward_last_use_ns", "free_ns")),
        (pd.DataFrame() if scatters is None else scatters, ("end_ns",)),
    ]
    ends = [int(of[name].max()) for of, names in columns for name in names if name in of and of[name].notna().any()]
    end = max(ends, default=1)
    starts = [int(table[name].min()) for name in ("held_ns", "gather_start_ns") if table[name].notna().any()]
    return min(0, *starts), end + max(end // 100, 1)


def _bars(table: pd.DataFrame, scatters: pd.DataFrame, names: dict[str, str]) -> pd.DataFrame:
    """One row per bar, times in ms, in the order of drawing."""
    bars = []

    def add(of: dict[Any, Any], part: str, phase: object, begin: object, end: object) -> None:
        start, stop = _ms(begin), _ms(end)
        if start is None or stop is None or stop <= start:
            return
        microbatch = _word(of.get("microbatch"))
        weight = _word(of.get("bytes"), lambda value: size_exact(int(value)))
        unit = unit_name(of["unit"])
        bars.append((names[of["unit"]], unit, part, str(phase), microbatch, start, stop, stop - start, weight))

    used = _drawn_uses(table)
    for row in used.to_dict("records"):
        phase = row["phase"]
        add(row, LIVE, phase, row["held_ns"], row["free_ns"])
        add(row, GATHER, phase, row["gather_start_ns"], row["gather_end_ns"])
        until = row["waited_ns"] if pd.isna(row["gather_end_ns"]) else row["gather_end_ns"]
        if not pd.isna(until) and not pd.isna(row["wait_ns"]):
            add(row, WAIT, phase, until - row["wait_ns"], until)
        add(row, FORWARD if phase == "forward" else BACKWARD, phase, row["first_use_ns"], row["last_use_ns"])
        add(row, BACKWARD, "backward", row["backward_first_use_ns"], row["backward_last_use_ns"])
    for row in scatters.to_dict("records"):
        add(row, SCATTER, "backward", row["start_ns"], row["end_ns"])
    return pd.DataFrame(bars, columns=_BAR_COLUMNS)


def _around_layers(table: pd.DataFrame, begin: str, end: str) -> pd.Series:
    """Whether a unit that is no layer is in use while a layer is: FSDP2's root and tied weights stand around them."""
    layers = table[table["layer"].notna()]
    uses = pd.concat(
        layers[list(pair)].set_axis(["begin", "end"], axis="columns").dropna()
        for pair in (("first_use_ns", "last_use_ns"), ("backward_first_use_ns", "backward_last_use_ns"))
    )
    found = [
        bool(pd.isna(layer) and not pd.isna(start) and not pd.isna(stop))
        and bool(((uses["begin"] < stop) & (uses["end"] > start)).any())
        for layer, start, stop in zip(table["layer"], table[begin], table[end], strict=True)
    ]
    return pd.Series(found, index=table.index, dtype=bool)


def _undrawn(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of which a use is not drawn."""
    return table[
        _around_layers(table, "first_use_ns", "last_use_ns")
        | _around_layers(table, "backward_first_use_ns", "backward_last_use_ns")
    ]


def _drawn_uses(table: pd.DataFrame) -> pd.DataFrame:
    """The table without the uses that are not drawn, and `waited_ns`, the first use of all units."""
    found = table.assign(waited_ns=table["first_use_ns"])
    for begin, end in (("first_use_ns", "last_use_ns"), ("backward_first_use_ns", "backward_last_use_ns")):
        found.loc[_around_layers(table, begin, end), [begin, end]] = pd.NA
    return found


def _layer(bars: pd.DataFrame, x: alt.X, y: alt.Y, fills: list[tuple[str, str]], band: float, line: int) -> alt.Chart:
    """Bars of one thickness."""
    tooltip = [
        alt.Tooltip("unit:N"),
        alt.Tooltip("part:N", title="what"),
        alt.Tooltip("phase:N"),
        alt.Tooltip("microbatch:N"),
        alt.Tooltip("ms:Q", title="took ms", format=",.3f"),
        alt.Tooltip("begin:Q", title="from ms", format=",.3f"),
        alt.Tooltip("end:Q", title="to ms", format=",.3f"),
        alt.Tooltip("size:N"),
    ]
    chart: alt.Chart = (
        alt.Chart(bars)
        .mark_bar(height={"band": band}, opacity=1, clip=True)
        .encode(
            x=x,
            x2="end:Q",
            y=y,
            color=colours(fills, columns=6 if line > LINE / 2 else 2, offset=22),
            tooltip=tooltip,
        )
    )
    return chart


def _frees(
    table: pd.DataFrame, names: dict[str, str], x: alt.X, y: alt.Y, tone: str, size: tuple[int, float]
) -> alt.Chart:
    """A tick where a unit's memory is given back; `size` is the height of a row and the tick's width, in pixels."""
    seen = table[table["free_ns"].notna()]
    ticks = pd.DataFrame(
        {
            "row": [names[unit] for unit in seen["unit"]],
            "unit": [unit_name(unit) for unit in seen["unit"]],
            "phase": [_word(phase) for phase in seen["free_phase"]],
            "microbatch": [_word(microbatch) for microbatch in seen["microbatch"]],
            "begin": to_ms(seen["free_ns"]).astype("float64"),
        }
    )
    tooltip = [
        alt.Tooltip("unit:N"),
        alt.Tooltip("begin:Q", title="freed at ms", format=",.3f"),
        alt.Tooltip("phase:N"),
        alt.Tooltip("microbatch:N"),
    ]
    chart: alt.Chart = (
        alt.Chart(ticks)
        .mark_tick(color=tone, thickness=size[1], size=size[0] * 0.9, orient="vertical", opacity=1, clip=True)
        .encode(x=x, y=y, tooltip=tooltip)
    )
    return chart


def _turns(table: pd.DataFrame, tone: str, named: bool) -> list[alt.Chart]:
    """A dashed line where forward ends in each microbatch, and what stays gathered over the first of them if there is
    room for it.
    """
    forward = table[table["phase"] == "forward"]
    ends = forward.groupby("microbatch", dropna=False)["last_use_ns"].max().dropna().sort_values()
    if ends.empty or len(ends) > _MOST_TURNS or not _has_backward(table):
        return []
    turns = pd.DataFrame({"begin": to_ms(ends).astype("float64")})
    rule: alt.Chart = alt.Chart(turns).mark_rule(color=tone, strokeDash=[5, 4], strokeWidth=1.2).encode(x="begin:Q")
    text: alt.Chart = (
        alt.Chart(turns.head(1))
        .mark_text(color=tone, align="left", dx=-4, dy=-7, fontSize=12)
        .encode(x="begin:Q", y=alt.value(0), text=alt.value(turn_label(table) if named else "turn"))
    )
    return [rule, text]


def _has_backward(table: pd.DataFrame) -> bool:
    return bool((table["phase"] == "backward").any() or table["backward_first_use_ns"].notna().any())


def _ms(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else to_ms(float(value))


def _word(value: Any, as_text: Any = str) -> str:
    return "unknown" if value is None or pd.isna(value) else str(as_text(value))
