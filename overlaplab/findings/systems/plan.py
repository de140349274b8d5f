"""What a plan's figures mean, and what would make it fit."""

from __future__ import annotations

from overlaplab.costs.batch import Training
from overlaplab.costs.plan import Plan, RecordedPlan, recorded_plan
from overlaplab.costs.states import STAGES, quick_look
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run
from overlaplab.findings.predictions import extrapolation
from overlaplab.findings.runs import PREDICTED, note
from overlaplab.simulate.predictions.what_if import PlannedStep
from overlaplab.words import amount, capitalise, count, join_names, ms, percent, shorten, size_exact

_PREFIXES = ((10**21, "Z"), (10**18, "E"), (10**15, "P"), (10**12, "T"), (10**9, "G"))
_ROUNDS_TO_ONE = 0.9995
"""The least number that three digits show as 1."""


def plan_lead(plan: Plan) -> str:
    """Model, batch and work of a step, in sentences."""
    batch = plan.batch
    sentences = [
        f"{_billions(plan.parameters)} parameters take {size_exact(quick_look(plan.parameters))} in 16 bits, and"
        f" {plan.precision.total}Ψ = {size_exact(plan.precision.total * plan.parameters)} in training"
        f" ({plan.precision_name})",
        f"a step trains on {batch.tokens:,} tokens: {batch.microbatch:,} × {batch.accumulate:,} ×"
        f" {count(batch.ranks, 'GPU')} = {batch.samples:,} sequences of {batch.seq:,}",
        f"it takes {_operations(plan.step_flops)}, {_operations(plan.step_flops / batch.ranks)} on each GPU",
    ]
    return ". ".join(capitalise(text) for text in sentences) + "."


def plan_title(plan: Plan, stage: int) -> str:
    """The gist of a chart of memory over the number of GPUs."""
    where = f"ZeRO stage {stage}" if stage else "Nothing sharded"
    if plan.gpu_bytes is None:
        return f"{where}: {size_exact(plan.held_bytes(stage, plan.batch.ranks).total)} per GPU"
    fits = plan.fits_from(stage)
    gpu = size_exact(plan.gpu_bytes)
    if fits is None:
        return f"{where}: never fits into {gpu}"
    return f"{where}: fits into {gpu} from {count(fits, 'GPU')}"


def plan_advice(plan: Plan) -> str:
    """The first stage that fits on the planned GPUs, since each further one sends more or waits more; or what to do."""
    if plan.gpu_bytes is None:
        return "Name the GPU's memory (--gpu-memory 80GB) to see what fits."
    gpu = size_exact(plan.gpu_bytes)
    for stage in STAGES:
        fits = plan.fits_from(stage)
        if fits is not None and fits <= plan.batch.ranks:
            how = f"ZeRO stage {stage}" if stage else "Plain data parallelism"
            return f"{how} fits: {size_exact(plan.held_bytes(stage, plan.batch.ranks).total)} of {gpu} per GPU."
    if (fits := plan.fits_from(max(STAGES))) is not None:
        return f"It fits from {count(fits, 'GPU')} with ZeRO stage {max(STAGES)}, not on {plan.batch.ranks:,}."
    smaller = "checkpointing" if plan.model is not None and not plan.checkpointing else "shorter sequences"
    fewer = "a smaller microbatch or " if plan.batch.microbatch > 1 else ""
    return f"Activations alone take {size_exact(plan.activations)} of {gpu}: try {fewer}{smaller}."


def require_told(run: Run) -> RecordedPlan:
    """The recorded model and batch, as a plan has them.

    Raises `OverlaplabError` where run.json does not tell, or where ranks are not all data-parallel.
    """
    recorded, manifest = recorded_plan(run.manifest), run.manifest
    if manifest is None or recorded is None:
        what = "no run.json says of which model it is, with how many tokens in a sample and samples in a microbatch"
        raise OverlaplabError(what, path=run.path, remedy="Give a run of the engine: overlaplab record.")
    if not manifest.axes.is_one_axis:
        what = f"its ranks share the model ({manifest.axes}), and a plan's are data-parallel"
        raise OverlaplabError(what, path=run.path)
    return recorded


def require_planned(run: Run, plan: Plan) -> None:
    """Raise `OverlaplabError` where the recording is of another model than the plan, and tells nothing of its step."""
    other = [
        f"{name} {_value(recorded)} (planned: {_value(planned)})"
        for name, recorded, planned in require_told(run).differences(plan)
    ]
    if other:
        remedy = "Record the planned one, or leave these options out to plan the recorded one."
        raise OverlaplabError(f"is of another model than the plan: {join_names(other)}", path=run.path, remedy=remedy)


def _value(number: int | str) -> str:
    return number if isinstance(number, str) else f"{number:,}"


def plan_predicted(step: PlannedStep, training: Training, source: str) -> str:
    """The predicted step and its speed; hours and cost, where the tokens and the price are known.

    `source`: the recording's path, or what its reader knows it by.
    """
    half_ns, batch = step.interval.half_ns, training.batch
    begin = f"{PREDICTED.capitalize()} from {shorten(source, 80)}"
    sentences = [
        f"{begin} ({note(step.run.manifest)}): a step takes {ms(step.step_ns)} ± {ms(half_ns)} on"
        f" {count(batch.ranks, 'rank')} as fast as the recorded ones"
    ]
    if training.tokens_per_s is not None:
        sentences[0] += f", {amount(training.tokens_per_s)} tokens per second"
    if training.tokens is not None and training.hours is not None and training.gpu_hours is not None:
        cost = "" if training.cost is None else f", which cost {amount(training.cost)} at {training.price:g} each"
        sentences.append(
            f"{_billions(training.tokens)} tokens take {amount(training.hours)} hours ±"
            f" {percent(half_ns, step.step_ns)}: {amount(training.gpu_hours)} GPU-hours{cost}"
        )
    return " ".join([*(f"{text}." for text in sentences), extrapolation(step.times_as_far)]).strip()


def plan_notes(plan: Plan) -> tuple[str, ...]:
    """What the figures leave out; each begins with a small letter and ends without a full stop."""
    left = "gathered units, buckets, buffers of the allocator and of NCCL come on top"
    if plan.model is None:
        return ("operations are an estimate, 6 per parameter and token; activations are unknown without --layers", left)
    return (left, "operations count all scores of attention, though a causal mask needs half of them")


def _operations(number: float) -> str:
    scale, prefix = next((pair for pair in _PREFIXES if number >= _ROUNDS_TO_ONE * pair[0]), (1, ""))
    return f"{amount(number / scale)} {prefix}FLOP"


def _billions(number: int) -> str:
    for scale, word in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= _ROUNDS_TO_ONE * scale:
            return f"{amount(number / scale)}{word}"
    return str(number)
