"""The summary chart: where each rank spends its step."""

from __future__ import annotations

import altair as alt
import pandas as pd

from overlaplab.charts.parts import bars, fills_drawn, row_axis, tooltip, words
from overlaplab.charts.theme import colours, finish, palette
from overlaplab.findings.first_screen import ranks_left_out, summary_scope, summary_title
from overlaplab.findings.windows import table_time
from overlaplab.words import count, rank_word, to_ms

PARTS = {
    "compute_only_ns": "compute only",
    "overlapped_ns": "compute and communication together",
    "exposed_wait_ns": "exposed, until the last rank came",
    "exposed_transfer_ns": "exposed, transfer",
    "exposed_comm_ns": "communication exposed",
    "memory_only_ns": "memory only",
    "idle_ns": "idle",
}
"""The parts of a bar, left to right. Exposed is one part where wait and transfer are unknown, else two."""
LABELLED = 3.0  # percent of the step: a narrower part has no room for its number


def summary(
    table: pd.DataFrame, *, most: int | None = None, dark: bool = False, note: str | None = None
) -> alt.LayerChart:
    """One bar per rank, from `overlaplab.summary(run)` or `.totals(run)`; a whole bar is 100 % of the rank's step time.

    Exposed communication is split into wait and transfer where that is known. Rows of the same rank are added up.
    With `most` only so many ranks are drawn, those with most exposed time. `note` is the line about the run
    (`overlaplab.findings.note`).
    """
    tones = palette(dark)
    of_parts = (tones.compute, tones.hidden, tones.waiting, tones.exposed, tones.exposed, tones.memory, tones.idle)
    shown_ranks = _most_exposed(table, most)
    long = _parts(shown_ranks)
    ranks = list(dict.fromkeys(long["rank"]))
    y = row_axis("rank", ranks, "rank")
    drawn = dict(fills_drawn(zip(PARTS.values(), of_parts, strict=True), long["part"]))
    share_title = f"% of the {table_time(table)}"
    axis = alt.Axis(title=share_title, values=list(range(0, 101, 10)))
    x = alt.X("begin:Q", scale=alt.Scale(domain=[0, 100]), axis=axis)
    lines = tooltip({"rank": "", "part": "what", "ms:Q": "ms", "share:Q": share_title}, share=".2f")
    inks = dict.fromkeys((tones.compute, tones.exposed), tones.on_dark) | {tones.idle: tones.ink}
    shown = long[long["share"] >= LABELLED].assign(
        label=lambda rows: rows["share"].map(lambda share: f"{share:.0f}"),
        middle=lambda rows: (rows["begin"] + rows["end"]) / 2,
        ink=lambda rows: rows["part"].map(lambda part: inks.get(drawn[part], tones.on_light)),
    )
    numbers = [words(rows, "middle", y, str(ink), column="label") for ink, rows in shown.groupby("ink")]
    title = summary_title(table)
    whole = f"Each bar is 100 % of its rank's {table_time(table)}; numbers are percent of it."
    scope = f"Summed over {summary_scope(table)}. {whole}"
    left_out = ranks_left_out(shown_ranks["rank"].nunique(dropna=False), table["rank"].nunique(dropna=False))
    layers = [bars(long, x, y, colours(list(drawn.items())), lines, 0.8), *numbers]
    subtitle = [" ".join(filter(None, (scope, left_out, note)))]
    description = f"Bars of {count(len(ranks), 'rank')}, each split into {', '.join(drawn)}. {title}."
    return finish(layers, title, subtitle, description, dark=dark, height=alt.Step(30 if len(ranks) <= 4 else 20))


def _most_exposed(table: pd.DataFrame, most: int | None) -> pd.DataFrame:
    """The rows of the `most` ranks with most exposed time, in the table's order; None: all rows."""
    exposed = table.groupby("rank", dropna=False)["exposed_comm_ns"].sum()
    if most is None or len(exposed) <= most:
        return table
    return table[table["rank"].isin(exposed.sort_values(ascending=False, kind="stable").index[:most])]


def _parts(table: pd.DataFrame) -> pd.DataFrame:
    """One row per rank and part that took time: its ms, its percent of the rank's span, its ends on the bar."""
    grouped = table.groupby("rank", dropna=False, sort=True)
    waits_known = table["exposed_wait_ns"].notna().groupby(table["rank"], dropna=False, sort=True).all()
    sums = grouped[[*PARTS, "span_ns"]].sum()
    rows = []
    for (rank, row), wait_is_known in zip(sums.iterrows(), waits_known, strict=True):
        whole, done = int(row["span_ns"]), 0
        if whole <= 0:
            continue
        left_out = {"exposed_comm_ns"} if wait_is_known else {"exposed_wait_ns", "exposed_transfer_ns"}
        for column in (name for name in PARTS if name not in left_out):
            took = int(row[column])
            if took == 0:
                continue
            begin, end = 100 * done / whole, 100 * (done + took) / whole
            rows.append((rank_word(rank), PARTS[column], to_ms(took), 100 * took / whole, begin, end))
            done += took
    return pd.DataFrame(rows, columns=["rank", "part", "ms", "share", "begin", "end"])
