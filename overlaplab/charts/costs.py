"""What strategies cost beside what theory says: bytes sent per rank and step, and memory per rank."""

from __future__ import annotations

import altair as alt
import pandas as pd

from overlaplab.charts.parts import FLUSH, Layer, fills_drawn, row_axis, tooltip, with_room, words
from overlaplab.charts.theme import colours, finish, labels_width, palette
from overlaplab.findings import run_labels
from overlaplab.findings.costs import costs_title
from overlaplab.words import byte_unit, count, size_exact

MEASURED = "measured"
THEORY = "theory"


def sent_compared(table: pd.DataFrame, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """One bar per run, from `overlaplab.compare(runs)`: the bytes that a rank sends per step, and a tick for theory.

    Runs without `sent_bytes` are left out.
    """
    meaning = "Bytes per rank and step, ring factor (n−1)/n included; median over the ranks' steps."
    return _beside_theory(table, "sent_bytes", "Sent", palette(dark).other, [meaning, note], dark=dark)


def memory_compared(table: pd.DataFrame, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """One bar per run, from `overlaplab.compare(runs)`: parameters, gradients and optimizer states that the largest
    rank holds after a step, and a tick for theory. Runs without `memory_bytes` are left out.
    """
    meaning = "Parameters, gradients and optimizer states of the rank that holds most, after a step."
    return _beside_theory(table, "memory_bytes", "Held", palette(dark).memory, [meaning, note], dark=dark)


def _beside_theory(
    table: pd.DataFrame, column: str, verb: str, tone: str, subtitle: list[str | None], *, dark: bool
) -> alt.LayerChart:
    """Bars of a column, each with a tick at the column `theory_…`."""
    tones = palette(dark)
    axis, labels = run_labels(table)
    rows = table.assign(run=labels)[["run", column, f"theory_{column}"]].dropna(subset=column)
    rows = rows.set_axis(["run", MEASURED, THEORY], axis="columns")
    unit, scale = byte_unit(float(rows[[MEASURED, THEORY]].max().max()) if len(rows) else 0.0)
    drawn = pd.DataFrame(
        {
            "run": rows["run"],
            "part": MEASURED,
            MEASURED: rows[MEASURED].astype("float64") / scale,
            THEORY: rows[THEORY].astype("Float64") / scale,
            "word": [_word(*sizes) for sizes in zip(rows[MEASURED], rows[THEORY], strict=True)],
        }
    )
    drawn["end"] = drawn[[MEASURED, THEORY]].astype("float64").max(axis="columns")
    y = row_axis("run", list(drawn["run"]), axis)
    top = max(drawn["end"], default=0.0) or 7.0  # any axis will do where nothing is sent, as by one rank
    x_scale, x_axis = with_room(top, drawn["word"]), alt.Axis(tickCount=10, labelFlush=FLUSH)
    x = alt.X(f"{MEASURED}:Q", title=f"{verb.lower()} ({unit})", scale=x_scale, axis=x_axis)
    held = drawn[[MEASURED, THEORY]].dropna(axis="columns", how="all")
    fills = colours(fills_drawn([(MEASURED, tone), (THEORY, tones.ink)], held.columns), left=labels_width(drawn["run"]))
    shared = {"y": y, "color": fills, "tooltip": tooltip({"run": "", "word": verb.lower()})}
    bars = Layer(drawn).mark_bar(height={"band": 0.6}, opacity=1)
    ticks = Layer(drawn[drawn[THEORY].notna()].assign(part=THEORY))
    ticks = ticks.mark_tick(thickness=2.5, size=22, orient="vertical", opacity=1)
    title = costs_title(rows, verb)
    layers = [
        bars.encode(x=x, **shared),
        ticks.encode(x=alt.X(f"{THEORY}:Q"), **shared),
        words(drawn, "end", y, tones.ink, align="left", dx=8),
    ]
    description = f"Bars of {count(len(drawn), 'run')}, each with a tick where theory puts it. {title}."
    return finish(layers, title, subtitle, description, dark=dark, height=alt.Step(28 if len(drawn) <= 16 else 20))


def _word(measured: int, theory: int | None) -> str:
    theory_words = "theory unknown" if theory is None or pd.isna(theory) else f"theory {size_exact(int(theory))}"
    return f"{size_exact(int(measured))}, {theory_words}"
