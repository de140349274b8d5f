"""What a reader of any figure must know: what a run lacks, what was corrected, what could not be matched."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from overlaplab.events import Run, Trace, Work, activity, counting_as, rule_of, window_warnings
from overlaplab.evidence.clocks import clocks
from overlaplab.findings.thresholds import MOST_KERNELS, MOST_REASONS
from overlaplab.vocabulary import Rule
from overlaplab.words import sentence, to_ms

_NAME = 60  # characters of a kernel's name
_REMEDY = (
    "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], and see with `overlaplab doctor` whether the"
    " profiler sees the GPU"
)
_MOST_NAMED = 8


def run_warnings(run: Run) -> tuple[str, ...]:
    """What a reader of any figure of this run must know, a line each."""
    warnings = list(run.warnings)
    if run.manifest and run.manifest.link_attained is False:  # decided by the engine, which wrote it into run.json
        warnings.append("link not attained: more than 5 % of the collectives overran the emulated link")
    warnings += _clock_warnings(run)
    missing = unrecorded(run, run.manifest.device_activity_missing if run.manifest else None)
    warnings += [missing] if missing else []
    for trace in run.traces:
        where = "" if trace.rank is None else f"rank {trace.rank}: "
        if rule_of(trace) is Rule.UNRECORDED:
            continue
        warnings += [where + warning for warning in window_warnings(trace)]
        ranks = max(len(run.traces), trace.world_size or 1)
        if ranks > 1 and not len(activity(trace).communication):
            warnings.append(f"{where}no communication recognised among {ranks} ranks; {_longest_kernels(trace)}")
    return tuple(warnings)


def not_recorded(run: Run) -> str | None:
    """Why there is nothing to show, and what to do, if device activity was not recorded; None if it was."""
    missing = unrecorded(run)
    return None if missing is None else sentence(missing)


def unrecorded(run: Run, why: str | None = None) -> str | None:
    """On which ranks device activity was not recorded, and what to do about it; None if it was on all.

    `why`, if it is known why the profiler saw nothing, replaces the general remedy.
    """
    ranks = [trace.rank for trace in run.traces if rule_of(trace) is Rule.UNRECORDED]
    if not ranks:
        return None
    where = ""
    if len(ranks) < len(run.traces):
        named = ", ".join(map(str, ranks[:_MOST_NAMED])) + (", …" if len(ranks) > _MOST_NAMED else "")
        where = f" on {'rank' if len(ranks) == 1 else 'ranks'} {named}"
    return f"{Rule.UNRECORDED}{where}, so there is no breakdown: {why or _REMEDY}"


def unmatched_notes(table: pd.DataFrame) -> tuple[str, ...]:
    """How many rows of `overlaplab.collectives` have no counterpart on other ranks, a line per reason."""
    reasons = Counter(table["unmatched"].dropna()).most_common(MOST_REASONS)
    return tuple(f"{number} without a counterpart: {reason}" for reason, number in reasons)


def _clock_warnings(run: Run) -> tuple[str, ...]:
    """Which clocks were corrected, a line each."""
    table = clocks(run)
    applied = table[table["applied"]]
    rows = zip(*(applied[name].tolist() for name in ("rank", "offset_ns", "iqr_ns", "collectives")), strict=True)
    return tuple(
        f"rank {rank}'s clock was {to_ms(abs(offset)):.2f} ms {'ahead of' if offset > 0 else 'behind'} "
        f"rank {run.traces[0].rank}'s; corrected (by {number} collectives, ± {to_ms(spread):.3f} ms)"
        for rank, offset, spread, number in rows
    )


def _longest_kernels(trace: Trace) -> str:
    """The names with the most time, among which a reader may recognise communication."""
    counted = trace.events[~counting_as(trace, Work.NOTHING)]
    longest = counted.groupby("name", observed=True)["dur_ns"].sum().nlargest(MOST_KERNELS)
    names = [str(name) if len(str(name)) <= _NAME else f"{str(name)[: _NAME - 1]}…" for name in longest.index]
    return "most time is in " + ", ".join(names) if names else "nothing that counts was recorded"
