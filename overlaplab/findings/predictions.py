"""What is said of predicted runs, and of recordings that predict nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from overlaplab.analyses.delays import busy_share, without_busy_steps
from overlaplab.analyses.summary import summary
from overlaplab.analyses.worst import worst_step
from overlaplab.costs import attained_steps, link_attained
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, missing_ranks, once_per_run, rule_of
from overlaplab.evidence.arrays import int_or_none
from overlaplab.evidence.pipelines import find_plan
from overlaplab.findings.runs import PREDICTED, link_missed
from overlaplab.findings.thresholds import MAJORITY
from overlaplab.manifest import Manifest, played_phantoms, strategy_traits
from overlaplab.simulate.predictions.what_if import message_without_path, why_not
from overlaplab.traits import TRAITS
from overlaplab.vocabulary import Rule
from overlaplab.words import count, doubt_clause, ms, percent, shorten, to_ms

_OPTIONS = {
    "bucket_cap_mb": "bucket cap {:.12g} MiB",
    "first_bucket_mb": "first bucket {:.12g} MiB",
    "schedule": "schedule {}",
    "without_parameter": "without {}",
}
_COUNTED = {"ranks": "rank", "accumulate": "microbatch", "microbatches": "microbatch"}
_FAR = {"bytes": "message sizes", "ranks": "the number of ranks"}


def refuse_to_predict(run: Run, *, needs_all_ranks: bool = True) -> None:
    """Raise `OverlaplabError` where a recording cannot be trusted to say anything about other settings.

    `needs_all_ranks`: on CPUs all but edits need them.
    """
    manifest = run.manifest
    if manifest is None:
        return  # what reads the run says so
    if manifest.predicted_from is not None:
        remedy = f"Predict from {shorten(manifest.predicted_from, 200)}, of which it is a prediction."
        raise OverlaplabError("was predicted, not recorded", path=run.path, remedy=remedy)
    on_cpus = not all(rule_of(trace) is Rule.GPU for trace in run.traces)
    needs_all_ranks |= manifest.pipeline is not None or not manifest.axes.is_one_axis
    lacks_ranks = needs_all_ranks and on_cpus and missing_ranks(run) > 0
    if lacks_ranks or (manifest.phantom_ranks and not played_phantoms(manifest)):
        what = f"{len(run.traces)} of {manifest.world_size} ranks: a prediction needs them all"
        raise OverlaplabError(what, path=run.path, remedy="Record without phantoms, or bring the other ranks' traces.")
    if (disturbance := find_disturbance(run)) is not None:
        raise OverlaplabError(disturbance[0], path=run.path, remedy=disturbance[1])


@once_per_run
def find_disturbance(run: Run) -> tuple[str, str] | None:
    """What kept a recording from telling anything of other settings, and what to do about it; None where nothing did.

    That is: no step attained the emulated link, or in the step that speaks for the run computation waited for a core
    more than half of the time.
    """
    manifest = run.manifest
    attained = attained_steps(manifest) if manifest else ()
    if manifest is not None and link_attained(manifest) is False and not any(step.attained for step in attained):
        return link_missed(manifest) or "link not attained", "Record it again."
    if (steps := summary(run)).empty:
        return None
    step = int_or_none(worst_step(without_busy_steps(run, steps))["step"])
    share = busy_share(run, step)
    if share is None or share <= MAJORITY:
        return None
    more = "Recorder(…, steps=12)" if manifest is not None and manifest.by_recorder else "--steps 12"
    what = f"the machine was busy: in step {step} computation waited for a core {percent(share, 1)} of the time"
    return what, f"Record it again on a quiet machine, or more steps ({more})."


def not_predicted(run: Run) -> str | None:
    """Why no other setting can be predicted from this run; None if one can."""
    try:
        refuse_to_predict(run, needs_all_ranks=False)
    except OverlaplabError as error:
        return message_without_path(run, error)
    return why_not(run)


def prediction_lead(manifest: Manifest) -> str:
    """What was predicted, from what."""
    predicted = manifest.predicted or {}
    changed = predicted.get("changes")
    parts = [_change(name, value) for name, value in (changed if isinstance(changed, dict) else {}).items()]
    source = shorten(manifest.predicted_from or "", 80)
    return f"{PREDICTED.capitalize()} from {source}: {', '.join(parts) or 'nothing changed'}"


def _change(name: str, value: object) -> str:
    if name == "straggler":
        return "no straggler"
    if name in ("caps_mb", "edits") and isinstance(value, list | tuple):
        listed = ", ".join(shorten(str(each)) for each in value)
        return f"caps of {listed} MiB" if name == "caps_mb" else listed
    if name in _COUNTED and isinstance(value, int):
        return count(value, _COUNTED[name])
    return _OPTIONS.get(name, f"{name} {{}}").format(value if isinstance(value, float | int) else shorten(str(value)))


def figure_line(name: str, recorded_ns: int, predicted_ns: int, half_ns: int | None = None) -> str:
    """One figure, recorded and predicted; means over all ranks' steps that nothing disturbed."""
    within = "" if half_ns is None else f" ± {to_ms(half_ns):,.1f}"
    change = f" ({(predicted_ns - recorded_ns) / recorded_ns:+z.1%})" if recorded_ns else ""
    return f"{name}: {to_ms(recorded_ns):,.1f} ms recorded, {to_ms(predicted_ns):,.1f}{within} ms predicted{change}"


def interval_line(half_ns: int, parts: Mapping[str, int]) -> str:
    """The interval around the predicted step time, and what it consists of."""
    further = [name for name in ("transfers", "extrapolation") if parts.get(f"{name}_ns")]
    shown = ["steps", "recordings", "model", *further]
    texts = {name: f"{name} ± {to_ms(parts[f'{name}_ns']):.1f}" for name in shown}
    if not parts["steps_ns"]:
        texts["steps"] = "steps: unknown from one undisturbed step"
    named = ", ".join(texts.values())
    return f"A recording's mean step lies within ± {to_ms(half_ns):.1f} ms in 95 of 100 cases ({named})."


def gain_line(half_ns: int) -> str:
    """The interval around a difference of two predictions: see `gain_half_ns`."""
    return f"The gain of one setting over another, predicted from one recording, lies within ± {ms(half_ns)}."


def gain_finding(recorded_ns: int, predicted_ns: int, half_ns: int, microbatches: tuple[int, int] = (1, 1)) -> str:
    """How much shorter or longer a predicted mean step is, and whether that is certain; in `advise`'s words.

    `microbatches`: how many a step has, as recorded and as predicted. Every microbatch has as many samples, so where
    their number changes, the time per microbatch is compared.
    """
    before, after = microbatches
    lead, what = "", "mean step"
    if before != after:
        recorded_ns, predicted_ns = round(recorded_ns / before), round(predicted_ns / after)
        half_ns, what = round(half_ns / min(before, after)), "microbatch"
        lead = (
            f"A step works on {count(after, 'microbatch')}, not {before}, each of as many samples: {ms(predicted_ns)}"
            f" per microbatch, {ms(recorded_ns)} recorded. "
        )
    gain_ns = recorded_ns - predicted_ns
    how = "Gain" if gain_ns >= 0 else "Loss"
    return f"{lead}{how} per {what}: {ms(abs(gain_ns))}{doubt_clause(gain_ns, half_ns)}."


def microbatches_of(run: Run) -> int:
    """How many microbatches a step has."""
    pipeline = find_plan(run)
    return (pipeline.microbatches if pipeline else run.manifest.accumulate if run.manifest else None) or 1


def hops_unknown(recorded: Manifest, strategy: str | None) -> str:
    """Say that hops' cost to the host is unknown, if only the predicted strategy makes them by hand; else empty.

    `strategy`: the predicted one; None: as recorded.
    """
    traits, before = TRAITS.get(strategy or ""), strategy_traits(recorded)
    if traits is None or traits.hops is None or (before is not None and before.hops is not None):
        return ""
    return (
        f"What a hop costs the host is not in a recording of {recorded.strategy}: short hops of {strategy} take longer"
        " than predicted. Record ring or tree to know it."
    )


def extrapolation(far: Mapping[str, Any]) -> str:
    """What lies beyond twice, or below half, of what was recorded, and by which factor; empty where nothing does."""
    parts = [f"{_FAR.get(name, shorten(name))} by a factor of {times:,g}" for name, times in far.items()]
    return f"Extrapolated beyond what was recorded: {', '.join(parts)}." if parts else ""
