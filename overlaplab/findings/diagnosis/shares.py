"""The causes of one step's exposed time, each with what would help against it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from msgspec import Struct

from overlaplab.causes import Cause
from overlaplab.evidence.arrays import int_or_none
from overlaplab.evidence.purposes import LOOP_GRADIENTS
from overlaplab.findings.actions.ranked import Advised
from overlaplab.findings.actions.table import ACTIONS
from overlaplab.findings.actions.words import (
    OF_ANY_DATA,
    OPEN_ALL,
    Case,
    cause_words,
    general_remedy,
    is_undivided,
    moved_most,
)
from overlaplab.findings.diagnosis.causes import what_moved
from overlaplab.findings.diagnosis.unseen import Unseen
from overlaplab.findings.loops import Loop
from overlaplab.findings.thresholds import LITTLE_GAIN, MAJORITY


class CauseShare(Struct, frozen=True, kw_only=True):
    """The exposed time of one cause in a rank's step; of waits for late ranks, that of one late rank.

    Compute gaps between any two operators are apart from the others.
    """

    cause: Cause
    label: str
    """The cause in words that need no glossary: `nothing left to overlap (tail)`, `waited for rank 3`."""
    what: str
    """The collectives concerned: `bucket 5, which ends 38.0 ms after the backward pass`."""
    remedy: str
    """What would help, in short: `bucket_cap_mb 2`; empty where nothing known gains enough."""
    rows: pd.DataFrame
    """Its rows of `overlaplab.exposed`, the longest first."""
    late_rank: int | None
    gain_ns: int | None
    """How much shorter a step of a training would be by the remedy; None where unknown."""
    replayed: bool
    """Whether a play tells the gain."""
    overhead: bool = False
    """Whether it is compute gaps between any two operators."""
    is_gain_certain: bool = True
    """Whether the gain can be told from none."""
    is_wait_unknown: bool = False
    """Whether how much of it is waiting cannot be told, although all traces are here."""

    @property
    def exposed_ns(self) -> int:
        """How much was exposed."""
        return int(self.rows["exposed_ns"].sum())


def cause_shares(
    cause_rows: pd.DataFrame,
    bound: Mapping[str, Any] | None,
    window: Mapping[str, Any],
    loop: Loop,
    buckets: pd.DataFrame | None,
    actions: Sequence[Advised],
    gains: pd.DataFrame | None,
    unseen: Unseen,
) -> tuple[CauseShare, ...]:
    """The shares of a step's exposed time by cause, late rank and `overhead`, the largest first.

    `cause_rows`: rows of `split_unhideable`.
    """
    shares = []
    named = bool(cause_rows["what"].notna().any())
    bytes_explain = bound is None or bool(bound["bytes_explain"])
    by = ["cause", "late_rank", "overhead"]
    for (cause_name, late, short), rows in cause_rows.groupby(by, dropna=False, sort=False):
        rows = rows.drop(columns="overhead").sort_values("exposed_ns", ascending=False, kind="stable")
        cause, late_rank, overhead = Cause(str(cause_name)), int_or_none(late), bool(short)
        label = cause_words(cause, late_rank, overhead=overhead)
        case = Case(loop=loop, rows=rows, cause=cause, late_rank=late_rank, played=_played_actions(gains, late_rank))
        action = _answer(actions, case, unseen, overhead=overhead, named=named)
        can_tell = not unseen.ranks_missing and not _is_beyond_plays(case)
        replayed = action is not None or (can_tell and _is_played(case, overhead=overhead, named=named))
        much = int(rows["exposed_ns"].sum()) > LITTLE_GAIN * int(window["span_ns"])
        unexplained = cause is Cause.UNKNOWN or (cause is Cause.LINK and not bytes_explain)
        is_wait_unknown = not replayed and unseen.waits is not None and unexplained
        remedy = None
        if action is not None and cause in HAVE_UNPLAYED_REMEDIES and not action.is_worth_it:
            action = None
        if action is not None:
            remedy = action.text if action.is_worth_it else ""
        elif is_wait_unknown or overhead or not much or (replayed and cause not in HAVE_UNPLAYED_REMEDIES):
            remedy = ""
        elif cause is Cause.LINK and not bytes_explain:
            remedy = OPEN_ALL
        shares.append(
            CauseShare(
                cause=cause,
                label=label,
                what=what_moved(cause, rows, buckets),
                remedy=general_remedy(case) if remedy is None else remedy,
                rows=rows,
                late_rank=late_rank,
                gain_ns=None if action is None else action.gain_ns,
                is_gain_certain=action is None or action.is_certain,
                replayed=replayed,
                overhead=overhead,
                is_wait_unknown=is_wait_unknown and much,
            )
        )
    return tuple(sorted(shares, key=lambda share: -share.exposed_ns))


HAVE_UNPLAYED_REMEDIES = (Cause.BUBBLE, Cause.IMBALANCE)
"""Causes against which something is left to try that is not played."""


def _played_actions(gains: pd.DataFrame | None, late_rank: int | None) -> frozenset[str]:
    """The actions that were played, without the balance of another rank than the late one."""
    if gains is None:
        return frozenset()
    other = (gains["remedy"] == "balance") & (gains["setting"] != late_rank) & (late_rank is not None)
    return frozenset(gains.loc[~other, "remedy"])


def _is_played(case: Case, *, overhead: bool, named: bool) -> bool:
    """Whether an action that answers this cause was played; what dividing a model of one unit gains cannot be."""
    if case.cause is None or is_undivided(case.loop, case.cause):
        return False
    played = [action for action in ACTIONS if action.name in case.played]
    return any(action.answers(case.cause, case.rows, overhead=overhead, named=named) for action in played)


def _is_beyond_plays(case: Case) -> bool:
    """Whether what would help cannot be played: fewer ranks per layer for activations, or one all-reduce for gradients
    that take several collectives.
    """
    moved = moved_most(case.rows)
    if moved == LOOP_GRADIENTS:  # a rank is waited for in one of them while it sends another
        return case.cause is not Cause.GAP and not case.loop.by_hand
    return moved == "activations" and case.cause not in OF_ANY_DATA


def _answer(actions: Sequence[Advised], case: Case, unseen: Unseen, *, overhead: bool, named: bool) -> Advised | None:
    """The first action that answers a cause, if it may be advised; of waits for a late rank none about another rank."""
    if case.cause is None or is_undivided(case.loop, case.cause):
        return None
    for each in actions:
        answers = each.action.answers(case.cause, case.rows, overhead=overhead, named=named)
        if answers and each.is_about(case.late_rank):
            worth = not unseen.ranks_missing or each.is_worth_it  # else what changes T, not tried then, may gain more
            return each if worth and (each.is_certain or not _is_beyond_plays(case)) else None
    return None


def answered_shares(shares: Sequence[CauseShare], best: Advised) -> Iterator[CauseShare]:
    """The causes that an action answers."""
    named = any(share.rows["what"].notna().any() for share in shares)
    return (
        share for share in shares if best.action.answers(share.cause, share.rows, overhead=share.overhead, named=named)
    )


def largest_share(shares: tuple[CauseShare, ...]) -> CauseShare:
    """The largest share that is not many short pauses, else the largest.

    Short pauses come between any two operators, and would be idle time without communication.
    """
    return next((share for share in shares if not is_of_short_pauses(share)), shares[0])


def is_of_short_pauses(share: CauseShare) -> bool:
    """Whether it is pauses of the host, or gaps between operators, of which none stands out."""
    longest = int(share.rows["exposed_ns"].iloc[0])
    return share.overhead or (share.cause is Cause.GAP and longest <= MAJORITY * share.exposed_ns)


def is_unanswered(share: CauseShare, best: Advised | None) -> bool:
    """Whether no play answers a cause that costs more than the best action gains."""
    return not share.replayed and bool(share.remedy) and share.exposed_ns > (0 if best is None else best.gain_ns)
