"""One rank's step: what was exposed, why, and what to do. Every screen's verdict, causes and advice come from here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from msgspec import Struct

from overlaplab.analyses.worst import drop_damaged, outlier_steps, rows_of, without_outliers, without_steps
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
from overlaplab.findings.actions.words import OPEN_ALL
from overlaplab.findings.diagnosis.bound import DeeperPrefetch, gains_by_buckets, split_unhideable
from overlaplab.findings.diagnosis.causes import rank_and_step
from overlaplab.findings.diagnosis.headline import cause_of_advice, find_headline
from overlaplab.findings.diagnosis.other_problems import (
    LEAVE_CORES,
    other_problem,
    other_problem_advice,
    waits_for_cores,
    why_idle,
)
from overlaplab.findings.diagnosis.shares import (
    HAVE_UNPLAYED_REMEDIES,
    CauseShare,
    cause_shares,
    is_unanswered,
    largest_share,
)
from overlaplab.findings.diagnosis.step_kinds import kind_name, steps_of_kind
from overlaplab.findings.diagnosis.unseen import OTHER_RANKS, Unseen, late_start_words, play_caveats
from overlaplab.findings.loops import UNKNOWN_LOOP, Loop
from overlaplab.findings.thresholds import LITTLE_GAIN, MAJORITY, MOST_CAUSES, SHORT_PAUSE_NS
from overlaplab.findings.windows import window_word
from overlaplab.words import capitalise, ms, numbers_named, percent


class Diagnosis(Struct, frozen=True, kw_only=True):
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
    """What the problem is, and how large; first of all, that the machine was busy in the step, if it was."""
    is_problem: bool
    """Whether communication is the step's problem."""
    causes: tuple[CauseShare, ...]
    """The most expensive first; they add up to `exposed_ns`."""
    moments: pd.DataFrame
    """The exposed time moment by moment: rows of `split_unhideable`, with `overhead` as in `CauseShare`."""
    advice: str
    """`Try …`, or why there is nothing to do."""
    gain_ns: int | None
    """How much shorter a step of a training would be by the advice; None where unknown."""
    actions: tuple[Advised, ...]
    """What would help, the most valuable first; it is the same of all ranks and steps."""
    bound: Mapping[str, Any] | None
    """The row of `simulate.bound`."""
    ahead: DeeperPrefetch | None
    """A prefetch depth whose replay makes the step shorter."""
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
    def paused_ns(self) -> int:
        """How much of the exposed time the host paused: communication did not cause it, and hiding it gains nothing."""
        return sum(share.exposed_ns for share in self.causes if share.cause is Cause.GAP)

    @property
    def bucket_gain_ns(self) -> int | None:
        """How much shorter other buckets make, or could make, the step, whose pauses stay; None where unknown."""
        return None if self.bound is None else gains_by_buckets(self.bound, self.exposed_ns - self.paused_ns)

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
    ahead: DeeperPrefetch | None = None,
    late_reason: str | None = None,
    kinds: str | None = None,
    busy: float | None = None,
    blocking: pd.DataFrame | None = None,
) -> Diagnosis:
    """The diagnosis of `window`, a row of `overlaplab.summary`.

    Takes `table`, the rows of `overlaplab.summary` among which the window was `chosen`; rows of `overlaplab.exposed`,
    or of `analyses.exposed_moments`, which tell more exactly when, and of `analyses.idle`; what the traces do not show;
    the window's row of `simulate.bound`; what the training loop can change; and rows of `overlaplab.buckets`. Tables
    may be about other windows, too. `gains`: rows of `simulate.gains`. `actions`: those of the diagnosis that speaks
    for the run, where this is another one. `ahead`, `late_reason`, `kinds`: see `Diagnosis`. `busy`: the share of the
    step that computation waited for a core, None where the machine was not busy; the headline says so first, and no
    action against a slow host is advised. Above half, only a quiet machine is advised. `blocking`: rows of
    `overlaplab.blocking`.
    """
    idle_rows = rows_of(idle, window)
    exposed_rows = rows_of(causes, window)
    lacks_cores = waits_for_cores(idle_rows)
    lead = "" if busy is None or lacks_cores else _busy_lead(busy)
    is_too_busy = lead != "" and (busy or 0) > MAJORITY
    if is_too_busy:
        gains, actions = None, ()
    of_window = {"rank": window["rank"], "step": window["step"]}
    moments = split_unhideable(exposed_rows, pd.DataFrame([] if bound is None else [{**bound, **of_window}]))
    moments["overhead"] = (moments["cause"] == Cause.GAP) & (moments["exposed_ns"] < SHORT_PAUSE_NS)
    cause_rows = _sum_by_collective(moments)
    if actions is None:
        if gains is not None and (lead or lacks_cores):
            gains = gains[~gains["remedy"].isin(_AGAINST_A_SLOW_HOST)]
        actions = (
            ()
            if gains is None
            else ranked_actions(gains, cause_rows, loop, int(window["idle_ns"]), window_word(window["step"]))
        )
    else:
        actions = explain_actions(actions, cause_rows, int(window["idle_ns"]))
    shares = cause_shares(cause_rows, bound, window, loop, buckets, actions, gains, unseen)
    waits = [share for share in shares if share.late_rank is not None]
    window_table = pd.DataFrame([dict(window)])
    other = other_problem(window_table, exposed_rows, idle_rows, loop.host)
    best = next((action for action in actions if action.is_worth_it), None)
    if lead and other is not None:
        other, advice, gain_ns = "This step's timings are unreliable.", LEAVE_CORES, None
    elif other is None:
        advice, gain_ns = _advice(window, shares, best, unseen)
        is_sure = best is not None and best.is_certain
        if is_too_busy or (lead and shares and not is_sure and not is_unanswered(largest_share(shares), best)):
            advice, gain_ns = LEAVE_CORES, None
    elif best is not None and not lacks_cores:
        other += cause_of_advice(shares, best)
        advice, gain_ns = predicted_words(best), best.gain_ns
    else:
        advice, gain_ns = other_problem_advice(window_table, idle_rows, loop.host), None
    if gain_ns:
        advice += play_caveats(unseen)
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
        headline=lead + (other or find_headline(window, shares, best, why_idle(idle_rows, loop.host))),
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
        kinds=kinds,
        late_reason=None if other is not None and advice == LEAVE_CORES else late_reason,
        blocks_nothing=None if blocking is None else _blocks_nothing(rows_of(blocking, window), int(window["span_ns"])),
    )


_AGAINST_A_SLOW_HOST = ("no_pause", "launch_overhead")
"""Actions against a slow host, which is what a busy machine looks like."""


def _sum_by_collective(cause_rows: pd.DataFrame) -> pd.DataFrame:
    """The moments of each cause and collective as one row: their summed time, from the first start to the last end."""
    times = {"exposed_ns": "sum", "start_ns": "min", "end_ns": "max"}
    rows = cause_rows.groupby([name for name in cause_rows if name not in times], dropna=False, sort=False).agg(times)
    return rows.reset_index().astype(cause_rows.dtypes.to_dict())


def _blocks_nothing(rows: pd.DataFrame, span_ns: int) -> str | None:
    not_blocking_ns = int(rows["not_blocking_ns"].sum())
    if not_blocking_ns <= LITTLE_GAIN * span_ns:
        return None
    return f"{ms(not_blocking_ns)} of the exposed communication blocked nothing: no kernel waited for it."


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
        on = " on the most exposed rank" if table["rank"].nunique(dropna=False) > 1 else ""
        return f"{named}: {ms(exposed)} exposed{on}, against {ms(usual)} in the others."
    if steps == (table["step"].max(),) and span < usual_span:
        return None
    return f"{named}: {ms(span)} long, against {ms(usual_span)}."


def _advice(
    window: Mapping[str, Any], shares: tuple[CauseShare, ...], best: Advised | None, unseen: Unseen
) -> tuple[str, int | None]:
    """What to do against exposed communication, and how much shorter a step would be."""
    if not shares:
        nothing = "Nothing to do: no communication is exposed."
        return (nothing, 0) if best is None else (predicted_words(best), best.gain_ns)
    first = largest_share(shares)
    if first.is_wait_unknown and best is None:
        return f"How much of it is waiting for other ranks is unknown: {unseen.waits}.", None
    late = "" if first.late_rank is None else late_start_words(unseen, first.late_rank, first.exposed_ns)
    if is_unanswered(first, best):
        share = percent(first.exposed_ns, int(window["span_ns"]))
        took = f"{ms(first.exposed_ns)} ({share} of the {window_word(window['step'])})"
        advice = f"Try {first.remedy}. The cause: {first.label}, {took}. {_UNKNOWN_GAIN}"
        if best is not None:
            advice += f" {predicted_words(best, beside=True)}"
        if first.cause is not Cause.UNKNOWN and first.remedy != OPEN_ALL and pd.isna(window["exposed_wait_ns"]):
            why = "open all their traces together to tell" if unseen.waits is None else unseen.waits
            advice += f" Part of that time may be waiting for other ranks: {why}."
        return " ".join(filter(None, (late, advice))), None
    if best is None:
        left = (
            f" Left to try: {short_words(first.remedy)}."
            if first.cause in HAVE_UNPLAYED_REMEDIES and first.remedy
            else ""
        )
        return f"{nothing_gains(window_word(window['step']))}{left}", None
    return " ".join(filter(None, (late, predicted_words(best)))), best.gain_ns


_UNKNOWN_GAIN = "Its gain is not predicted here."


def nothing_gains(window: str) -> str:
    """The advice where no action is worth an effort; `window`: see `window_word`."""
    return f"Nothing that was tried gains more than {percent(LITTLE_GAIN, 1)} of the {window}."


def deeper_prefetch(replays: pd.DataFrame, span_ns: int) -> DeeperPrefetch | None:
    """A prefetch depth whose play makes a step noticeably shorter.

    Takes the rows of `simulate.remedies` of a rank and step.
    """
    deeper = replays[(replays["remedy"] == "prefetch") & (replays["gain_ns"] > LITTLE_GAIN * span_ns)]
    if deeper.empty:
        return None
    return DeeperPrefetch(int(deeper["setting"].iloc[0]), span_ns - int(deeper["gain_ns"].iloc[0]))


def why_chosen(
    table: pd.DataFrame,
    rank: int | None,
    step: int | None,
    chosen_rank: int | None = None,
    chosen_step: int | None = None,
) -> str:
    """Why a diagnosis is about its window: `rank` and `step` as asked for, None for any; the others: which it is."""
    ranks = table["rank"].nunique(dropna=False)
    kind = kind_name(table, chosen_step) if step is None else ""

    def count_steps(rows: pd.DataFrame) -> int:
        of_rank = rows if chosen_rank is None else rows_of(rows, {"rank": chosen_rank})
        return int(steps_of_kind(of_rank, chosen_step)["step"].nunique(dropna=False))

    able = without_outliers(drop_damaged(table if rank is None else rows_of(table, {"rank": rank})))
    recorded_steps = count_steps(table)
    steps = count_steps(able) if chosen_step in set(able["step"]) else recorded_steps
    the_rank = "the most exposed rank" if rank is None and ranks > 1 else ""
    the_step = ""
    if step is None and steps > 1:
        the_step = "its median step by exposed time" if steps > 2 else "the more exposed of its two steps"
    elif step is None and recorded_steps > 1:
        the_step = "its only whole step"
    the_step += f" among its kind, {kind}" if kind and the_step else ""
    chosen = ", ".join(filter(None, (the_rank, the_step)))
    return chosen or ("as chosen" if rank is not None or step is not None else "the only one")


def exposed_lead(diagnosis: Diagnosis) -> str:
    """What was exposed in this step, and its largest causes."""
    named = [f"{share.label} {ms(share.exposed_ns)}" for share in diagnosis.causes[:MOST_CAUSES]]
    if rest_ns := sum(share.exposed_ns for share in diagnosis.causes[MOST_CAUSES:]):
        named.append(f"other causes {ms(rest_ns)}")
    share = percent(diagnosis.exposed_ns, diagnosis.span_ns)
    of = window_word(diagnosis.step)
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
    return f"{rank_and_step({'rank': diagnosis.rank, 'step': diagnosis.step})} ({diagnosis.chosen})"
