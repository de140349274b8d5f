"""Ranks whose device activity was not recorded have no breakdown; every screen says so in the same words."""

from __future__ import annotations

from overlaplab.events import Run, rule_of
from overlaplab.vocabulary import Rule

__all__ = ["unrecorded"]

_REMEDY = (
    "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], and see with `overlaplab doctor` whether the"
    " profiler sees the GPU"
)
_MOST_NAMED = 8


def unrecorded(run: Run, why: str | None = None) -> str | None:
    """That device activity was not recorded, and what to do about it; None where that is so of no rank.

    `why` stands in place of the general remedy, where it is known why the profiler saw nothing.
    """
    ranks = [trace.rank for trace in run.traces if rule_of(trace) is Rule.UNRECORDED]
    if not ranks:
        return None
    where = ""
    if len(ranks) < len(run.traces):
        named = ", ".join(map(str, ranks[:_MOST_NAMED])) + (", …" if len(ranks) > _MOST_NAMED else "")
        where = f" on {'rank' if len(ranks) == 1 else 'ranks'} {named}"
    return f"{Rule.UNRECORDED}{where}, so there is no breakdown: {why or _REMEDY}"
