"""One rank's step: what was exposed, why, and what to do. Every screen's verdict, causes and advice come from here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from overlaplab.analyses.worst import outlier_steps, rows_of, without_steps
from overlaplab.causes import Cause
from overlaplab.evidence.arrays import int_or_none
from overlaplab.findings.actions.ranked import (
    Advised,
    explain_actions,
    listed_actions,
    predicted_words,
    ranked_actions,
    short_words,
)
from overlaplab.findings.actions.table import ACTIONS
from overlaplab.findings.actions.words import (
    OPEN_ALL,
    Case,
    cause_clause,
    cause_words,
    in_general,
    is_undivided,
    moved_most,
)
from overlaplab.findings.diagnosis.bound import told_causes
from overlaplab.findings.diagnosis.causes import what_moved
from overlaplab.findings.diagnosis.other_problems import (
    LEAVE_CORES,
    other_problem,
    other_problem_advice,
    waits_for_cores,
    why_idle,
)
from overlaplab.findings.diagnosis.step_kinds import kind_name, kinds_finding, steps_of_kind
from overlaplab.findings.diagnosis.unseen import OTHER_RANKS, Unseen, as_recorded, started_late
from overlaplab.findings.loops import UNKNOWN_LOOP, Loop
from overlaplab.findings.thresholds import LITTLE_GAIN, MAJORITY, MOST_CAUSES, SECOND_CAUSE, SHORT_PAUSE_NS
from overlaplab.words import capitalise, ms, numbers_named, percent, rank_word, sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseShare:
    """The exposed time of one cause, and where it is waiting of one late rank, in one step of one rank.

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
    """How much shorter a step of a training would be by that; None where unknown."""
    replayed: bool
    """Whether a play tells the gain."""
    overhead: bool = False
    """Whether it is compute gaps between any two operators."""
    untold: bool = False
    """Whether how much of it is waiting cannot be told, although all traces are here."""

    @property
    def exposed_ns(self) -> int:
        """How much was exposed."""
        return int(self.rows["exposed_ns"].sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is said of one rank's step."""

    rank: int | None
    step: int | None
    chosen: str
    """Why this one: `the most exposed rank, its median step by exposed time`."""
    start_ns: int
    """From the run's start, as in `overlaplab.summary`."""
    span_ns: int
    comm_ns: int
    hidden_ns: int
    exposed_ns: int
    idle_ns: int
    headline: str
    """What the problem is, and how large; before that, if so, that the machine was busy in the step."""
    is_problem: bool
    """Whether communication is the step's problem."""
    causes: tuple[CauseShare, ...]
    """The most expensive first; they add up to `exposed_ns`."""
    moments: pd.DataFrame
    """The same moment by moment: rows of `overlaplab.exposed`, and whether each is `overhead`, see `CauseShare`."""
    advice: str
    """`Try …`, or why there is nothing to do."""
    gain_ns: int | None
    """How much shorter a step of a training would be by the advice; None where unknown."""
    actions: tuple[Advised, ...]
    """What would help, the most valuable first; it is the same of all ranks and steps."""
    bound: Mapping[str, Any] | None
    """The row of `simulate.bound`."""
    ahead: tuple[int, int] | None
    """A prefetch depth whose replay makes the step shorter, and how long the step then takes in ns."""
    late_rank: int | None
    """The rank that this one waited for longest; None where it waited for none, or that is unknown."""
    waited_ns: int
    """For how long it waited for that rank, with its communication exposed."""
    outliers: str | None
    """A sentence on the steps that are unlike the others."""
    kinds: str | None
    """A sentence on the kinds of steps that there are."""
    late_reason: str | None = None
    """Where ranks wait for one: a sentence on how often it is late, and what it does for longer."""
    blocks_nothing: str | None = None
    """How much exposed communication no kernel waited for, as a sentence; None where hardly any, or unknown."""

    @property
    def listed_actions(self) -> Sequence[Advised]:
        """What a first screen lists of the actions: nothing where the machine's load is what was recorded."""
        return () if self.advice == LEAVE_CORES else listed_actions(self.actions)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is said after the advice."""
        late_reason = self.late_reason if self._is_about_late_rank else None
        return tuple(filter(None, (late_reason, self.blocks_nothing, self.kinds, self.outliers)))

    @property
    def _is_about_late_rank(self) -> bool:
        """Whether the rank that is late in the run is what the first action, or the largest cause, is about."""
        if self.actions and Cause.STRAGGLER in self.actions[0].action.causes:
            return True
        named = f"Rank {self.causes[0].late_rank} " if self.causes else ""
        return bool(named) and (self.late_reason or "").startswith(named)


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
    gains: pd.DataFrame | None = None,
    actions: tuple[Advised, ...] | None = None,
    ahead: tuple[int, int] | None = None,
    late_reason: str | None = None,
    busy: float | None = None,
    blocking: pd.DataFrame | None = None,
) -> Diagnosis:
    """The diagnosis of `window`, a row of `overlaplab.summary`.

    Takes `table`, the rows of `overlaplab.summary` among which the window was `chosen`; rows of `overlaplab.exposed`,
    or of `analyses.exposed_moments`, which tell more exactly when, and of `analyses.idle`; what the traces do not show;
    the window's row of `simulate.bound`; what the training loop can change; and rows of `overlaplab.buckets`. Tables
    may be about other windows, too. `gains`: rows of `simulate.gains`. `actions`: those of the diagnosis that speaks
    for the run, where this is another one. `ahead`, `late_reason`: see `Diagnosis`. `busy`: which part of the step
    computation waited for a core, of a step in which the machine was busy: that is said first, and nothing is advised
    on what seems to be computation or a slow host. `blocking`: rows of `overlaplab.blocking`.
    """
    idled = rows_of(idle, window)
    rows = rows_of(causes, window)
    lacks_cores = waits_for_cores(idled)
    lead = "" if busy is None or lacks_cores else _busy_lead(busy)
    of_window = {"rank": window["rank"], "step": window["step"]}
    moments = told_causes(rows, pd.DataFrame([] if bound is None else [{**bound, **of_window}]))
    moments["overhead"] = (moments["cause"] == Cause.GAP) & (moments["exposed_ns"] < SHORT_PAUSE_NS)
    cause_rows = _sum_by_collective(moments)
    if actions is None:
        if gains is not None and (lead or lacks_cores):
            gains = gains[~gains["remedy"].isin(_OF_A_BUSY_MACHINE)]
        actions = () if gains is None else ranked_actions(gains, cause_rows, loop, int(window["idle_ns"]))
    else:
        actions = explain_actions(actions, cause_rows, int(window["idle_ns"]))
    shares = _shares(cause_rows, bound, window, loop, buckets, actions, gains, unseen)
    waits = [share for share in shares if share.late_rank is not None]
    alone = pd.DataFrame([dict(window)])
    other = other_problem(alone, rows, idled, loop.host)
    best = next((action for action in actions if action.is_worth_it), None)
    if lead and other is not None:
        other, advice, gain_ns = "This step's timings are unreliable.", LEAVE_CORES, None
    elif other is None:
        advice, gain_ns = _advice(window, shares, best, unseen)
        if lead and shares and not (best is not None and best.is_certain) and not _is_open(_largest(shares), best):
            advice, gain_ns = LEAVE_CORES, None
    elif best is not None and not lacks_cores:
        other += _cause_of_advice(shares, best)
        advice, gain_ns = predicted_words(best), best.gain_ns
    else:
        advice, gain_ns = other_problem_advice(alone, idled, loop.host), None
    if gain_ns:
        advice += as_recorded(unseen)
    return Diagnosis(
        rank=int_or_none(window["rank"]),
        step=int_or_none(window["step"]),
        chosen=chosen,
        start_ns=int(window["start_ns"]),
        span_ns=int(window["span_ns"]),
        comm_ns=int(window["comm_ns"]),
        hidden_ns=int(window["overlapped_ns"]),
        exposed_ns=int(window["exposed_comm_ns"]),
        idle_ns=int(window["idle_ns"]),
        headline=lead + (other or _headline(window, shares, best, why_idle(idled, loop.host))),
        is_problem=other is None and bool(shares),
        causes=shares,
        moments=moments,
        advice=advice,
        gain_ns=gain_ns,
        actions=actions,
        bound=bound,
        ahead=ahead,
        late_rank=waits[0].late_rank if waits else None,
        waited_ns=waits[0].exposed_ns if waits else 0,
        outliers=outliers_finding(table),
        kinds=kinds_finding(table),
        late_reason=None if other is not None and advice == LEAVE_CORES else late_reason,
        blocks_nothing=None if blocking is None else _blocks_nothing(rows_of(blocking, window), int(window["span_ns"])),
    )


def _blocks_nothing(rows: pd.DataFrame, span_ns: int) -> str | None:
    took = int(rows["not_blocking_ns"].sum())
    if took <= LITTLE_GAIN * span_ns:
        return None
    return f"{ms(took)} of the exposed communication blocked nothing: no kernel waited for it."


def _busy_lead(share: float) -> str:
    waited = f" {percent(share, 1)} of the time" if share else ""
    return f"The machine was busy in this step: computation waited for a core{waited}. "


def outliers_finding(table: pd.DataFrame) -> str | None:
    """Name the steps in rows of `overlaplab.summary` that are unlike the others, and by what; None where none is.

    That the last step is shorter says nothing of the training: what would have followed it was not recorded.
    """
    steps = outlier_steps(table)
    if not steps:
        return None
    differing, others = table[table["step"].isin(steps)], without_steps(steps_of_kind(table, steps[0]), steps)
    others = others if len(others) else without_steps(table, steps)
    figures = [(differing, "exposed_comm_ns"), (others, "exposed_comm_ns"), (differing, "span_ns"), (others, "span_ns")]
    exposed, usual, span, usual_span = (int(rows.groupby("step")[name].max().median()) for rows, name in figures)
    named = f"Step {steps[0]} differs" if len(steps) == 1 else f"Steps {numbers_named(steps, last=' and ')} differ"
    if abs(exposed - usual) * 2 >= abs(span - usual_span):
        return f"{named}: {ms(exposed)} exposed, against {ms(usual)} in the others."
    if steps == (table["step"].max(),) and span < usual_span:
        return None
    return f"{named}: {ms(span)} long, against {ms(usual_span)}."


def _shares(
    cause_rows: pd.DataFrame,
    bound: Mapping[str, Any] | None,
    window: Mapping[str, Any],
    loop: Loop,
    buckets: pd.DataFrame | None,
    actions: Sequence[Advised],
    gains: pd.DataFrame | None,
    unseen: Unseen,
) -> tuple[CauseShare, ...]:
    """Rows of `told_causes` by cause and late rank, and whether they are `overhead`."""
    shares = []
    named = bool(cause_rows["what"].notna().any())
    bytes_explain = bound is None or bool(bound["bytes_explain"])
    for (cause, late, short), rows in cause_rows.groupby(["cause", "late_rank", "overhead"], dropna=False, sort=False):
        rows = rows.drop(columns="overhead").sort_values("exposed_ns", ascending=False, kind="stable")
        name, rank, overhead = Cause(str(cause)), int_or_none(late), bool(short)
        label = cause_words(name, rank, overhead=overhead)
        tried = _played_actions(gains, rank)
        case = Case(loop=loop, rows=rows, cause=name, late_rank=rank, tried=tried)
        action = _answer(actions, case, unseen, overhead=overhead, named=named)
        played = action is not None or (not unseen.ranks_missing and not _is_of_layers(case) and _is_played(case))
        much = int(rows["exposed_ns"].sum()) > LITTLE_GAIN * int(window["span_ns"])
        unexplained = name is Cause.UNKNOWN or (name is Cause.LINK and not bytes_explain)
        untold = not played and unseen.waits is not None and unexplained
        remedy = None
        if action is not None and name in _BEYOND_PLAYS and not action.is_worth_it:
            action = None
        if action is not None:
            remedy = action.text if action.is_worth_it else ""
        elif untold or overhead or not much or (played and name not in _BEYOND_PLAYS):
            remedy = ""
        elif name is Cause.LINK and not bytes_explain:
            remedy = OPEN_ALL
        shares.append(
            CauseShare(
                cause=name,
                label=label,
                what=what_moved(name, rows, buckets),
                remedy=in_general(case) if remedy is None else remedy,
                rows=rows,
                late_rank=rank,
                gain_ns=None if action is None else action.gain_ns,
                replayed=played,
                overhead=overhead,
                untold=untold and much,
            )
        )
    return tuple(sorted(shares, key=lambda share: -share.exposed_ns))


_OF_A_BUSY_MACHINE = ("no_pause", "launch_overhead")
"""Actions against what the load of a busy machine looks like."""
_BEYOND_PLAYS = (Cause.BUBBLE, Cause.IMBALANCE)
"""Causes against which something is left to try that is not played."""


def _played_actions(gains: pd.DataFrame | None, late_rank: int | None) -> frozenset[str]:
    """The actions that were played, without the balance of another rank than the late one."""
    if gains is None:
        return frozenset()
    other = (gains["remedy"] == "balance") & (gains["setting"] != late_rank) & (late_rank is not None)
    return frozenset(gains.loc[~other, "remedy"])


def _is_played(case: Case) -> bool:
    """Whether an action that answers this cause was played; what dividing a model of one unit gains cannot be."""
    answers = any(action.name in case.tried and case.cause in action.causes for action in ACTIONS)
    return answers and not is_undivided(case.loop, case.cause)


def _is_of_layers(case: Case) -> bool:
    """Whether it is for activations of layers: what fewer ranks per layer gain cannot be played."""
    return case.cause not in (Cause.STRAGGLER, Cause.GAP) and moved_most(case.rows) == "activations"


def _answer(actions: Sequence[Advised], case: Case, unseen: Unseen, *, overhead: bool, named: bool) -> Advised | None:
    """The first action that answers a cause, if it may be advised; of waits for a late rank none about another rank."""
    if case.cause is None or is_undivided(case.loop, case.cause):
        return None
    for each in actions:
        other = each.action.name == "balance" and case.late_rank is not None and each.setting != case.late_rank
        if each.action.answers(case.cause, case.rows, overhead=overhead, named=named) and not other:
            worth = not unseen.ranks_missing or each.is_worth_it  # else what changes T, not tried then, may gain more
            return each if worth and (each.is_certain or not _is_of_layers(case)) else None
    return None


def _sum_by_collective(cause_rows: pd.DataFrame) -> pd.DataFrame:
    """The moments of each cause and collective together."""
    times = {"exposed_ns": "sum", "start_ns": "min", "end_ns": "max"}
    rows = cause_rows.groupby([name for name in cause_rows if name not in times], dropna=False, sort=False).agg(times)
    return rows.reset_index().astype(cause_rows.dtypes.to_dict())


def _headline(window: Mapping[str, Any], shares: tuple[CauseShare, ...], best: Advised | None, why_idle: str) -> str:
    exposed, span = int(window["exposed_comm_ns"]), int(window["span_ns"])
    of = "step" if pd.notna(window["step"]) else "trace"
    if int(window["comm_ns"]) == 0:
        return f"The {of} has no communication."
    if not shares:
        return f"No communication is exposed in this {of}."
    first, idle_ns = _main_cause(shares, best), int(window["idle_ns"])
    share = percent(exposed, span)
    start = f"{share} of the {of} is exposed communication ({ms(exposed)} of {ms(span)})"
    if best is not None and best.action.fills_idle_time and not _is_open(first, best):
        answered_ns = sum(share.exposed_ns for share in _answered_shares(shares, best))
        idle = f"{percent(idle_ns, span)} of the {of} is idle{why_idle}"
        if idle_ns > max(answered_ns, shares[0].exposed_ns):
            return f"{sentence(idle)} {start}."
        if idle_ns > answered_ns:
            return f"{start}. {_cause_sentence(shares[0], ms(shares[0].exposed_ns))} {sentence(idle)}"
    if len(shares) == 1:
        return f"{start}. {_cause_sentence(first, 'any' if first.cause is Cause.UNHIDEABLE else 'all')}"
    about_first = f"{start}. {_cause_sentence(first, ms(first.exposed_ns))}"
    second = next((share for share in shares if share is not first and not _is_of_short_pauses(share)), first)
    if first is shares[0] and second is not first and second.exposed_ns >= SECOND_CAUSE * span:
        took = ms(second.exposed_ns)
        further = sentence(_clause(second, took)) if second.what == first.what else _cause_sentence(second, took)
        return f"{about_first} {further}"
    return f"{about_first} {_passed_over(first, shares, best)}".rstrip()


def _cause_sentence(share: CauseShare, time: str) -> str:
    """`For 2.0 ms of it, the rank waited for rank 3 (bucket 1).`"""
    where = f" ({share.what})" if share.rows["collective"].notna().any() else ""
    return sentence(f"{_clause(share, time)}{where}")


def _cause_of_advice(shares: tuple[CauseShare, ...], best: Advised) -> str:
    """What the recommended action is against, where the headline is about something else; empty for no cause."""
    answered = _answered_shares(shares, best)
    balanced = best.setting if best.action.name == "balance" else None
    first = next((each for each in answered if None in (each.late_rank, balanced) or each.late_rank == balanced), None)
    if first is None:
        return ""
    return " " + _cause_sentence(first, ms(first.exposed_ns)).replace(" of it", " of exposed communication", 1)


def _clause(share: CauseShare, time: str) -> str:
    return cause_clause(share.cause, time, share.late_rank, overhead=share.overhead)


def _main_cause(shares: tuple[CauseShare, ...], best: Advised | None) -> CauseShare:
    """The cause that the headline is about: the largest one that the recommended action answers, else the largest."""
    first = _largest(shares)
    if best is None or _is_open(first, best):
        return first
    return next(_answered_shares(shares, best), first)


def _answered_shares(shares: Sequence[CauseShare], best: Advised) -> Iterator[CauseShare]:
    """The causes that an action answers."""
    named = any(share.rows["what"].notna().any() for share in shares)
    return (
        share for share in shares if best.action.answers(share.cause, share.rows, overhead=share.overhead, named=named)
    )


def _largest(shares: tuple[CauseShare, ...]) -> CauseShare:
    """Many short pauses do not count: they come between any two operators, and would be idle time without
    communication.
    """
    return next((share for share in shares if not _is_of_short_pauses(share)), shares[0])


def _is_of_short_pauses(share: CauseShare) -> bool:
    longest = int(share.rows["exposed_ns"].iloc[0])
    return share.overhead or (share.cause is Cause.GAP and longest <= MAJORITY * share.exposed_ns)


def _is_open(share: CauseShare, best: Advised | None) -> bool:
    """Whether no play answers a cause that costs more than the best action gains."""
    return not share.replayed and bool(share.remedy) and share.exposed_ns > (0 if best is None else best.gain_ns)


def _passed_over(first: CauseShare, shares: tuple[CauseShare, ...], best: Advised | None) -> str:
    """Why the headline is not about the most expensive cause."""
    if first is shares[0]:
        return ""
    took = ms(shares[0].exposed_ns)
    clause = _clause(shares[0], took)
    if shares[0].cause is Cause.GAP:
        pauses = shares[0].label if shares[0].overhead else "many short pauses of the host"
        return f"Another {took} of it passed in {pauses}, which communication did not cause."
    gain_ns = shares[0].gain_ns
    if gain_ns is not None and best is not None and gain_ns > best.gain_ns:
        return sentence(f"{clause}; {short_words(shares[0].remedy)} would gain {ms(gain_ns)}")
    why = "what shortens that gains less" if shares[0].remedy else "no change that can be predicted gains enough"
    return sentence(f"{clause}; {why}")


def _advice(
    window: Mapping[str, Any], shares: tuple[CauseShare, ...], best: Advised | None, unseen: Unseen
) -> tuple[str, int | None]:
    """What to do against exposed communication, and how much shorter a step would be."""
    if not shares:
        nothing = "Nothing to do: no communication is exposed."
        return (nothing, 0) if best is None else (predicted_words(best), best.gain_ns)
    first = _largest(shares)
    if first.untold and best is None:
        return f"How much of it is waiting for other ranks is unknown: {unseen.waits}.", None
    late = "" if first.late_rank is None else started_late(unseen, first.late_rank)
    if _is_open(first, best):
        took = f"{ms(first.exposed_ns)} ({percent(first.exposed_ns, int(window['span_ns']))} of the step)"
        advice = f"Try {first.remedy}. The cause: {first.label}, {took}. {_UNKNOWN_GAIN}"
        if best is not None:
            advice += f" {predicted_words(best, beside=True)}"
        if first.cause is not Cause.UNKNOWN and first.remedy != OPEN_ALL and pd.isna(window["exposed_wait_ns"]):
            why = "open all their traces together to tell" if unseen.waits is None else unseen.waits
            advice += f" But some of it may be waiting for other ranks: {why}."
        return " ".join(filter(None, (late, advice))), None
    if best is None:
        left = f" Left to try: {short_words(first.remedy)}." if first.cause in _BEYOND_PLAYS and first.remedy else ""
        return f"{NOTHING_GAINS}{left}", None
    return " ".join(filter(None, (late, predicted_words(best)))), best.gain_ns


_UNKNOWN_GAIN = "Its gain cannot be predicted from this recording."
NOTHING_GAINS = f"No change that can be predicted gains more than {percent(LITTLE_GAIN, 1)} of the step."
"""The advice where no action is worth an effort."""


def gathered_ahead(replays: pd.DataFrame, span_ns: int) -> tuple[int, int] | None:
    """A prefetch depth whose play makes a step noticeably shorter, and how long it then takes in ns.

    Takes the rows of `simulate.remedies` of a rank and step.
    """
    deeper = replays[(replays["remedy"] == "prefetch") & (replays["gain_ns"] > LITTLE_GAIN * span_ns)]
    return None if deeper.empty else (int(deeper["setting"].iloc[0]), span_ns - int(deeper["gain_ns"].iloc[0]))


def where_chosen(table: pd.DataFrame, rank: int | None, step: int | None, chosen_step: int | None = None) -> str:
    """Why a diagnosis is about a certain rank and step, which are as `worst_step` got them; `chosen_step`: it chose."""
    ranks = table["rank"].nunique(dropna=False)
    kind = kind_name(table, chosen_step) if step is None else ""
    steps = steps_of_kind(table, chosen_step)["step"].nunique(dropna=False)
    the_rank = "the most exposed rank" if rank is None and ranks > 1 else ""
    the_step = "median step by exposed time" if step is None and steps > 1 else ""
    the_step += f" among {kind}" if the_step and kind else ""
    chosen = ", ".join(filter(None, (the_rank, the_step and f"its {the_step}")))
    return chosen or ("as chosen" if rank is not None or step is not None else "the only one")


def exposed_lead(diagnosis: Diagnosis) -> str:
    """What was exposed in this step, and its largest causes."""
    named = [f"{share.label} {ms(share.exposed_ns)}" for share in diagnosis.causes[:MOST_CAUSES]]
    if rest_ns := sum(share.exposed_ns for share in diagnosis.causes[MOST_CAUSES:]):
        named.append(f"other causes {ms(rest_ns)}")
    share = percent(diagnosis.exposed_ns, diagnosis.span_ns)
    of = "step" if diagnosis.step is not None else "trace"
    causes = f" Causes: {', '.join(named)}." if named else ""
    return f"{_capital_place(diagnosis)}: {ms(diagnosis.exposed_ns)} exposed, {share} of the {of}.{causes}"


def what_to_do(diagnosis: Diagnosis) -> str:
    """The advice, with the rank and step that it is about."""
    return f"{_capital_place(diagnosis)}: {diagnosis.advice}"


def why_and_what_to_do(diagnosis: Diagnosis) -> tuple[str, str]:
    """The cause, with the rank and step that it is about, and the advice: the end of a page about something else."""
    return f"{_capital_place(diagnosis)}: {diagnosis.headline}", diagnosis.advice


def _capital_place(diagnosis: Diagnosis) -> str:
    return capitalise(place_name(diagnosis))


def place_name(diagnosis: Diagnosis) -> str:
    """Rank and step with why: `rank 0, step 4 (the most exposed rank, its median step by exposed time)`."""
    step = "" if diagnosis.step is None else f", step {diagnosis.step}"
    return f"rank {rank_word(diagnosis.rank)}{step} ({diagnosis.chosen})"
