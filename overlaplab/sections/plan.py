"""The page Plan: batch, memory and operations of a training run before there is one, and its time from a recording."""

from __future__ import annotations

from functools import partial

import pandas as pd

from overlaplab import charts, findings
from overlaplab.analyses.systems.plan import plan_over_ranks, plan_stages
from overlaplab.columns import columns
from overlaplab.costs.batch import Training
from overlaplab.costs.plan import Plan, RecordedPlan
from overlaplab.events import Run
from overlaplab.sections.blocks import Chart, Section, TableBlock
from overlaplab.simulate.predictions.what_if import PlannedStep, planned_step

_BYTES = ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "total_bytes")


def require_recorded(run: Run) -> RecordedPlan:
    """What the run says that a plan asks for. Raises `OverlaplabError` where no plan's step is predicted from it."""
    findings.refuse_to_predict(run)
    return findings.require_told(run)


def planned_training(
    run: Run, plan: Plan, *, tokens: int | None, price: float | None, recorded: pd.DataFrame | None = None
) -> tuple[PlannedStep, Training]:
    """The plan's step, predicted from the run, and what training on so many tokens takes with it.

    `recorded`: see `planned_step`. Raises `OverlaplabError` where the run cannot tell.
    """
    findings.require_planned(run, plan)
    step = planned_step(run, plan.batch, recorded)
    return step, Training(step_ns=step.step_ns, batch=plan.batch, tokens=tokens, price=price)


def plan_section(plan: Plan, stage: int) -> Section:
    """What each GPU would hold over their number in a stage of ZeRO, and by stage on the planned number."""
    table = plan_over_ranks(plan)
    stage_rows = table[table["stage"] == stage]
    title = findings.plan_title(plan, stage)
    draw = partial(charts.planned_memory, stage_rows, limit=plan.gpu_bytes, planned=plan.batch.ranks, title=title)
    return Section(
        title="Memory per GPU",
        lead=findings.plan_lead(plan),
        blocks=[Chart("plan_chart", draw, None, stage_rows), plan_rows(plan)],
        advice=(findings.plan_advice(plan),),
    )


def plan_rows(plan: Plan) -> TableBlock:
    """A row per stage of ZeRO, on the planned number of GPUs."""
    return TableBlock(
        key="plan_table",
        caption=f"Memory per GPU on {plan.batch.ranks:,}, by ZeRO stage",
        frame=plan_stages(plan),
        columns=columns("plan", "stage", *_BYTES, *(() if plan.gpu_bytes is None else ("fits_from",))),
        legend="MB per GPU"
        + ("; fits from = the smallest number of GPUs whose memory suffices" if plan.gpu_bytes else ""),
        notes=findings.plan_notes(plan),
    )
