"""The sentence above all others: how much of a step is exposed, and the cause that it is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from overlaplab.causes import Cause
from overlaplab.findings.actions.ranked import Advised, short_words
from overlaplab.findings.actions.words import cause_clause
from overlaplab.findings.diagnosis.shares import (
    CauseShare,
    answered_shares,
    is_of_short_pauses,
    is_unanswered,
    largest_share,
)
from overlaplab.findings.thresholds import LITTLE_GAIN, MAJORITY, SECOND_CAUSE
from overlaplab.findings.windows import window_word
from overlaplab.words import ms, percent, sentence


def find_headline(
    window: Mapping[str, Any], shares: tuple[CauseShare, ...], best: Advised | None, why_idle: str
) -> str:
    """How much of a step is exposed, its main cause, and the second one, or why the largest was passed over."""
    exposed, span = int(window["exposed_comm_ns"]), int(window["span_ns"])
    of = window_word(window["step"])
    if int(window["comm_ns"]) == 0:
        return f"The {of} has no communication."
    if not shares:
        return f"No communication is exposed in this {of}."
    first, idle_ns = _main_cause(shares, best), int(window["idle_ns"])
    share = percent(exposed, span)
    start = f"{share} of the {of} is exposed communication ({ms(exposed)} of {ms(span)})"
    if best is not None and best.action.fills_idle_time and not is_unanswered(first, best):
        answered_ns = sum(share.exposed_ns for share in answered_shares(shares, best))
        idle = f"{percent(idle_ns, span)} of the {of} is idle{why_idle}"
        if idle_ns > max(answered_ns, shares[0].exposed_ns):
            return f"{sentence(idle)} {start}."
        if idle_ns > answered_ns:
            return f"{start}. {_cause_sentence(shares[0], ms(shares[0].exposed_ns))} {sentence(idle)}"
    if len(shares) == 1:
        return f"{start}. {_cause_sentence(first, 'any' if first.cause is Cause.UNHIDEABLE else 'all')}"
    about_first = f"{start}. {_cause_sentence(first, ms(first.exposed_ns))}"
    second = next((share for share in shares if share is not first and not is_of_short_pauses(share)), first)
    if first is shares[0] and second is not first and second.exposed_ns >= SECOND_CAUSE * span:
        took = ms(second.exposed_ns)
        further = sentence(_clause(second, took)) if second.what == first.what else _cause_sentence(second, took)
        return f"{about_first} {further}{_cause_of_other_advice((first, second), shares, best)}"
    passed_over = _why_passed_over(first, shares, best)
    return f"{about_first} {passed_over}".rstrip() + _cause_of_other_advice((first,), shares, best)


def _cause_of_other_advice(named: tuple[CauseShare, ...], shares: tuple[CauseShare, ...], best: Advised | None) -> str:
    """What the recommended action is against, where it answers none of the causes `named` already; else empty."""
    if best is None or is_unanswered(named[0], best) or not best.is_worth_it:
        return ""
    of_transfer = best.action.of_transfers and named[0].cause.origin == "transfer"
    answered = [each for each in answered_shares(shares, best) if best.is_about(each.late_rank)]
    little_ns = LITTLE_GAIN * (best.gain_ns + best.step_ns)
    if of_transfer or not answered or answered[0].exposed_ns <= little_ns or any(each in named for each in answered):
        return ""
    return cause_of_advice(shares, best)


def _cause_sentence(share: CauseShare, time: str) -> str:
    """`For 2.0 ms of it, the rank waited for rank 3 (bucket 1).`"""
    where = f" ({share.what})" if share.rows["collective"].notna().any() else ""
    return sentence(f"{_clause(share, time)}{where}")


def cause_of_advice(shares: tuple[CauseShare, ...], best: Advised) -> str:
    """What the recommended action is against, where the headline is about something else; empty for no cause."""
    answered = answered_shares(shares, best)
    first = next((share for share in answered if best.is_about(share.late_rank)), None)
    if first is None:
        return ""
    return " " + _cause_sentence(first, ms(first.exposed_ns)).replace(" of it", " of exposed communication", 1)


def _clause(share: CauseShare, time: str) -> str:
    return cause_clause(share.cause, time, share.late_rank, overhead=share.overhead)


def _main_cause(shares: tuple[CauseShare, ...], best: Advised | None) -> CauseShare:
    """The cause that the headline is about: the largest one that the recommended action answers, unless another is more
    than twice as large, else the largest. What shortens all transfers is also against the largest of them.
    """
    first = largest_share(shares)
    if best is None or is_unanswered(first, best) or (best.action.of_transfers and first.cause.origin == "transfer"):
        return first
    answered = next(answered_shares(shares, best), first)
    return answered if answered.exposed_ns >= MAJORITY * first.exposed_ns else first


def _why_passed_over(first: CauseShare, shares: tuple[CauseShare, ...], best: Advised | None) -> str:
    """Why the headline is not about the most expensive cause; empty where it is."""
    if first is shares[0]:
        return ""
    took = ms(shares[0].exposed_ns)
    clause = _clause(shares[0], took)
    if shares[0].cause is Cause.GAP:
        pauses = shares[0].label if shares[0].overhead else "many pauses of the host"
        return f"Another {took} of it passed in {pauses}, which communication did not cause."
    gain_ns = shares[0].gain_ns
    if gain_ns is not None and best is not None and gain_ns > best.gain_ns:
        verb = "would" if shares[0].is_gain_certain else "may"
        return sentence(f"{clause}; {short_words(shares[0].remedy)} {verb} gain {ms(gain_ns)}")
    why = "what shortens that gains less" if shares[0].remedy else "nothing that was tried gains enough"
    return sentence(f"{clause}; {why}")
