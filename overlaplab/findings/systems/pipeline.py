"""Pipelines in words: how much of the stages' time is bubble, what it consists of, and what would make it smaller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from overlaplab.findings.actions.words import SCHEDULES, pipeline_words
from overlaplab.findings.first_screen import Tile
from overlaplab.findings.thresholds import LITTLE_GAIN, PIPELINE_PART, UNEVEN_STAGES
from overlaplab.manifest import Pipeline
from overlaplab.words import count, join_names, ms, percent, rank_word

NO_PIPELINE = (
    "No stages of a pipeline are found in this run. No group that sends messages is described as a pipeline's."
)
PIPELINE_UNLABELLED = (
    "The stages' actions are not labelled in these traces, so which microbatch a rank works on is unknown, and how much"
    " of its bubble is due to the schedule, to unequal stages, and to sending."
)
"""What messages alone do not tell of a pipeline."""

_PARTS = {"imbalance": "unequal stages", "sending": "waiting for sends", "overhead": "the host between actions"}


def pipeline_lead(step: Mapping[Any, Any]) -> str:
    """How much of the stages' time is bubble, and of what; a row of `analyses.pipeline_steps`."""
    share = _share(step["bubble"])
    if any(pd.isna(step[name]) for name in _PARTS):
        return f"{share} of the stages' time is bubble; an ideal schedule of this shape has {_share(step['theory'])}."
    schedule_share = float(step["bubble"]) - sum(float(step[name]) for name in _PARTS)
    largest = sorted(_PARTS, key=lambda name: -float(step[name]))
    parts = [f"{_share(step[name])} {_PARTS[name]}" for name in largest if float(step[name]) >= PIPELINE_PART]
    others = f", {join_names(parts)}" if parts else ", and little else"
    ideal = "" if _share(schedule_share) == _share(step["theory"]) else f" ({_share(step['theory'])} of an ideal step)"
    return f"{share} of the stages' time is bubble: {_share(schedule_share)} is the schedule's own{ideal}{others}."


def pipeline_waits_lead(table: pd.DataFrame) -> str:
    """How long ranks wait in the bubble; rows of `analyses.pipeline_waits` of one step."""
    most = table.iloc[int(table["bubble"].argmax())]
    parts = ""
    if pd.notna(most["wait_ns"]):
        parts = f": {ms(most['wait_ns'])} before the sender had begun, {ms(most['transfer_ns'])} after"
    who = "The rank" if pd.isna(most["rank"]) else f"Rank {rank_word(int(most['rank']))}"
    beside = "" if len(table) == 1 else f", the most of {count(len(table), 'rank')} here"
    return (
        f"{who} computes nothing while it waits for messages of the pipeline for {_share(most['bubble'])} of the time"
        f" from its first computation in the step to its last{beside}{parts}."
    )


def pipeline_tiles(step: Mapping[Any, Any]) -> tuple[Tile, ...]:
    """The five figures of a row of `analyses.pipeline_steps`."""
    p, m, v = int(step["ranks"]), int(step["microbatches"]), int(step["stages"]) // int(step["ranks"])
    formula = f"(p−1)/(m+p−1), p {p}, m {m}" if v == 1 else f"(p−1)/({v}m+p−1), p {p}, m {m}"
    overhead = "unknown" if pd.isna(step["overhead_ns"]) else ms(step["overhead_ns"])
    hop = "" if pd.isna(step["hop_ns"]) else f"{ms(step['hop_ns'])} per message"
    even = float(step["slower"]) < UNEVEN_STAGES
    return (
        Tile(label="bubble", value=_share(step["bubble"]), note="of stage time, measured"),
        Tile(label="theory", value=_share(step["theory"]), note=formula),
        Tile(label="overhead", value=overhead, note=f"per action; {hop}".rstrip("; ")),
        Tile(
            label="slowest stage",
            value="none" if even else str(int(step["slowest_stage"])),
            note="all equally fast" if even else f"{_share(step['slower'])} over the median",
        ),
        Tile(label="activations", value=f"{int(step['held'])} of {m}", note="microbatches held at most"),
    )


def pipeline_title(step: Mapping[Any, Any], plan: Pipeline | None) -> str:
    """The title of the chart of who does what when: `…: 1F1B, 4 stages, 8 microbatches`. `plan`: of `find_plan`."""
    schedule = [] if plan is None else [SCHEDULES.get(plan.schedule, plan.schedule)]
    parts = [*schedule, count(int(step["stages"]), "stage"), count(int(step["microbatches"]), "microbatch")]
    return f"Who does what when: {', '.join(parts)}"


def pipeline_held_title(table: pd.DataFrame) -> str:
    """What the curves of held activations show; rows of `analyses.pipeline_held`."""
    most = table.groupby("stage")["held"].max()
    stages = [f"{number} in stage {stage}" for stage, number in most.items()]
    return f"Activations held, at most: {', '.join(stages)}"


def pipeline_advice(played: pd.DataFrame) -> tuple[str, ...]:
    """What to try: rows of `simulate.pipeline_remedies`: those worth an effort, the largest gain first."""
    enough = played[played["gain_ns"] > LITTLE_GAIN * played["recorded_ns"]]
    sentences = [_remedy_words(row) for row in enough.to_dict("records")]
    if sentences:
        return tuple(sentences)
    if played.empty:
        needs = "GPipe or 1F1B on CPUs, the traces of all stages, and both ends of their messages"
        return (f"What smaller microbatches, another split or schedule gain cannot be replayed: this needs {needs}.",)
    return (
        f"No setting that was replayed makes the step over {percent(LITTLE_GAIN, 1)} shorter: neither smaller"
        " microbatches, nor another split or schedule. Left to try: a schedule with several stages on each rank.",
    )


def _remedy_words(row: Mapping[Any, Any]) -> str:
    gain = f"the step is predicted {percent(row['gain_ns'], row['recorded_ns'])} shorter for the same samples"
    bubble, held = f"bubble {_share(row['bubble'])}", count(int(row["held"]), "microbatch")
    return f"Try {pipeline_words(row['remedy'], row['setting'])}: {bubble}, {gain}; a stage holds at most {held}."


def _share(value: Any) -> str:
    return percent(float(value), 1)
