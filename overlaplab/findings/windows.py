"""What a window of the timeline holds, and what to do about it, as sentences: plain text."""

from __future__ import annotations

from overlaplab.timeline.window_statistics import WindowStatistics
from overlaplab.words import count, ms, percent, rank_word

__all__ = ["window_advice", "window_verdict"]

_LITTLE = 0.02  # of the window: less is not worth an effort


def window_verdict(found: WindowStatistics) -> str:
    """How much of the window's communication is exposed, and on which rank most."""
    table = found.ranks
    where = f"{count(len(table), 'rank')}, {ms(found.end_ns - found.start_ns)} from {ms(found.start_ns)} on"
    comm, exposed = int(table["comm_ns"].sum()), int(table["exposed_comm_ns"].sum())
    if comm == 0:
        busy, span = int(table["busy_ns"].sum()), int(table["span_ns"].sum())
        return f"{where}: no communication; {percent(busy, span)} of the ranks' time is busy."
    told = f"{where}: {ms(exposed)} of {ms(comm)} of communication is exposed"
    told += f" ({percent(exposed, comm)} of communication, {percent(exposed, int(table['span_ns'].sum()))} of the time"
    if len(table) == 1:
        return f"{told})."
    told += ", all ranks together)."
    worst = table.iloc[int(table["exposed_comm_ns"].argmax())]
    return f"{told} Most on rank {rank_word(worst['rank'])}: {ms(int(worst['exposed_comm_ns']))}." if exposed else told


def window_advice(found: WindowStatistics) -> list[str]:
    """What to look at next, or to change."""
    table = found.ranks
    span = max(int(table["span_ns"].sum()), 1)
    comm, exposed, idle = (int(table[name].sum()) for name in ("comm_ns", "exposed_comm_ns", "idle_ns"))
    if comm and exposed > _LITTLE * span and exposed >= idle:
        return [
            f"Hiding all that is exposed here would gain at most {ms(exposed / len(table))} per rank."
            " Click a collective above a red stretch: if it waits, look at what its last rank does meanwhile;"
            " if it transfers, launch it earlier or send less."
        ]
    if idle > _LITTLE * span:
        return [
            f"{percent(idle, span)} of the ranks' time is idle here, {percent(exposed, span)} exposed communication."
            " Click what comes after a gap: where its launch began shortly before it, the host is what is slow."
        ]
    return ["Nothing to hide here: the ranks compute nearly all the time. Look where the overview shows red."]
