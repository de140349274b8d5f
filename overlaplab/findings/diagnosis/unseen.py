"""What the traces of a run do not show, and why: so that a sentence advises only what would help."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from msgspec import Struct

from overlaplab.analyses import collectives
from overlaplab.events import Run, extent, host_steps, missing_ranks, once_per_run, only_ends_recorded
from overlaplab.evidence.clocks import LEAST_OFFSET_NS, clocks, run_zero_ns
from overlaplab.evidence.group_pairing import DOUBTFUL_NS, ROOTED
from overlaplab.evidence.passes import labels_some_models
from overlaplab.findings.thresholds import MAJORITY
from overlaplab.words import count, ms, shorten


class Unseen(Struct, frozen=True, kw_only=True):
    """What no trace shows; by default only what other ranks' traces would show."""

    only_ends: bool = False
    """Whether only the kernels at either end of some collectives were recorded."""
    waits: str | None = None
    """Why it is unknown who waited, although the traces of all ranks that took part are here."""
    ranks_missing: int = 0
    """How many ranks took part of which no trace is here."""
    models_unlabelled: bool = False
    """Whether a Recorder labels one of several models."""
    late_starts: Mapping[int | None, int] = {}
    """In recordings of one step, the ranks whose recording began later than the first rank's, and by how many ns."""


OTHER_RANKS = Unseen()
"""What other ranks' traces would show, and nothing else."""


@once_per_run
def unseen(run: Run) -> Unseen:
    """What this run's traces do not show."""
    return Unseen(
        only_ends=any(map(only_ends_recorded, run.traces)),
        waits=why_waits_unknown(collectives(run)),
        ranks_missing=missing_ranks(run),
        models_unlabelled=run.manifest is not None and any(map(labels_some_models, run.traces)),
        late_starts=late_starts(run),
    )


def play_caveats(unseen: Unseen) -> str:
    """What a play leaves as recorded since traces do not tell it, in sentences after a space; empty where they do."""
    models = _OTHER_MODELS if unseen.models_unlabelled else ""
    if not (missing := unseen.ranks_missing):
        return models
    have = f"{count(missing, 'rank')} {'has' if missing == 1 else 'have'} no trace here"
    return f" {have}: collectives are taken to last as long as recorded, waiting included.{models}"


_OTHER_MODELS = (
    " Buckets without labels are of another model, whose cap is not tried: give the Recorder a module that contains all"
    " models."
)


def late_starts(run: Run) -> dict[int | None, int]:
    """By how many ns ranks' recordings began after the first one's, where that is more than the clocks' error.

    Empty unless each rank recorded one step: of several the profiler's start is in the first alone.
    """
    starts = {trace.rank: span[0] for trace in run.traces if (span := extent(trace))}
    if len(starts) < 2 or any(len(host_steps(trace)) != 1 for trace in run.traces):
        return {}
    zeros = {trace.rank: run_zero_ns(run, trace) for trace in run.traces}
    begun = {rank: at - zeros[rank] for rank, at in starts.items()}
    first, error = min(begun.values()), max(LEAST_OFFSET_NS, int(clocks(run)["error_ns"].max()))
    return {rank: at - first for rank, at in begun.items() if at - first > error}


def late_start_words(unseen: Unseen, rank: int | None, waited_ns: int) -> str:
    """A sentence that a rank which others waited for began to record later; empty where it did not, or by little."""
    late_ns = unseen.late_starts.get(rank)
    if late_ns is None or late_ns < MAJORITY * waited_ns:
        return ""
    return (
        f"Only one step was recorded, and rank {rank} began to record {ms(late_ns)} after the first rank: the"
        " profiler's own start may be why the others waited. Record several steps, and leave out the first."
    )


def why_waits_unknown(table: pd.DataFrame) -> str | None:
    """Why waits in `overlaplab.collectives`' rows are unknown: the reason for most exposed time.

    None if the traces of ranks that took part are missing, or if all waits are known.
    """
    left = table[table["wait_ns"].isna()]
    if left.empty:
        return None
    reason = left["unmatched"].map(
        lambda why: f"collectives of different ranks could not be matched: {why.replace('its rank', 'a rank', 1)}",
        "ignore",
    )
    reason = reason.astype(object).where(left["unmatched"].notna(), None)
    for chosen, why in (
        (
            left["doubtful"],
            f"matched collectives end more than {ms(DOUBTFUL_NS)} apart, which casts doubt on the match",
        ),
        (left["kind"].isna(), "the kind of the collectives is unknown"),
        (left["kind"].isin(ROOTED), "in sends, broadcasts and the like not all ranks need to wait for the last one"),
        (left["group_size"].isna(), "the size of the collectives' groups is unknown"),
    ):
        reason = reason.where(reason.notna() | ~chosen.astype(bool), why)
    exposed = left["exposed_ns"].fillna(0).astype("int64") + 1  # if nothing is exposed, the most frequent reason wins
    return shorten(str(exposed.groupby(reason.fillna("").to_numpy()).sum().idxmax()), 200) or None
