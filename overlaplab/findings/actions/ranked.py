"""The actions that were played, the most valuable first, and the sentence that recommends one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pandas as pd
from msgspec import Struct
from msgspec.structs import replace

from overlaplab.causes import Cause
from overlaplab.evidence.arrays import int_or_none
from overlaplab.findings.actions.table import ACTIONS, Action
from overlaplab.findings.actions.words import Case, cause_words, fill_words
from overlaplab.findings.loops import Loop
from overlaplab.findings.thresholds import LITTLE_GAIN, MAJORITY, MOST_ACTIONS
from overlaplab.words import doubt_clause, ms, percent, size_exact

Row: TypeAlias = Mapping[Any, Any]
_COST_WEIGHT = 0.5
"""Weight, in the order, of a gain that costs more than a changed line or option."""
_MAX_GAIN_RATIO = 2
"""A gain above so many times what the step that speaks for the run could gain comes from another, slow step."""
_LIMIT_WEIGHT = 0.5
"""Weight of a gain that is a limit: on an H100 launches took twice as long while they were recorded
(docs/predictions.md)."""


class Advised(Struct, frozen=True, kw_only=True):
    """An action in this run; times in ns, per step of a training (see `simulate.undisturbed.mean_step_ns`)."""

    action: Action
    text: str
    """In a few words that fit `Try …`."""
    setting: float | None
    """Its value (a cap, units ahead, a rank), see `simulate.remedies`; None where it takes none."""
    what: str | None
    """The name that it is about, such as a strategy or one of several models; None without one."""
    gain_ns: int
    """How much shorter a step would be."""
    half_ns: int | None
    """By how much a recorded gain may differ with 95 % certainty; None where unknown."""
    step_ns: int
    """How long a step would take."""
    memory_bytes: int | None
    """How much more each rank would hold, at most; None where unknown."""
    why: str
    """What it answers, in words: the diagnosed step's largest such cause or idle time, or other steps; else empty."""
    window: str
    """What the times are of: see `window_word`."""

    @property
    def short(self) -> str:
        """The action without how it is done: `bucket_cap_mb 5`."""
        return short_words(self.text)

    @property
    def is_worth_it(self) -> bool:
        """Whether it gains enough for an effort."""
        return self.gain_ns > LITTLE_GAIN * (self.gain_ns + self.step_ns)

    @property
    def is_certain(self) -> bool:
        """Whether its gain can be told from none."""
        return self.is_worth_it and (self.half_ns is None or self.gain_ns > self.half_ns)

    def is_about(self, late_rank: int | None) -> bool:
        """Whether it concerns waits for this late rank: only `balance` is about a single rank."""
        return self.action.name != "balance" or late_rank is None or self.setting == late_rank


def short_words(text: str) -> str:
    """An action's words without how it is done."""
    return re.split(r": | \(|, ", text, maxsplit=1)[0]


def actions_title(actions: Sequence[Advised], *, advised: bool) -> str:
    """The heading of the actions, of which the first may be advised."""
    of = "per step of training" if actions[0].window == "step" else f"of the {actions[0].window}"
    return f"What would help{', the advice first' * advised}: gain {of}"


def ranked_actions(
    gains: pd.DataFrame, cause_rows: pd.DataFrame, loop: Loop, idle_ns: int, window: str
) -> tuple[Advised, ...]:
    """The actions that shorten a step, in the order in which they are advised.

    Takes rows of `simulate.gains`, the rows of `split_unhideable` of the step that speaks for the run, with
    `overhead`, its loop, how long that step is idle, and what it is called (`window_word`). What is certain comes
    first, what gains more before what gains less. Of what gains as much, as far as that can be told, the one that is
    first in `ACTIONS` comes first. A gain that costs more counts half, and so does one that is a limit. What has to be
    searched for is left out where `host_work`, which names it, gains most of that.
    """
    advised: list[Advised] = []
    by_name: dict[str, list[Row]] = {}
    for each in gains[gains["gain_ns"] > 0].to_dict("records"):
        by_name.setdefault(each["remedy"], []).append(each)
    for action in ACTIONS:
        for row in by_name.get(action.name, ()):
            setting: float | None = None if pd.isna(row["setting"]) else float(row["setting"])
            rows = _answered_rows(action, setting, cause_rows).sort_values("exposed_ns", ascending=False, kind="stable")
            text = fill_words(action.words, Case(loop=loop, rows=rows, setting=setting, what=row["what"]))
            gain_ns, most_ns = int(row["gain_ns"]), idle_ns + int(rows["exposed_ns"].sum())
            if not text or (action.name == "launch_overhead" and gain_ns > _MAX_GAIN_RATIO * most_ns):
                continue
            advised.append(
                Advised(
                    action=action,
                    text=text,
                    setting=setting,
                    what=row["what"],
                    gain_ns=gain_ns,
                    half_ns=int_or_none(row["half_ns"]),
                    step_ns=int(row["step_ns"]),
                    memory_bytes=int_or_none(row["memory_bytes"]),
                    why=_answered_words(action, rows, cause_rows, idle_ns, gain_ns, window),
                    window=window,
                )
            )
    host_work_ns = max((each.gain_ns for each in advised if each.action.name == "host_work"), default=0)
    specific = [each for each in advised if each.action.costs != "a search" or host_work_ns < MAJORITY * each.gain_ns]
    return tuple(_order_actions(specific))


def listed_actions(actions: Sequence[Advised]) -> Sequence[Advised]:
    """Those that a first screen lists: the advised one, then by gain the others that answer anything, uncertain
    gains last; none where there are no others.
    """
    worth = [each for each in actions if each.is_worth_it]
    others = sorted((each for each in worth[1:] if each.why), key=lambda each: (not each.is_certain, -each.gain_ns))
    return (*worth[:1], *others)[:MOST_ACTIONS] if others else ()


def explain_actions(actions: Sequence[Advised], cause_rows: pd.DataFrame, idle_ns: int) -> tuple[Advised, ...]:
    """The same actions, each with what it answers in another step, which has these rows and idle time."""
    rows = [_answered_rows(each.action, each.setting, cause_rows) for each in actions]
    return tuple(
        replace(each, why=_answered_words(each.action, answered, cause_rows, idle_ns, each.gain_ns, each.window))
        for each, answered in zip(actions, rows, strict=True)
    )


def _answered_rows(action: Action, setting: float | None, cause_rows: pd.DataFrame) -> pd.DataFrame:
    """The rows whose cause an action answers; of the waits for late ranks those for the one that it is about."""
    answers = cause_rows["cause"].isin(action.causes) & (action.shortens_overhead | ~cause_rows["overhead"])
    concerned = action.concerns(cause_rows, named=bool(cause_rows["what"].notna().any()))
    answers = concerned if action.subject == "others" and not (answers & concerned).any() else answers & concerned
    if action.name == "balance":
        answers &= (cause_rows["late_rank"] == setting).fillna(False).astype(bool)
    return cause_rows[answers]


def _answered_words(
    action: Action, rows: pd.DataFrame, cause_rows: pd.DataFrame, idle_ns: int, gain_ns: int, window: str
) -> str:
    """The largest cause of these `rows` that an action answers, or the idle time, if that is longer.

    A gain is of a mean step, so it may be more than this step has; or it is another rank that is idle. What shortens
    each transfer also gains where the loop waits by design: then that is all of `cause_rows` that moves data.
    """
    if action.of_transfers and gain_ns > rows["exposed_ns"].sum():
        moved_ns = cause_rows.loc[cause_rows["cause"].isin(_TRANSFERS), "exposed_ns"].sum()
        delays = _AND_DELAYS if gain_ns > moved_ns else ""
        return f"the transfers among the causes, {ms(int(moved_ns))}{delays}" if moved_ns else ""
    if action.fills_idle_time and idle_ns > rows["exposed_ns"].sum():
        waits = rows[rows["cause"] == Cause.STRAGGLER]
        if gain_ns > idle_ns and len(waits):
            return _answered_words(action, waits, cause_rows, 0, gain_ns, window)
        return f"idle time, {ms(idle_ns)}{f' on this rank in this {window}' if gain_ns > idle_ns else ''}"
    if rows.empty:
        return "exposed in other steps" if action.subject == "others" else ""
    by = rows.groupby(["cause", "late_rank", "overhead"], dropna=False)["exposed_ns"].sum().reset_index()
    largest = by.sort_values(by="exposed_ns", kind="stable").to_dict("records")[-1]
    label = cause_words(Cause(largest["cause"]), int_or_none(largest["late_rank"]), overhead=largest["overhead"])
    beside = ""
    if gain_ns > rows["exposed_ns"].sum():
        beside = _AND_DELAYS if Cause(largest["cause"]) is Cause.STRAGGLER else f" in this {window}"
    elif gain_ns > largest["exposed_ns"]:
        beside = ", and smaller causes"
    alike = (cause_rows["cause"] == largest["cause"]) & (cause_rows["overhead"] == largest["overhead"])
    late = cause_rows["late_rank"]
    same = late.isna() if pd.isna(largest["late_rank"]) else (late == largest["late_rank"]).fillna(False)
    alike &= same.astype(bool)
    part, whole = (ms(int(ns)) for ns in (largest["exposed_ns"], cause_rows.loc[alike, "exposed_ns"].sum()))
    return f"{label}, {part}{'' if part == whole else f' of {whole}'}{beside}"


_TRANSFERS = tuple(cause for cause in Cause if cause.origin == "transfer")
_AND_DELAYS = ", and what that delays"
"""A late rank, or a transfer, costs more than the exposed wait for it: it moves what is sent later."""


def _order_actions(advised: Sequence[Advised]) -> list[Advised]:
    """Take the best of those that are left, again and again: the first whose gain is about the largest."""
    left, order = list(advised), []
    while left:
        surest = max(each.is_worth_it + each.is_certain for each in left)
        candidates = [each for each in left if each.is_worth_it + each.is_certain == surest]
        most = max(_weighed_ns(each) for each in candidates)
        first = next(
            each for each in candidates if _weighed_ns(each) >= most - LITTLE_GAIN * (each.gain_ns + each.step_ns)
        )
        order.append(first)
        left.remove(first)
    return order


def _weighed_ns(advised: Advised) -> float:
    cost = 1.0 if advised.action.costs == "nothing" else _COST_WEIGHT
    return advised.gain_ns * cost * (_LIMIT_WEIGHT if advised.action.condition else 1.0)


def predicted_words(advised: Advised, *, beside: bool = False) -> str:
    """The recommendation: `Try bucket_cap_mb 5. Predicted gain: 104 ms per step (33 % of the mean, 314 ms) ±
    6.2 ms.`

    `beside`: it follows one whose gain is unknown. The gain is of the mean step, not of the one that is shown.
    """
    per_step, mean = (" per step", "the mean, ") if advised.window == "step" else ("", "")
    of_mean = f"{_share(advised)} of {mean}{ms(advised.gain_ns + advised.step_ns)}"
    gain = f"{ms(advised.gain_ns)}{per_step} ({of_mean}) {_half(advised)}".rstrip()
    memory = advised.memory_bytes
    takes = f" It takes up to {size_exact(memory)} more memory on each rank." if memory else ""
    if not advised.is_certain:
        start = "Or try" if beside else "No gain is certain. First to try:"
        return f"{start} {advised.text}. Predicted gain: {gain}.{takes}"
    condition = f" {advised.action.condition}" if advised.action.condition else ""
    return f"{'Or try' if beside else 'Try'} {advised.text}. Predicted gain{condition}: {gain}.{takes}"


def certainty_words(advised: Advised) -> str:
    """`33 % of a step, ± 6.2 ms`, or `90 % of a step, at most`; of a trace without steps `33 % of the trace`."""
    limit = "at most" if advised.action.condition else ""
    whole = "a step" if advised.window == "step" else f"the {advised.window}"
    return ", ".join(filter(None, (f"{_share(advised)} of {whole}", _half(advised), limit)))


def _share(advised: Advised) -> str:
    return percent(advised.gain_ns, advised.gain_ns + advised.step_ns)


def _half(advised: Advised) -> str:
    """By how much the gain may be off; empty where unknown."""
    return doubt_clause(advised.gain_ns, advised.half_ns).lstrip()
