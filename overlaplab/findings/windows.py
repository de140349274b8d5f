"""What a window of time holds on the timeline, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from overlaplab.findings.thresholds import MOST_CLOCKS
from overlaplab.formats import text
from overlaplab.timeline.timeline import View
from overlaplab.timeline.window_statistics import WindowStatistics
from overlaplab.words import count, ms, numbers_named, percent, rank_word

OF_VERDICT = "the step of the verdict"
"""Why a step is shown of ranks that the verdict is not about alone."""


def window_name(table: pd.DataFrame) -> str:
    """The rank and step of a table whose rows have the same ones: `rank 0, step 4`; empty if unknown."""
    first = table[["rank", "step"]].iloc[0]
    return ", ".join(f"{column} {value}" for column, value in first.items() if pd.notna(value))


def window_word(step: object) -> str:
    """What a window is called: `step`, or `trace` where no step is marked and all of it is one window."""
    return "trace" if pd.isna(step) else "step"  # type: ignore[call-overload]


def table_word(table: pd.DataFrame) -> str:
    """`window_word` of rows of `overlaplab.summary` or `.totals`, which sum up steps."""
    return window_word(table["step"].max()) if "step" in table else "step"


def table_time(table: pd.DataFrame) -> str:
    """What the time of their windows is called: `step time`, or `trace`; `recorded time` where the rows do not tell."""
    if "step" not in table:
        return "recorded time"
    return "step time" if table_word(table) == "step" else "trace"


def first_shown(step: int | None) -> str:
    """What the timeline shows where nobody has chosen a step."""
    return "All steps" if step is None else f"Step {step} at first"


def window_title(window: WindowStatistics, *, selected: bool) -> str:
    """From when to when the window lasts: `Visible: 0.303 to 1,885.572 ms`."""
    begins, ends = (text(time, "ns", 3, grouped=True) for time in (window.start_ns, window.end_ns))
    return f"{'Selected' if selected else 'Visible'}: {begins} to {ends} ms"


def window_size(window: WindowStatistics) -> str:
    """How long the window is, and how many events are in it."""
    return f"{ms(window.end_ns - window.start_ns)}, {window.events:,} events on streams."


def window_lead(window: WindowStatistics, step: int | None = None, chosen: str = "") -> str:
    """How much of the window's communication is exposed, and on which rank most.

    `step`: the step, if the window is exactly one, and `chosen`: why that step.
    """
    table = window.ranks
    where = f"{count(len(table), 'rank')}, {ms(window.end_ns - window.start_ns)} from {ms(window.start_ns)} on"
    if step is not None:
        why = f" ({chosen})" if chosen else ""
        over = " from the first rank's start to the last one's end" if len(table) > 1 else ""
        where = f"{count(len(table), 'rank')}, step {step}{why}, {ms(window.end_ns - window.start_ns)}{over}"
    comm, exposed = int(table["comm_ns"].sum()), int(table["exposed_comm_ns"].sum())
    if comm == 0:
        busy, span = int(table["busy_ns"].sum()), int(table["span_ns"].sum())
        busy_words = f"; {percent(busy, span)} of the ranks' time is busy" if span else ""
        return f"{where}: no communication{busy_words}."
    lead = f"{where}: {ms(exposed)} of {ms(comm)} of communication is exposed"
    lead += f" ({percent(exposed, int(table['span_ns'].sum()))} of this window"
    if len(table) == 1:
        return f"{lead})."
    lead += f", {count(len(table), 'rank')} together)."
    worst = table.iloc[int(table["exposed_comm_ns"].argmax())]
    return f"{lead} Most on rank {rank_word(worst['rank'])}: {ms(int(worst['exposed_comm_ns']))}." if exposed else lead


def timeline_title(view: View) -> str:
    """How much of the communication in the chart's window is exposed, over all its ranks."""
    where = f"from {ms(view.start_ns)} to {ms(view.end_ns)}"
    comm = int(view.totals["comm_ns"].sum())
    if comm == 0:
        return f"No communication {where}"
    exposed = int(view.totals["exposed_comm_ns"].sum())
    ranks = f" over {len(view.totals)} ranks" if len(view.totals) > 1 else ""
    share = percent(exposed, int(view.totals["span_ns"].sum()))
    return f"Exposed communication {ms(exposed)} of {ms(comm)}, {share} of this window{ranks}, {where}"


def timeline_lead(view: View, where: str, ranks: int) -> str:
    """What a report's timeline shows, which cannot be zoomed to single events; `ranks`: how many are selected."""
    streams = view.marks[view.marks["kind"].eq("stream")]  # as `window_size` counts; other lanes repeat them
    shown, marks, events = len(view.totals), len(streams), int(streams["events"].sum())
    left_out = f" Ranks {numbers_named(view.totals['rank'].tolist())} of {ranks:,}." if ranks > shown else ""
    merged = "." if marks == events else f", drawn as {marks:,} marks: neighbours too close to tell apart share one."
    return (
        f"What ran when in {where}, a lane per stream or thread, all ranks by one clock.{left_out}"
        f" {events:,} events on streams{merged}"
    )


def clocks_note(offsets: Sequence[tuple[int | None, int]]) -> str | None:
    """The corrections of the ranks' clocks, the largest first; None if none was corrected. Takes ranks and ns."""
    if not offsets:
        return None
    worst = sorted(offsets, key=lambda pair: -abs(pair[1]))
    shown = [f"rank {rank_word(rank)} {'-' if ns > 0 else '+'}{ms(abs(ns))}" for rank, ns in worst[:MOST_CLOCKS]]
    more = f" and {count(len(worst) - MOST_CLOCKS, 'more rank')}" if len(worst) > MOST_CLOCKS else ""
    return f"Clocks corrected to the first rank's: {', '.join(shown)}{more}"
