"""The schedule chart: when each unit's parameters are gathered, waited for, used, freed, and its gradients sent."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from overlaplab.charts.parts import WHEN, Layer, bars, dashed_lines, fills_drawn, known_ms, row_axis, tooltip
from overlaplab.charts.sharding.held import LABELS_LOOK, LABELS_WIDTH, time_axis
from overlaplab.charts.theme import LINE, colours, finish, palette
from overlaplab.findings.sharding import schedule_remarks, schedule_title, turn_label
from overlaplab.words import size_exact, to_ms, unit_name

LIVE = "parameters live"
PART = "part live"
GATHER = "all-gather"
WAIT = "compute waits for gather"
FORWARD = "forward compute"
BACKWARD = "backward compute"
SCATTER = "reduce-scatter"

_PARTS = (LIVE, PART, GATHER, WAIT, FORWARD, BACKWARD, SCATTER)
_BAR_COLUMNS = ["row", "unit", "part", "phase", "microbatch", "begin", "end", "ms", "size"]
_USES = (("first_use_ns", "last_use_ns"), ("backward_first_use_ns", "backward_last_use_ns"))
_MOST_TURNS = 8  # with lines of more microbatches hardly anything else would be seen


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
    """One row per unit, from `overlaplab.schedule(run)` for one rank and step; time from the step's start.

    `scatters` is `overlaplab.analyses.scatters` of the same rank and step, `prefetch` the depth from the manifest,
    `window_ns` the time axis (by default `schedule_window`), `line` how many characters of a subtitle fit on a line.
    Null times are not drawn, and the subtitle says that they are unknown.
    """
    tones = palette(dark)
    scatters = pd.DataFrame() if scatters is None else scatters
    names = unit_rows(table, scatters)
    row_px = 16 if len(names) <= 40 else 11 if len(names) <= 72 else 7
    is_full_width = line > LINE / 2
    labels = list(names.values())
    look = {"grid": False, "values": shown_rows(table, names, row_px), "labelPadding": 4} | LABELS_LOOK
    word = "layer" if table["layer"].notna().any() else "unit"
    y = row_axis("row", labels, word, scale=alt.Scale(domain=labels, padding=0), **look)
    x = time_axis(window_ns or schedule_window(table, scatters), line)
    parts = _parts(table, scatters, names)
    of_parts = (tones.idle, tones.idle, tones.gather, tones.exposed, tones.forward, tones.compute, tones.scatter)
    fills = fills_drawn(zip(_PARTS, of_parts, strict=True), parts["part"])
    legend = colours(fills, left=LABELS_WIDTH + 20, columns=6 if is_full_width else 2, offset=22)
    titles = {"unit": "", "part": "what", "phase": "", "microbatch": "", "ms:Q": "took ms"}
    lines = tooltip(titles | WHEN | {"size": ""})
    live, in_part = parts["part"] == LIVE, parts["part"] == PART
    undrawn_uses = table[_around_layers(table, *_USES[0]) | _around_layers(table, *_USES[1])]
    title = schedule_title(table)
    layers = [
        bars(parts[live], x, y, legend, lines, 0.86, clip=True),
        *([bars(parts[in_part], x, y, legend, lines, 0.3, clip=True)] if in_part.any() else []),
        bars(parts[~live & ~in_part], x, y, legend, lines, 0.6, clip=True),
        _frees(table, names, x, y, tones.ink, (row_px, 1.5 if is_full_width else 1.0)),
        *_turns(table, tones.ink, named=is_full_width),
    ]
    subtitle = [*schedule_remarks(table, prefetch, undrawn_uses), note]
    description = f"{len(names)} units on a time axis: {', '.join(part for part, _ in fills)}, freed. {title}."
    return finish(layers, title, subtitle, description, dark=dark, height=alt.Step(row_px), line=line)


def schedule_window(table: pd.DataFrame, scatters: pd.DataFrame | None = None) -> tuple[int, int]:
    """The time axis of one rank's step, in ns: up to the last end of anything drawn.

    It begins at the step's start, or earlier with a gather: on a GPU the step's window begins with its first
    computation.
    """
    ends = [table[name] for name in ("gather_end_ns", "last_use_ns", "backward_last_use_ns", "free_ns")]
    ends += [] if scatters is None or "end_ns" not in scatters else [scatters["end_ns"]]
    end = max((int(times.max()) for times in ends if times.notna().any()), default=1)
    starts = [int(table[name].min()) for name in ("held_ns", "gather_start_ns") if table[name].notna().any()]
    return min([0, *starts]), end + max(end // 100, 1)


def _parts(table: pd.DataFrame, scatters: pd.DataFrame, names: dict[str, str]) -> pd.DataFrame:
    """One row per bar, times in ms, in the order of drawing."""
    rows = []

    def add(gather: dict[Any, Any], part: str, phase: object, begin: object, end: object) -> None:
        start, stop = known_ms(begin), known_ms(end)
        if start is None or stop is None or stop <= start:
            return
        microbatch = _word(gather.get("microbatch"))
        weight = _word(gather.get("bytes"), lambda value: size_exact(int(value)))
        unit = unit_name(gather["unit"])
        rows.append((names[gather["unit"]], unit, part, str(phase), microbatch, start, stop, stop - start, weight))

    for row in _drawn_uses(table).to_dict("records"):
        phase = row["phase"]
        add(row, LIVE, phase, row["held_ns"], row["free_ns"])
        if not pd.isna(row["resharded_bytes"]) and row["resharded_bytes"]:
            part = {**row, "bytes": row["resharded_bytes"]}
            add(part, PART, phase, row["free_ns"], row["resharded_until_ns"])
        add(row, GATHER, phase, row["gather_start_ns"], row["gather_end_ns"])
        until = row["waited_ns"] if pd.isna(row["gather_end_ns"]) else row["gather_end_ns"]
        if not pd.isna(until) and not pd.isna(row["wait_ns"]):
            add(row, WAIT, phase, until - row["wait_ns"], until)
        add(row, FORWARD if phase == "forward" else BACKWARD, phase, row["first_use_ns"], row["last_use_ns"])
        add(row, BACKWARD, "backward", row["backward_first_use_ns"], row["backward_last_use_ns"])
    for row in scatters.to_dict("records"):
        add(row, SCATTER, "backward", row["start_ns"], row["end_ns"])
    return pd.DataFrame(rows, columns=_BAR_COLUMNS)


def _around_layers(table: pd.DataFrame, begin: str, end: str) -> pd.Series:
    """Mark the rows of a unit, not a layer, that is in use while a layer is.

    FSDP2's root module and tied weights are in use before, during and after the layers; a bar would cover these.
    """
    layers = table[table["layer"].notna()]
    uses = pd.concat(layers[list(pair)].set_axis(["begin", "end"], axis="columns").dropna() for pair in _USES)
    around = [
        bool(pd.isna(layer) and not pd.isna(start) and not pd.isna(stop))
        and bool(((uses["begin"] < stop) & (uses["end"] > start)).any())
        for layer, start, stop in zip(table["layer"], table[begin], table[end], strict=True)
    ]
    return pd.Series(around, index=table.index, dtype=bool)


def _drawn_uses(table: pd.DataFrame) -> pd.DataFrame:
    """The table without the uses that are not drawn, and `waited_ns`, every row's first use, drawn or not."""
    drawn = table.assign(waited_ns=table["first_use_ns"])
    for begin, end in _USES:
        drawn.loc[_around_layers(table, begin, end), [begin, end]] = pd.NA
    return drawn


def _frees(
    table: pd.DataFrame, names: dict[str, str], x: alt.X, y: alt.Y, tone: str, size: tuple[int, float]
) -> alt.Chart:
    """A tick where a unit is freed; `size` is the height of a row and the width of a tick, in pixels."""
    freed = table[table["free_ns"].notna()]
    ticks = pd.DataFrame(
        {
            "row": [names[unit] for unit in freed["unit"]],
            "unit": [unit_name(unit) for unit in freed["unit"]],
            "phase": [_word(phase) for phase in freed["free_phase"]],
            "microbatch": [_word(microbatch) for microbatch in freed["microbatch"]],
            "begin": to_ms(freed["free_ns"]).astype("float64"),
        }
    )
    drawn: alt.Chart = Layer(ticks).mark_tick(
        color=tone, thickness=size[1], size=size[0] * 0.9, orient="vertical", opacity=1, clip=True
    )
    lines = tooltip({"unit": "", "begin:Q": "freed at ms", "phase": "", "microbatch": ""})
    return drawn.encode(x=x, y=y, tooltip=lines)


def _turns(table: pd.DataFrame, tone: str, named: bool) -> list[alt.Chart]:
    """A dashed line where forward ends in each microbatch; above the first, if `named`, what stays gathered there."""
    forward = table[table["phase"] == "forward"]
    ends = forward.groupby("microbatch", dropna=False)["last_use_ns"].max().dropna().sort_values()
    backward = (table["phase"] == "backward").any() or table["backward_first_use_ns"].notna().any()
    if ends.empty or len(ends) > _MOST_TURNS or not backward:
        return []
    turns = pd.DataFrame({"begin": to_ms(ends).astype("float64")})
    name = turn_label(table) if named else "turn"
    return dashed_lines(turns, "x", "begin", name, tone, width=1.2, align="left", dx=-4, dy=-7)


def _word(value: Any, as_text: Any = str) -> str:
    return "unknown" if value is None or pd.isna(value) else str(as_text(value))


_LABEL_HEIGHT_PX = 13


def unit_rows(table: pd.DataFrame, scatters: pd.DataFrame) -> dict[str, str]:
    """The label of each unit's row, from top to bottom.

    Layers come in their order, units gathered before the first layer above them, other units below.
    """
    order = table.sort_values("gather_launch_ns", kind="stable").drop_duplicates("unit")
    layers = order[order["layer"].notna()].sort_values("layer", kind="stable")
    others = [unit for unit in order["unit"] if unit not in set(layers["unit"])]
    if "unit" in scatters:
        others += [unit for unit in dict.fromkeys(scatters["unit"]) if unit not in set(order["unit"])]
    places = {unit: place for place, unit in enumerate(order["unit"])}
    first = min((places[unit] for unit in layers["unit"]), default=0)
    above = [unit for unit in others if places.get(unit, len(places)) < first]
    numbers = {unit: str(number) for unit, number in zip(layers["unit"], layers["layer"], strict=True)}
    if len(set(numbers.values())) < len(numbers):
        numbers = {}
    rows: dict[str, str] = {}
    for unit in [*above, *layers["unit"], *(unit for unit in others if unit not in above)]:
        label = numbers.get(unit) or unit_name(unit, 12)
        rows[unit] = label if label not in rows.values() else f"{label} {len(rows)}"
    return rows


def shown_rows(table: pd.DataFrame, names: dict[str, str], row_px: int) -> list[str]:
    """The labels with room, preferred in this order: units that are no layers, the first and last layer, every one,
    or where rows are low every second or fourth.
    """
    rows = list(names.values())
    layers = {names[unit] for unit in table.loc[table["layer"].notna(), "unit"]}
    numbered = [row for row in rows if row in layers]
    every = next(every for every in (1, 2, 4) if every * row_px >= _LABEL_HEIGHT_PX)
    wanted = [row for row in rows if row not in layers] + numbered[:1] + numbered[-1:] + numbered[::every]
    shown: list[int] = []
    for place in (rows.index(row) for row in wanted):
        if all(abs(place - other) * row_px >= _LABEL_HEIGHT_PX for other in shown):
            shown.append(place)
    return [rows[place] for place in sorted(shown)]
