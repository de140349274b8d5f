"""The rank that is late, how often it is, and what it does for longer than the others."""

from __future__ import annotations

import pandas as pd

from overlaplab.analyses.late_rank import have_equal_counts, is_chronic, latest_rank
from overlaplab.findings.thresholds import LITTLE_GAIN, MAJORITY
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


def late_reason(
    steps: pd.DataFrame,
    phases: pd.DataFrame,
    recorded_steps: int,
    step_ns: float,
    names: pd.DataFrame | None = None,
    *,
    ranks: int,
) -> str | None:
    """Whether it is always the same rank, and what it does for longer, as a sentence; None where none was late.

    `steps`: rows of `analyses.late_steps`. `phases`: rows of `analyses.late_rank_phases` of the `latest_rank`, and
    `names`: rows of `analyses.late_rank_names` of the first of these. `step_ns`: how long a step takes.
    `ranks`: how many there are.
    """
    rank = latest_rank(steps)
    if rank is None:
        return None
    recorded = count(recorded_steps, "step")
    times_latest = steps["rank"].value_counts()
    if not is_chronic(steps, recorded_steps):
        by_rank = join_names([f"rank {other} in {number}" for other, number in times_latest.items()])
        return (
            f"Which rank is late changes from step to step (of {recorded} {by_rank}): see whether their"
            " inputs are equally long, and what their hosts do before."
        )
    how_often = f"in {times_latest[rank]} of {recorded}" if recorded_steps > 1 else "in the recorded step"
    sentence = f"Rank {rank} was the latest {how_often}"
    if phases.empty:
        return f"{sentence}."
    first = phases.to_dict("records")[0]
    if first["own_ns"] - first["others_ns"] <= LITTLE_GAIN * step_ns:
        return f"{sentence}; what it does takes as long as what the others do."
    words, takes = _PHASES[first["phase"]], "take" in _PHASES[first["phase"]]
    if first["what"] is not None and not pd.isna(first["what"]):
        words, takes = f"its {shorten(str(first['what']), 40)} takes", True
    others, of_others, median = ("other", "other's", "") if ranks == 2 else ("others", "others'", " in the median")
    beside = f"the {of_others}{median}" if takes else f"the {others}{median} for"
    of_names = "" if names is None else _where_time_goes(names, int(first["own_ns"] - first["others_ns"]))
    return f"{sentence}: {words} {ms(first['own_ns'])}, {beside} {ms(first['others_ns'])}{of_names}."


def _where_time_goes(names: pd.DataFrame, longer_ns: int) -> str:
    """What most of `longer_ns` goes into, as the end of a sentence; empty where that is unknown."""
    if names.empty:
        return ""
    first = names.iloc[0]
    if first["own_ns"] - first["others_ns"] >= MAJORITY * longer_ns:
        if not first["others"]:
            return f". Only it runs {shorten(str(first['name']), 60)}: {ms(first['own_ns'])}"
        alike = have_equal_counts(first["own"], first["others"])
        in_calls = "in as many calls" if alike else f"in {first['own']:.3g} calls against {first['others']:.3g}"
        times = f"{ms(first['own_ns'])} against {ms(first['others_ns'])}"
        return f". Most of it goes into {shorten(str(first['name']), 60)}: {times}, {in_calls}"
    longer = names[names["own_ns"] > names["others_ns"]]
    calls, calls_of_others = longer["own"].sum(), longer["others"].sum()
    if (longer["own_ns"] - longer["others_ns"]).sum() < MAJORITY * longer_ns:
        return ". For most of it no operator runs: see on the timeline what its host does"
    if have_equal_counts(calls, calls_of_others):
        return ". It runs the same operators, and most take longer: its inputs are larger, or its processor is slower"
    return f". It computes in {calls:,.0f} calls, the others in {calls_of_others:,.0f}"
