"""What strategies cost beside what theory says: bytes sent per rank and step, and memory per rank."""

from __future__ import annotations

import altair as alt
import pandas as pd

from overlaplab.charts.comparison import run_labels
from overlaplab.charts.theme import colours, finish, palette
from overlaplab.findings import costs_title
from overlaplab.words import count, size_exact, unit_of

__all__ = ["memory_compared", "sent_compared"]

MEASURED = "measured"
THEORY = "theory"


def sent_compared(table: pd.DataFrame, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """One bar per run out of `overlaplab.compare(runs)`: the bytes that a rank sends per step, and a tick for theory.

    Runs without `sent_bytes` are left out.
    """
    told = "Bytes per rank and step, ring factor (n−1)/n included; median over the ranks' steps."
    return _against(table, "sent_bytes", "theory_sent_bytes", "Sent", told, palette(dark).gather, dark, note)


def memory_compared(table: pd.DataFrame, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """One bar per run out of `overlaplab.compare(runs)`: parameters, gradients and optimizer states that the largest
    rank holds after a step, and a tick for theory. Runs without `memory_bytes` are left out.
    """
    told = "Parameters, gradients and optimizer states of the rank that holds most, after a step."
    return _against(table, "memory_bytes", "theory_memory_bytes", "Held", told, palette(dark).queued, dark, note)


def _against(
    table: pd.DataFrame, measured: str, theory: str, verb: str, told: str, tone: str, dark: bool, note: str | None
) -> alt.LayerChart:
    tones = palette(dark)
    axis, labels = run_labels(table)
    rows = table.assign(run=labels)[["run", measured, theory]].set_axis(["run", "measured", "theory"], axis="columns")
    rows = rows[rows["measured"].notna()]
    unit, scale = unit_of(float(rows[["measured", "theory"]].max().max()) if len(rows) else 0.0)
    drawn = pd.DataFrame(
        {
            "run": rows["run"],
            "part": MEASURED,
            "found": rows["measured"].astype("float64") / scale,
            "said": rows["theory"].astype("Float64") / scale,
            "word": [_word(found, said) for found, said in zip(rows["measured"], rows["theory"], strict=True)],
        }
    )
    drawn["end"] = drawn[["found", "said"]].astype("float64").max(axis="columns")
    order = list(drawn["run"])
    y = alt.Y("run:N", sort=order, title=axis, axis=alt.Axis(domain=False, ticks=False, labelOverlap=False))
    top = max(drawn["end"], default=0.0) * 1.4 or 10.0  # room for the words; one rank sends nothing
    x = alt.X(
        "found:Q",
        title=f"{verb.lower()} ({unit})",
        scale=alt.Scale(domain=[0, top], nice=False),
        axis=alt.Axis(tickCount=10),
    )
    tooltip = [alt.Tooltip("run:N"), alt.Tooltip("word:N", title=verb.lower())]
    fills = [(MEASURED, tone), (THEORY, tones.ink)]
    bars: alt.Chart = (
        alt.Chart(drawn)
        .mark_bar(height={"band": 0.6}, opacity=1)
        .encode(x=x, y=y, color=colours(fills), tooltip=tooltip)
    )
    ticks: alt.Chart = (
        alt.Chart(drawn[drawn["said"].notna()].assign(part=THEORY))
        .mark_tick(thickness=2.5, size=22, orient="vertical", opacity=1)
        .encode(x=alt.X("said:Q"), y=y, color=colours(fills), tooltip=tooltip)
    )
    words: alt.Chart = (
        alt.Chart(drawn)
        .mark_text(align="left", dx=8, color=tones.ink, fontSize=12)
        .encode(x=alt.X("end:Q"), y=y, text=alt.Text("word:N"))
    )
    title = costs_title(rows, verb)
    return finish(
        [bars, ticks, words],
        title=title,
        subtitle=[told, note],
        description=f"Bars of {count(len(order), 'run')}, each with a tick where theory puts it. {title}.",
        dark=dark,
        height=alt.Step(28 if len(order) <= 16 else 20),
    )


def _word(found: int, said: int | None) -> str:
    if said is None or pd.isna(said):
        return f"{size_exact(int(found))}, theory unknown"
    return f"{size_exact(int(found))}, theory {size_exact(int(said))}"
