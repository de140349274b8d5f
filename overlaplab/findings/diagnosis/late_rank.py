"""The rank that is late, how often it is, and what it does for longer than the others."""

from __future__ import annotations

import pandas as pd

from overlaplab.analyses.late_rank import is_chronic, latest_rank
from overlaplab.findings.thresholds import LITTLE_GAIN
from overlaplab.words import count, join_names, ms, shorten

_PHASES = {
    "before": "before its forward pass it works for",
    "forward": "its forward passes take",
    "backward": "its backward passes take",
    "optimizer": "its optimizer steps take",
    "between": "between its passes it works for",
    "kernels": "its kernels take",
    "same_kernels": "as many kernels take",
    "copies": "its copies take",
    "pause": "its device is idle while its host does nothing that is recorded, for",
    "launching": "its device is idle while its host launches, for",
}


def late_reason(steps: pd.DataFrame, phases: pd.DataFrame, recorded: int, step_ns: float) -> str | None:
    """Whether it is always the same rank, and what it does for longer, as a sentence; None where none was late.

    Takes rows of `analyses.late_steps` and, of the `latest_rank`, of `analyses.late_rank_phases`, the number of
    recorded steps, and how long one takes.
    """
    rank = latest_rank(steps)
    if rank is None:
        return None
    often = steps["rank"].value_counts()
    if not is_chronic(steps, recorded):
        by_rank = join_names([f"rank {other} in {number}" for other, number in often.items()])
        return (
            f"Which rank is late changes from step to step (of {count(recorded, 'step')} {by_rank}): see whether their"
            " inputs are equally long."
        )
    of = f"in {often[rank]} of {count(recorded, 'step')}" if recorded > 1 else "in the recorded step"
    sentence = f"Rank {rank} was the latest {of}"
    if phases.empty:
        return f"{sentence}."
    first = phases.to_dict("records")[0]
    if first["own_ns"] - first["others_ns"] <= LITTLE_GAIN * step_ns:
        return f"{sentence}; what it does takes as long as what the others do."
    words, beside = _PHASES[first["phase"]], "the others'" if "take" in _PHASES[first["phase"]] else "the others for"
    if first["what"] is not None and not pd.isna(first["what"]):
        words, beside = f"its {shorten(str(first['what']), 40)} takes", "the others'"
    return f"{sentence}: {words} {ms(first['own_ns'])}, {beside} {ms(first['others_ns'])}."
