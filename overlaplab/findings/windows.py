"""What a window of time holds on the timeline, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from overlaplab.findings.thresholds import LITTLE_GAIN, MOST_CLOCKS
from overlaplab.timeline.timeline import View
from overlaplab.timeline.window_statistics import WindowStatistics
from overlaplab.words import count, ms, percent, rank_word


def window_name(table: pd.DataFrame) -> str:
    """The rank and step of a table whose rows have the same ones: `rank 0, step 4`; empty if unknown."""
    first = table[["rank", "step"]].iloc[0]
    return ", ".join(f"{column} {value}" for column, value in first.items() if pd.notna(value))


def window_size(window: WindowStatistics) -> str:
    """How long the window is, and how many events are in it."""
    return f"{ms(window.end_ns - window.start_ns)}, {window.events:,} events on streams."


def window_lead(window: WindowStatistics) -> str:
    """How much of the window's communication is exposed, and on which rank most."""
    table = window.ranks
    where = f"{count(len(table), 'rank')}, {ms(window.end_ns - window.start_ns)} from {ms(window.start_ns)} on"
    comm, exposed = int(table["comm_ns"].sum()), int(table["exposed_comm_ns"].sum())
    if comm == 0:
        busy, span = int(table["busy_ns"].sum()), int(table["span_ns"].sum())
        return f"{where}: no communication; {percent(busy, span)} of the ranks' time is busy."
    lead = f"{where}: {ms(exposed)} of {ms(comm)} of communication is exposed"
    lead += f" ({percent(exposed, comm)} of communication, {percent(exposed, int(table['span_ns'].sum()))} of the time"
    if len(table) == 1:
        return f"{lead})."
    lead += ", all ranks together)."
    worst = table.iloc[int(table["exposed_comm_ns"].argmax())]
    return f"{lead} Most on rank {rank_word(worst['rank'])}: {ms(int(worst['exposed_comm_ns']))}." if exposed else lead


def window_advice(window: WindowStatistics) -> list[str]:
    """What to look at next, or to change."""
    table = window.ranks
    span = max(int(table["span_ns"].sum()), 1)
    comm, exposed, idle = (int(table[name].sum()) for name in ("comm_ns", "exposed_comm_ns", "idle_ns"))
    if comm and exposed > LITTLE_GAIN * span and exposed >= idle:
        return [
            f"Hiding all that is exposed here would gain at most {ms(exposed / len(table))} per rank."
            " Click a collective above a red stretch: if it waits, look at what its last rank does meanwhile;"
            " if it transfers, launch it earlier or send less."
        ]
    if idle > LITTLE_GAIN * span:
        return [
            f"{percent(idle, span)} of the ranks' time is idle here, {percent(exposed, span)} exposed communication."
            " Click what comes after a gap: where its launch began shortly before it, the host is what is slow."
        ]
    return ["Nothing to hide here: the ranks compute nearly all the time. Look where the overview shows red."]


def timeline_title(view: View) -> str:
    """How much of the communication in the chart's window is exposed, over all its ranks."""
    where = f"from {ms(view.start_ns)} to {ms(view.end_ns)}"
    comm = int(view.totals["comm_ns"].sum())
    if comm == 0:
        return f"No communication {where}"
    exposed = int(view.totals["exposed_comm_ns"].sum())
    ranks = f" over {len(view.totals)} ranks" if len(view.totals) > 1 else ""
    share = percent(exposed, comm)
    return f"Exposed communication {ms(exposed)} of {ms(comm)} of communication ({share}){ranks}, {where}"


def timeline_lead(view: View, where: str, ranks: int) -> str:
    """What a report's timeline shows, which cannot be zoomed to single events; `ranks` are all, shown or not."""
    shown, marks, events = len(view.totals), len(view.marks), int(view.marks["events"].sum())
    left_out = f" The first {shown} of {ranks} ranks." if ranks > shown else ""
    merged = "." if marks == events else f", drawn as {marks:,} marks: neighbours too close to tell apart share one."
    return (
        f"What ran when in {where}, a lane per stream or thread, all ranks by one clock.{left_out}"
        f" {events:,} events{merged}"
    )


def timeline_advice(view: View) -> str:
    """What to look at on a report's timeline."""
    if not view.totals["exposed_comm_ns"].any():
        return "Nothing to do: no communication is exposed here."
    return (
        "Look at the exposed lanes: what did the rank do, or wait for, just before each red stretch began?"
        " The dashboard (overlaplab app) zooms to single events."
    )


def clocks_note(offsets: Sequence[tuple[int | None, int]]) -> str | None:
    """The corrections of the ranks' clocks, the largest first; None if none was corrected. Takes ranks and ns."""
    if not offsets:
        return None
    worst = sorted(offsets, key=lambda pair: -abs(pair[1]))
    shown = [f"rank {rank_word(rank)} {'-' if ns > 0 else '+'}{ms(abs(ns))}" for rank, ns in worst[:MOST_CLOCKS]]
    more = f" and {count(len(worst) - MOST_CLOCKS, 'more rank')}" if len(worst) > MOST_CLOCKS else ""
    return f"Clocks corrected to the first rank's: {', '.join(shown)}{more}"
