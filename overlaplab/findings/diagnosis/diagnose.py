"""One rank's step: what was exposed, why, and what to do. Every screen's verdict, causes and advice come from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import pandas as pd

from overlaplab.analyses.exposed import Cause
from overlaplab.analyses.worst import outlier_steps, rows_of, without_steps
from overlaplab.findings.diagnosis.bound import gains_by_buckets, gains_by_half_the_bytes
from overlaplab.findings.diagnosis.causes import UNKNOWN_LOOP, Loop, cause_words, what_moved
from overlaplab.findings.diagnosis.certainty import uncertain
from overlaplab.findings.diagnosis.other_problems import (
    LEAVE_CORES,
    other_problem,
    other_problem_advice,
    waits_for_cores,
)
from overlaplab.findings.diagnosis.parts import CausePart, by_unit_kind
from overlaplab.findings.diagnosis.remedies import FIND_PAUSE, OPEN_ALL, cap_words, remedy_for
from overlaplab.findings.diagnosis.told import told_causes
from overlaplab.findings.diagnosis.unseen import OTHER_RANKS, Unseen, started_late
from overlaplab.findings.thresholds import LITTLE_EXPOSED, LITTLE_GAIN, MAJORITY, MOST_CAUSES
from overlaplab.words import ms, numbers_named, percent, rank_word, size_exact

MIB = 1 << 20

__all__ = [
    "CauseShare",
    "Diagnosis",
    "diagnose",
    "exposed_lead",
    "outliers_finding",
    "place_name",
    "what_to_do",
    "where_chosen",
    "why_and_what_to_do",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseShare:
    """The exposed time of one cause, and where it is waiting of one late rank, in one step of one rank."""

    cause: Cause
    late_rank: int | None
    label: str
    """In words that need no glossary: `nothing left to overlap (tail)`, `waited for rank 3`."""
    exposed_ns: int
    what: str
    """The collectives concerned: `bucket 5, which ends 38.0 ms after the backward pass`."""
    remedy: str
    """Short, of what this run's strategy can change: `bucket_cap_mb 2`; empty where nothing known gains enough."""
    gain_ns: int | None
    """How much shorter the step would be by that; None where unknown."""
    replayed: bool
    """Whether a replay tells the gain; else it is the most that it can be."""
    untold: bool = False
    """Whether how much of it is waiting cannot be told, although all traces are here."""
    rows: pd.DataFrame
    """Its rows of `overlaplab.exposed`, the longest first."""
    parts: tuple[CausePart, ...]
    """The same by kind of unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is said of one rank's step."""

    rank: int | None
    step: int | None
    chosen: str
    """Why this one: `the most exposed rank's median step by exposed time`."""
    start_ns: int
    """From the run's start, as in `overlaplab.summary`."""
    span_ns: int
    comm_ns: int
    hidden_ns: int
    exposed_ns: int
    headline: str
    """What the problem is, and how large; before that, if so, that the machine was busy in the step."""
    is_problem: bool
    """Whether communication is the step's problem."""
    causes: tuple[CauseShare, ...]
    """The most expensive first; they add up to `exposed_ns`."""
    advice: str
    """`Try …`, or why there is nothing to do."""
    gain_ns: int | None
    """How much shorter the step would be by the advice, at most; None where unknown."""
    bound: Mapping[str, Any] | None
    """The row of `simulate.bound`."""
    ahead: tuple[int, int] | None
    """A prefetch depth whose replay makes the step shorter, and how long the step then takes in ns."""
    late_rank: int | None
    """The rank that this one waited for longest; None where it waited for none, or that is unknown."""
    waited_ns: int
    """For how long it waited for that rank, with its communication exposed."""
    outliers: str | None
    """Which steps are unlike the others, as a sentence."""


def diagnose(
    table: pd.DataFrame,
    window: Mapping[str, Any],
    causes: pd.DataFrame,
    idle: pd.DataFrame,
    *,
    chosen: str = "",
    unseen: Unseen = OTHER_RANKS,
    bound: Mapping[str, Any] | None = None,
    loop: Loop = UNKNOWN_LOOP,
    buckets: pd.DataFrame | None = None,
    replays: pd.DataFrame | None = None,
    pipelines: pd.DataFrame | None = None,
    best_buckets: pd.DataFrame | None = None,
    doubt_ns: int | None = None,
    busy: float | None = None,
) -> Diagnosis:
    """The diagnosis of `window`, a row of `overlaplab.summary`.

    Takes `table`, the rows of `overlaplab.summary` among which the window was `chosen`; rows of `overlaplab.exposed`,
    or of `analyses.exposed_moments`, which tell more exactly when, and of `analyses.idle`; what the traces do not show;
    the window's row of `simulate.bound`; what the training loop can change; and rows of `overlaplab.buckets` and, as
    `replays`, of `simulate.remedies`, as `pipelines` of `simulate.pipeline_remedies`, as `best_buckets` of
    `simulate.best_buckets`. Tables may be about other windows, too. `doubt_ns`: how much replayed gains may be off, see
    `simulate.gains_miss_ns`. `busy`: which part of the step computation waited for a core, of a step in which the
    machine was busy: that is said first, and nothing is advised on what seems to be computation or a slow host.
    """
    rows, idled = rows_of(causes, window), rows_of(idle, window)
    played = _NO_REPLAYS if replays is None else rows_of(replays, window)
    shares = _shares(rows, bound, window, loop, buckets, played, pipelines, all_here=unseen.waits is not None)
    waits = [share for share in shares if share.late_rank is not None]
    alone = pd.DataFrame([dict(window)])
    other = other_problem(alone, rows, idled, loop.host)
    lead = "" if busy is None or waits_for_cores(idled) else _busy_lead(busy)
    if lead and other is not None:
        other, advice, gain_ns = "Its figures do not tell what the problem is.", LEAVE_CORES, None
    elif other is None:
        others = None if best_buckets is None else rows_of(best_buckets, window)
        advice, gain_ns = _advice(window, shares, unseen, bound, others, doubt_ns)
    elif not waits_for_cores(idled) and (paused_ns := _paused_ns(played)) > LITTLE_EXPOSED * int(window["span_ns"]):
        other = f"{cause_words(Cause.GAP).capitalize()}: {_of_step(paused_ns, window)}."
        advice, gain_ns = f"Try {FIND_PAUSE}{_shorter(paused_ns, window, doubt_ns)}.", paused_ns
    else:
        advice, gain_ns = other_problem_advice(alone, idled, loop.host), None
    return Diagnosis(
        rank=_number(window["rank"]),
        step=_number(window["step"]),
        chosen=chosen,
        start_ns=int(window["start_ns"]),
        span_ns=int(window["span_ns"]),
        comm_ns=int(window["comm_ns"]),
        hidden_ns=int(window["overlapped_ns"]),
        exposed_ns=int(window["exposed_comm_ns"]),
        headline=lead + (other or _headline(window, shares)),
        is_problem=other is None and bool(shares),
        causes=shares,
        advice=advice,
        gain_ns=gain_ns,
        bound=bound,
        ahead=_ahead(played, int(window["span_ns"])),
        late_rank=waits[0].late_rank if waits else None,
        waited_ns=waits[0].exposed_ns if waits else 0,
        outliers=outliers_finding(table),
    )


def _busy_lead(share: float) -> str:
    waited = f" {percent(share, 1)} of the time" if share else ""
    return f"The machine was busy in this step: computation waited for a core{waited}. "


def outliers_finding(table: pd.DataFrame) -> str | None:
    """Which steps in rows of `overlaplab.summary` are unlike the others, and by what; None where none is."""
    steps = outlier_steps(table)
    if not steps:
        return None
    own, others = table[table["step"].isin(steps)], without_steps(table, steps)
    figures = [(own, "exposed_comm_ns"), (others, "exposed_comm_ns"), (own, "span_ns"), (others, "span_ns")]
    exposed, usual, span, usual_span = (int(rows.groupby("step")[name].max().median()) for rows, name in figures)
    named = f"Step {steps[0]} differs" if len(steps) == 1 else f"Steps {numbers_named(steps, last=' and ')} differ"
    if abs(exposed - usual) * 2 >= abs(span - usual_span):
        return f"{named}: {ms(exposed)} exposed, {ms(usual)} in others."
    return f"{named}: {ms(span)} long, {ms(usual_span)} others."


def _shares(
    rows: pd.DataFrame,
    bound: Mapping[str, Any] | None,
    window: Mapping[str, Any],
    loop: Loop,
    buckets: pd.DataFrame | None,
    replays: pd.DataFrame,
    pipelines: pd.DataFrame | None,
    *,
    all_here: bool,
) -> tuple[CauseShare, ...]:
    """The rows by cause and late rank, and apart from them what nothing can hide."""
    of_window = {"rank": window["rank"], "step": window["step"]}
    told = told_causes(rows, pd.DataFrame([] if bound is None else [{**bound, **of_window}]))
    found = []
    for (cause, late), own in _by_collective(told).groupby(["cause", "late_rank"], dropna=False, sort=False):
        own = own.sort_values("exposed_ns", ascending=False, kind="stable")
        name, rank = Cause(str(cause)), _number(late)
        known = partial(remedy_for, name, rank, pipelines=pipelines, all_here=all_here)
        bytes_explain = bound is None or bound["bytes_explain"]
        halves = None if bound is None else gains_by_half_the_bytes(bound, int(window["exposed_comm_ns"]))
        of_step = {"span_ns": int(window["span_ns"]), "bytes_explain": bytes_explain, "half_bytes_ns": halves}
        remedy = partial(known, loop=loop, replays=replays, **of_step)
        helps, label = remedy(own), cause_words(name, rank)
        gain_ns = helps.gain_ns if helps.replayed else _at_most(name, helps.gain_ns, bound, window)
        little = gain_ns is not None and gain_ns <= LITTLE_GAIN * int(window["span_ns"])
        found.append(
            CauseShare(
                cause=name,
                late_rank=rank,
                label=label,
                exposed_ns=int(own["exposed_ns"].sum()),
                what=what_moved(name, own, buckets),
                remedy="" if little else helps.text,
                gain_ns=gain_ns,
                replayed=helps.replayed,
                untold=helps.untold,
                rows=own,
                parts=tuple(
                    CausePart(
                        cause=name,
                        label=label,
                        unit_kind=kind,
                        what=what_moved(name, part, buckets),
                        remedy="" if little else remedy(part).text,
                        rows=part,
                    )
                    for kind, part in by_unit_kind(own)
                ),
            )
        )
    return tuple(sorted(found, key=lambda share: -share.exposed_ns))


def _by_collective(told: pd.DataFrame) -> pd.DataFrame:
    """The moments of each cause and collective together."""
    times = {"exposed_ns": "sum", "start_ns": "min", "end_ns": "max"}
    rows = told.groupby([name for name in told if name not in times], dropna=False, sort=False).agg(times)
    return rows.reset_index().astype(told.dtypes.to_dict())


def _headline(window: Mapping[str, Any], shares: tuple[CauseShare, ...]) -> str:
    exposed, span = int(window["exposed_comm_ns"]), int(window["span_ns"])
    of = "step" if pd.notna(window["step"]) else "trace"
    if int(window["comm_ns"]) == 0:
        return f"The {of} has no communication."
    if not shares:
        return f"No communication is exposed in this {of}."
    first = aim(shares, span)
    share = percent(exposed, span)
    start = f"{share} of the {of} is exposed communication ({ms(exposed)} of {ms(span)})"
    where = f", in {first.what}" if first.rows["collective"].notna().any() else ""
    if len(shares) == 1:
        return f"{start}: {first.label}{where}."
    return f"{start}, {ms(first.exposed_ns)} of it {first.label}{where}{_passed_over(first, shares)}."


def _passed_over(first: CauseShare, shares: tuple[CauseShare, ...]) -> str:
    """Why the headline is not about the most expensive cause."""
    if first is shares[0]:
        return ""
    took = ms(shares[0].exposed_ns)
    if shares[0].cause is Cause.GAP:
        return f"; {took} are short pauses of the host, which communication does not cause"
    if shares[0].remedy:
        return f"; {took} {shares[0].label}, where less is to gain"
    return f"; against {took} {shares[0].label} nothing that is known gains enough"


def _advice(
    window: Mapping[str, Any],
    shares: tuple[CauseShare, ...],
    unseen: Unseen,
    bound: Mapping[str, Any] | None,
    best_buckets: pd.DataFrame | None,
    doubt_ns: int | None,
) -> tuple[str, int | None]:
    """What to do against exposed communication, and how much shorter the step would be at most."""
    if not shares:
        return "Nothing to do: no communication is exposed.", 0
    first = aim(shares, int(window["span_ns"]))
    if first.untold:
        return f"How much of it is waiting for other ranks is unknown: {unseen.waits}.", None
    others = _other_buckets(first, bound, best_buckets, window)
    gain = ""
    if first.gain_ns is not None:
        most = _at_most_words(first.gain_ns, window)
        gain = _shorter(first.gain_ns, window, doubt_ns) if first.replayed else most
    advice = f"Try {first.remedy}{gain}." if first.remedy else NOTHING_GAINS
    also = " Also try" if first.remedy else " Try"
    if (option := _also(first, shares, int(window["span_ns"]))) is not None and option.gain_ns is not None:
        advice += f"{also} {option.remedy}{_shorter(option.gain_ns, window, doubt_ns)}."
    elif others is not None:
        advice += f"{also} {others}."
    if not first.remedy:
        return advice, first.gain_ns
    if first.late_rank is not None:
        advice += started_late(unseen, first.late_rank)
    if first.cause is not Cause.UNKNOWN and first.remedy != OPEN_ALL and pd.isna(window["exposed_wait_ns"]):
        why = "open all their traces together to tell" if unseen.waits is None else unseen.waits
        advice += f" But some of it may be waiting for other ranks: {why}."
    return advice, first.gain_ns


def _also(first: CauseShare, shares: tuple[CauseShare, ...], span_ns: int) -> CauseShare | None:
    """Where the advice is to send less, the option that gains most beside it, if it is worth an effort."""
    if first.cause not in (Cause.UNHIDEABLE, Cause.LINK):
        return None
    known = [share for share in shares if share.replayed and share.cause in _BY_OPTIONS]
    best = max(known, key=lambda share: share.gain_ns or 0, default=None)
    worth = best is not None and best.remedy != first.remedy and (best.gain_ns or 0) > LITTLE_GAIN * span_ns
    return best if worth else None


def _other_buckets(
    first: CauseShare, bound: Mapping[str, Any] | None, best: pd.DataFrame | None, window: Mapping[str, Any]
) -> str | None:
    """The best buckets of all, where the advice is to send less, they gain enough, and no replay tells of caps."""
    if first.cause is not Cause.UNHIDEABLE or bound is None or best is None or best.empty:
        return None
    gained = gains_by_buckets(bound, int(window["exposed_comm_ns"]))
    if gained is None or gained <= LITTLE_GAIN * int(window["span_ns"]):
        return None
    if len(best) == 1:
        which = f"one bucket ({cap_words(ceil(int(best['bytes'].iloc[0]) / MIB))})"
    else:
        sizes = sorted(map(int, best["bytes"]))
        which = f"other buckets, best {len(best)} of {size_exact(sizes[0])} to {size_exact(sizes[-1])}"
    return which + _at_most_words(gained, window)


NOTHING_GAINS = f"Nothing that is known to help gains more than {percent(LITTLE_GAIN, 1)} of the step."
"""The advice where no remedy is worth an effort."""
_BY_OPTIONS = (Cause.TAIL, Cause.QUEUED, Cause.BLOCKING, Cause.LATE)
"""Causes whose replayed remedies are options."""


def _ahead(replays: pd.DataFrame, span_ns: int) -> tuple[int, int] | None:
    own = replays[(replays["remedy"] == "prefetch") & (replays["gain_ns"] > LITTLE_GAIN * span_ns)]
    return None if own.empty else (int(own["setting"].iloc[0]), span_ns - int(own["gain_ns"].iloc[0]))


def _paused_ns(replays: pd.DataFrame) -> int:
    """How much shorter the step would be without the host's pauses; 0 where no replay tells."""
    return max(replays.loc[replays["remedy"] == "no_pause", "gain_ns"].tolist(), default=0)


def _shorter(gain_ns: int, window: Mapping[str, Any], doubt_ns: int | None = None) -> str:
    return f". Replayed, the step is {_of_step(gain_ns, window)} shorter{uncertain(gain_ns, doubt_ns)}"


def _at_most_words(gain_ns: int, window: Mapping[str, Any]) -> str:
    return f", to gain at most {_of_step(gain_ns, window)}"


def _of_step(ns: int, window: Mapping[str, Any]) -> str:
    return f"{ms(ns)} ({percent(ns, int(window['span_ns']))} of the step)"


def aim(shares: tuple[CauseShare, ...], span_ns: int) -> CauseShare:
    """The cause that headline and advice are about: the most expensive one that has a remedy, else that without.

    Where remedies were played, it is the one whose remedy gains most, if it gains noticeably more.
    Where all traces do not tell how much of the most expensive one is waiting, that is what there is to say. Many short
    pauses of the host do not count: they come between any two operators, and would be idle time without communication.
    """
    first = _most_expensive(shares, span_ns)
    others = [share for share in shares if share.remedy and share.cause is not Cause.GAP]
    if not first.remedy and not first.untold and others:
        first = others[0]
    played = [share for share in (first, *others) if share.remedy and share.replayed and share.gain_ns is not None]
    best = max(played, key=lambda share: share.gain_ns or 0, default=first)
    more = best.gain_ns is not None and first.replayed and best.gain_ns > (first.gain_ns or 0) + LITTLE_GAIN * span_ns
    return best if more else first


def _most_expensive(shares: tuple[CauseShare, ...], span_ns: int) -> CauseShare:
    first = shares[0]
    if first.cause is not Cause.GAP or len(shares) == 1:
        return first
    if first.replayed and first.gain_ns is not None:
        return first if first.gain_ns > LITTLE_GAIN * span_ns else shares[1]
    longest = int(first.rows["exposed_ns"].iloc[0])
    return first if longest > MAJORITY * first.exposed_ns else shares[1]


_NO_REPLAYS = pd.DataFrame(columns=["rank", "step", "remedy", "cause", "setting", "what", "gain_ns", "step_ns"])


def _at_most(
    cause: Cause, gain_ns: int | None, bound: Mapping[str, Any] | None, window: Mapping[str, Any]
) -> int | None:
    """A gain that no replay tells, no larger than the bound allows."""
    by_buckets = None if bound is None else gains_by_buckets(bound, int(window["exposed_comm_ns"]))
    if gain_ns is None or by_buckets is None or cause in _BEYOND_BUCKETS:
        return gain_ns
    return min(gain_ns, by_buckets)


_BEYOND_BUCKETS = (Cause.STRAGGLER, Cause.GAP, Cause.UNHIDEABLE, Cause.LINK)
"""Causes whose remedies are other ones than buckets, so that what these gain is no limit."""


def where_chosen(table: pd.DataFrame, rank: int | None, step: int | None) -> str:
    """Why a diagnosis is about a certain rank and step, which are as `worst_step` got them."""
    ranks, steps = (table[name].nunique(dropna=False) for name in ("rank", "step"))
    the_rank = "the most exposed rank" if rank is None and ranks > 1 else ""
    the_step = "median step by exposed time" if step is None and steps > 1 else ""
    if the_rank and the_step:
        return f"{the_rank}'s {the_step}"
    if the_rank:
        return the_rank
    if the_step:
        return f"its {the_step}"
    return "as chosen" if rank is not None or step is not None else "the only one"


def exposed_lead(found: Diagnosis) -> str:
    """What was exposed in this step, and its largest causes."""
    named = [f"{ms(share.exposed_ns)} {share.label}" for share in found.causes[:MOST_CAUSES]]
    if rest := sum(share.exposed_ns for share in found.causes[MOST_CAUSES:]):
        named.append(f"{ms(rest)} for other causes")
    place = place_name(found)
    share = percent(found.exposed_ns, found.span_ns)
    of = "step" if found.step is not None else "trace"
    causes = f": {', '.join(named)}" if named else ""
    return f"{place[0].upper()}{place[1:]}: {ms(found.exposed_ns)} exposed, {share} of the {of}{causes}."


def what_to_do(found: Diagnosis) -> str:
    """The advice, with the rank and step that it is about."""
    place = place_name(found)
    return f"{place[0].upper()}{place[1:]}: {found.advice}"


def why_and_what_to_do(found: Diagnosis) -> tuple[str, str]:
    """The cause, with the rank and step that it is about, and the advice: the end of a page about something else."""
    place = place_name(found)
    return f"{place[0].upper()}{place[1:]}: {found.headline}", found.advice


def place_name(diagnosis: Diagnosis) -> str:
    """Rank and step with why: `rank 0, step 4 (the most exposed rank's median step by exposed time)`."""
    step = "" if diagnosis.step is None else f", step {diagnosis.step}"
    return f"rank {rank_word(diagnosis.rank)}{step} ({diagnosis.chosen})"


def _number(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)
