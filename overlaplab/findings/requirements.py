"""What became of a check's conditions: whether they hold of a run, do not, or cannot be told from this recording.

A requirement that holds is never inconclusive. One that does not hold is inconclusive where something else than the
loop may be why: its figure is unknown; it holds in the steps in which the machine was not busy and an emulated link was
attained, or there are none; or it holds once the time counts as computation in which a device had nothing to compute as
its host had not launched it (the run is launch-bound), but for calls in which the host waited for the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from unittest import SkipTest

from msgspec import Struct
from msgspec.structs import replace

from overlaplab.analyses.across_runs.regression import Condition, parse_condition, unknown_ms, with_unknown
from overlaplab.analyses.across_runs.settings import is_predicted
from overlaplab.analyses.delays import busy_steps
from overlaplab.analyses.idle import assume_prompt_launches
from overlaplab.analyses.scalars import Scalars, scalars
from overlaplab.analyses.summary import summary
from overlaplab.costs import attained_steps, link_attained
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, is_on_gpus
from overlaplab.findings.gates import CheckLine, Outcome, figure_words
from overlaplab.findings.runs import steps_named
from overlaplab.selection import EVERYTHING, Selection


class RequirementError(AssertionError):
    """Something that was required of a run does not hold."""


class InconclusiveError(SkipTest):
    """A recording does not tell whether what was required holds: pytest and unittest count the test as skipped."""


class _Doubt(Struct, frozen=True, kw_only=True):
    """Something else than the training loop that may be why a requirement fails."""

    reason: str
    figures: Scalars | None
    """The run's figures without it; None where they cannot be told."""


def require(run: Run, *requirements: str, selection: Selection = EVERYTHING) -> None:
    """Require that all of these hold of a run: `require(run, "hidden_gathers >= 7", "exposed.tail_share < 0.05")`.

    Figures are those of `overlaplab.scalars`, of the selected ranks and steps. Raises `RequirementError`, which is an
    AssertionError, where one does not hold; else `InconclusiveError`, as which pytest skips a test, where the recording
    does not tell: the machine was busy, its host launched too late, or a figure is unknown. Raises `OverlaplabError`
    for a requirement that cannot be read, and for a predicted run.
    """
    lines = judge_requirements(run, [parse_requirement(text, "require:") for text in requirements], selection)
    for outcome, error in ((Outcome.FAILED, RequirementError), (Outcome.INCONCLUSIVE, InconclusiveError)):
        if sentences := [line.sentence for line in lines if line.outcome is outcome]:
            begin = "inconclusive: " if outcome is Outcome.INCONCLUSIVE else ""
            raise error(begin + "\n".join(sentences))


def parse_requirement(text: str, option: str = "--require") -> Condition:
    """Read a condition that must hold of one run. Raises `OverlaplabError`, also for a change between runs."""
    condition = parse_condition(text, option)
    if condition.is_change:
        what = f"{option} {text!r} is a change, and what must hold is about one run"
        raise OverlaplabError(what, remedy="--fail-if says which changes may not be.")
    return condition


def judge_requirements(run: Run, requirements: list[Condition], selection: Selection) -> list[CheckLine]:
    """What became of each requirement. Raises `OverlaplabError` for a predicted run."""
    if is_predicted(run):
        raise OverlaplabError("was predicted, not recorded", path=run.path, remedy="Require it of a recording.")
    causes = any(condition.is_of_cause for condition in requirements)
    figures = scalars(run, selection, causes=causes)
    held = [_holds(condition, figures) for condition in requirements]
    doubts = list(_doubts(run, selection, causes=causes)) if False in held else []
    return [_line(condition, figures, holds, doubts) for condition, holds in zip(requirements, held, strict=True)]


def _line(condition: Condition, figures: Scalars, holds: bool | None, doubts: list[_Doubt]) -> CheckLine:
    number = condition.value(figures)
    value = f"{condition.column} is unknown" if number is None else figure_words(condition, number)
    sentence, outcome = f"{value}, and must be {condition.sign} {condition.limit:g}{condition.unit}", Outcome.HOLDS
    doubt = next((doubt for doubt in doubts if _may_hold(condition, doubt)), None)
    if holds is None:
        outcome = Outcome.INCONCLUSIVE
        if number is not None:
            sentence += f"; {unknown_ms(figures)} of exposed time per step have no known cause"
    elif not holds and doubt is None:
        outcome = Outcome.FAILED
    elif not holds and doubt is not None:
        outcome = Outcome.INCONCLUSIVE
        without = None if doubt.figures is None else condition.value(doubt.figures)
        sentence += f"; {doubt.reason}" + ("" if without is None else f": {without:.4g}{condition.unit} without that")
    return CheckLine(name=str(condition), outcome=outcome, sentence=sentence)


def _may_hold(condition: Condition, doubt: _Doubt) -> bool:
    return doubt.figures is None or _holds(condition, doubt.figures) is not False


def _holds(condition: Condition, figures: Scalars) -> bool | None:
    """Whether figures meet the condition; None where a figure is unknown, or exposed time of unknown cause decides."""
    cases = (figures, with_unknown(figures, condition.column)) if condition.is_of_cause else (figures,)
    values = [condition.value(case) for case in cases]
    answers = {None if value is None else condition.met_by(value) for value in values}
    return answers.pop() if len(answers) == 1 else None


def _doubts(run: Run, selection: Selection, *, causes: bool) -> Iterator[_Doubt]:
    """What else than the loop may be why a requirement fails: busy or late steps, then slow launches as well."""
    recorded = {int(step) for step in summary(run, selection)["step"].dropna()}
    busy = busy_steps(run) & recorded
    steps = attained_steps(run.manifest) if run.manifest else ()
    late = {step.step for step in steps if not step.attained} & recorded
    reasons = [f"the machine was busy in {steps_named(sorted(busy))}"] if busy else []
    reasons += [f"the emulated link was not attained in {steps_named(sorted(late))}"] if late else []
    if not steps and link_attained(run.manifest) is False:
        yield _Doubt(reason="the emulated link was not attained", figures=None)
        return
    if reasons:
        selection = replace(selection, steps=recorded - busy - late)
        figures = scalars(run, selection, causes=causes) if selection.steps else None
        yield _Doubt(reason=" and ".join(reasons), figures=figures)
        if figures is None:
            return
    if is_on_gpus(run):
        reasons.append("the device waited for its host to launch (launch-bound)")
        yield _Doubt(
            reason=" and ".join(reasons), figures=scalars(assume_prompt_launches(run), selection, causes=causes)
        )
