"""The summary chart: where each rank spends its step."""

from __future__ import annotations

import altair as alt
import pandas as pd

from overlaplab.charts.theme import Palette, colours, finish, palette
from overlaplab.findings import summary_scope, summary_title
from overlaplab.words import count, rank_word, to_ms

__all__ = ["summary"]

PARTS = {
    "compute_only_ns": "compute only",
    "overlapped_ns": "compute and communication together",
    "exposed_wait_ns": "exposed, waiting for a rank",
    "exposed_transfer_ns": "exposed, transfer",
    "exposed_comm_ns": "communication exposed",
    "memory_only_ns": "memory only",
    "idle_ns": "idle",
}
"""What a bar is made of, left to right. Exposed is one part where wait and transfer are unknown, else two."""
LABELLED = 3.0  # percent of the step: a narrower part has no room for its number


def summary(table: pd.DataFrame, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """One bar per rank out of `overlaplab.summary(run)` or `.totals(run)`; each bar is 100 % of that rank's
    step time.

    Exposed communication is split into wait and transfer where that is known. Rows of the same rank are added up.
    `note` is the line about the run (`overlaplab.findings.note`).
    """
    tones = palette(dark)
    long = _parts(table)
    ranks = list(dict.fromkeys(long["rank"]))
    y = alt.Y("rank:N", sort=ranks, title="rank", axis=alt.Axis(domain=False, ticks=False, labelOverlap=False))
    tooltip = [
        alt.Tooltip("rank:N"),
        alt.Tooltip("part:N", title="what"),
        alt.Tooltip("ms:Q", title="ms", format=",.3f"),
        alt.Tooltip("share:Q", title="% of the step time", format=".2f"),
    ]
    drawn = {part: _fills(tones)[part] for part in PARTS.values() if part in set(long["part"])}
    axis = alt.Axis(title="share of the rank's step time (%)", values=list(range(0, 101, 10)))
    bars = (
        alt.Chart(long)
        .mark_bar(height={"band": 0.8}, opacity=1)
        .encode(
            x=alt.X("begin:Q", scale=alt.Scale(domain=[0, 100]), axis=axis),
            x2=alt.X2("end:Q"),
            y=y,
            color=colours(list(drawn.items())),
            tooltip=tooltip,
        )
    )
    inks = dict.fromkeys((tones.compute, tones.exposed), tones.on_dark) | {tones.idle: tones.ink}
    shown = long[long["share"] >= LABELLED].assign(
        label=lambda rows: rows["share"].map(lambda share: f"{share:.0f}"),
        middle=lambda rows: (rows["begin"] + rows["end"]) / 2,
        ink=lambda rows: rows["part"].map(lambda part: inks.get(drawn[part], tones.on_light)),
    )
    layers: list[alt.Chart] = [bars, *(_labels(words, y, str(ink)) for ink, words in shown.groupby("ink"))]
    title = summary_title(table)
    scope = f"Summed over {summary_scope(table)}."
    return finish(
        layers,
        title=title,
        subtitle=[f"{scope} Each bar is 100 % of its rank's step time; numbers are percent of it.", note],
        description=f"Bars of {count(len(ranks), 'rank')}, each split into {', '.join(drawn)}. {title}.",
        dark=dark,
        height=alt.Step(30 if len(ranks) <= 16 else 20),
    )


def _labels(words: pd.DataFrame, y: alt.Y, tone: str) -> alt.Chart:
    """The numbers inside the bars."""
    labels: alt.Chart = (
        alt.Chart(words).mark_text(color=tone, fontSize=12).encode(x=alt.X("middle:Q"), y=y, text=alt.Text("label:N"))
    )
    return labels


def _fills(tones: Palette) -> dict[str, str]:
    fills = (tones.compute, tones.gather, tones.waiting, tones.exposed, tones.exposed, tones.memory, tones.idle)
    return dict(zip(PARTS.values(), fills, strict=True))


def _parts(table: pd.DataFrame) -> pd.DataFrame:
    """One row per rank and part: ms, share of the rank's span and its place on the bar, both in percent."""
    grouped = table.groupby("rank", dropna=False, sort=True)
    known = table["exposed_wait_ns"].notna().groupby(table["rank"], dropna=False, sort=True).all()
    sums = grouped[[*PARTS, "span_ns"]].sum()
    rows = []
    for (rank, row), split in zip(sums.iterrows(), known, strict=True):
        whole, done = int(row["span_ns"]), 0
        if whole <= 0:
            continue
        left_out = {"exposed_comm_ns"} if split else {"exposed_wait_ns", "exposed_transfer_ns"}
        for column, part in PARTS.items():
            if column in left_out:
                continue
            took = int(row[column])
            rows.append(
                {
                    "rank": rank_word(rank),
                    "part": part,
                    "ms": to_ms(took),
                    "share": 100 * took / whole,
                    "begin": 100 * done / whole,
                    "end": 100 * (done + took) / whole,
                }
            )
            done += took
    return pd.DataFrame(rows, columns=["rank", "part", "ms", "share", "begin", "end"])
