"""What a planned training run would hold per GPU, by ZeRO's stages and by the number of GPUs."""

from __future__ import annotations

import pandas as pd

from overlaplab.costs.plan import Plan
from overlaplab.costs.states import STAGES

PLAN_PARTS = ("parameters", "gradients", "optimizer", "activations")
"""What memory is needed for."""
_MOST_RANKS = 1024


def plan_stages(plan: Plan) -> pd.DataFrame:
    """One row per stage of ZeRO, on the planned number of GPUs.

    Columns: `stage`, `parameters_bytes`, `gradients_bytes`, `optimizer_bytes`, `activations_bytes`, `total_bytes` (of
    one GPU), `fits_from` (Int64: from how many GPUs on it fits, null where it never does or no GPU is named).
    """
    rows = [_parts(plan, stage, plan.batch.ranks) | {"fits_from": plan.fits_from(stage)} for stage in STAGES]
    return pd.DataFrame(rows).astype({"fits_from": "Int64"}).drop(columns="ranks")


def plan_over_ranks(plan: Plan) -> pd.DataFrame:
    """One row per stage and number of GPUs: powers of two up to 1,024 or the planned number, and that number.

    Columns: `stage`, `ranks`, and the bytes of `plan_stages`.
    """
    most = max(plan.batch.ranks, _MOST_RANKS)
    numbers = sorted({2**power for power in range(most.bit_length())} | {plan.batch.ranks})
    return pd.DataFrame([_parts(plan, stage, ranks) for stage in STAGES for ranks in numbers])


def _parts(plan: Plan, stage: int, ranks: int) -> dict[str, int | None]:
    held = plan.held_bytes(stage, ranks)
    parts = {f"{part}_bytes": getattr(held, part) for part in (*PLAN_PARTS, "total")}
    return {"stage": stage, "ranks": ranks, **parts}
