"""Pipelines: what each stage did when, what it waited for in between, and how much of that is the schedule's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from overlaplab.analyses.worst import rows_of
from overlaplab.costs.pipeline import FORWARD, StageAction, bubble, held_counts
from overlaplab.events import Run, Trace, once_per_run
from overlaplab.evidence.arrays import int_or_none
from overlaplab.evidence.clocks import corrections
from overlaplab.evidence.executions import executions
from overlaplab.evidence.labels import Label
from overlaplab.evidence.pipelines import actions_by_step, idle_by_schedule, pipelines
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.evidence.selection import selected_traces, selected_windows
from overlaplab.evidence.waits import arrivals
from overlaplab.intervals import Integers, Intervals, lengths_within, subtract, union
from overlaplab.selection import EVERYTHING, Selection

_ACTIONS = {
    **dict.fromkeys(("pipeline", "rank", "step", "stage"), "Int64"),
    "action": "object",
    **dict.fromkeys(("microbatch", "begun_ns", "start_ns", "end_ns", "took_ns", "gap_ns"), "Int64"),
    **dict.fromkeys(("wait_ns", "transfer_ns", "overhead_ns", "held"), "Int64"),
}
_RANKS = {
    **dict.fromkeys(("pipeline", "rank", "step"), "Int64"),
    "stages": "object",
    **dict.fromkeys(("span_ns", "busy_ns", "idle_ns", "wait_ns", "transfer_ns", "overhead_ns"), "Int64"),
    **dict.fromkeys(("schedule_ns", "imbalance_ns", "actions", "held"), "Int64"),
}
_STEPS = {
    **dict.fromkeys(("pipeline", "step", "ranks", "stages", "microbatches", "span_ns"), "Int64"),
    **dict.fromkeys(("bubble", "theory", "imbalance", "sending", "overhead"), "Float64"),
    **dict.fromkeys(("overhead_ns", "hop_ns", "slowest_stage"), "Int64"),
    "slower": "Float64",
    "held": "Int64",
}
_GAPS = ("wait_ns", "transfer_ns", "overhead_ns")


def pipeline(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per action of a stage with a microbatch, in order of rank and time; empty where there is no pipeline.

    Columns: `pipeline` (0 for the first, …: with data parallelism there are several), `rank`, `step`, `stage`, `action`
    (`forward`, `backward`, or its halves `backward_input` and `backward_weight`), `microbatch`; `begun_ns` (from the
    run's start), `start_ns`, `end_ns` (from the first action of the pipeline's step, of any rank; all by the first
    rank's clock), `took_ns`; `gap_ns` (what lies between it and the rank's action before, or the step's beginning), and
    the gap's parts: `wait_ns` (a message was on hand whose other end was not), `transfer_ns` (one was on its way),
    `overhead_ns` (neither: the host's own); null where not all messages are matched; `held` (microbatches whose
    activations the stage holds from its start on).

    Raises `OverlaplabError` for an unknown rank or step.
    """
    table = _every_action(run)
    keep = np.zeros(len(table), dtype=bool)
    for trace in selected_traces(run, selection):
        steps = [window.step for window in selected_windows(trace, selection)]
        is_selected = (table["rank"] == trace.rank).fillna(trace.rank is None) & table["step"].isin(steps)
        keep |= is_selected.to_numpy(dtype=bool)
    return table[keep].reset_index(drop=True)


def pipeline_ranks(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank and step of a pipeline, in order of pipeline, step and rank.

    Columns: `pipeline`, `rank`, `step`, `stages` (the numbers of those that it holds, as text), `span_ns` (from the
    first action of any rank to the end of the last), `busy_ns` (in actions), `idle_ns` (the rest) and its parts as far
    as gaps before actions tell them, `wait_ns`, `transfer_ns`, `overhead_ns`; `schedule_ns` (what its schedule leaves
    idle if all stages are equally fast and sending takes no time), `imbalance_ns` (what unequal stages add; both null
    where a stage is missing), `actions`, `held` (the most microbatches that one of its stages holds).
    """
    rows = []
    table, idle = _every_action(run).copy(), idle_by_schedule(run)
    places = {trace.rank: place for place, trace in enumerate(run.traces)}
    table["whole_ns"] = table.groupby(["pipeline", "step"], dropna=False)["end_ns"].transform("max")
    for (number, step, rank), of_rank in table.groupby(["pipeline", "step", "rank"], dropna=False, sort=True):
        span, busy = int(of_rank["whole_ns"].iloc[0]), int(of_rank["took_ns"].sum())
        own_idle = idle.get((places[int_or_none(rank)], int_or_none(step)))
        rows.append(
            {
                "pipeline": number,
                "rank": rank,
                "step": step,
                "stages": ", ".join(map(str, sorted(of_rank["stage"].unique()))),
                "span_ns": span,
                "busy_ns": busy,
                "idle_ns": span - busy,
                **{name: of_rank[name].sum(min_count=1) for name in _GAPS},
                **({"schedule_ns": own_idle.bubble_ns, "imbalance_ns": own_idle.imbalance_ns} if own_idle else {}),
                "actions": len(of_rank),
                "held": of_rank["held"].max(),
            }
        )
    every = pd.DataFrame(rows, columns=list(_RANKS)).astype(_RANKS)
    chosen = pipeline(run, selection)[["rank", "step"]].drop_duplicates()
    return every.merge(chosen, on=["rank", "step"])


def pipeline_steps(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per pipeline and step.

    Columns: `pipeline`, `step`, `ranks`, `stages`, `microbatches`, `span_ns` (see `pipeline_ranks`), and as shares of
    all its ranks' time: `bubble` (without an action), beside it `theory` ((p − 1) ÷ (v·m + p − 1), see
    `costs.pipeline`), and of the bubble what is not the schedule's own: `imbalance` is that of unequal stages,
    `overhead` the host's own between actions, and `sending` what remains: waiting for messages on their way, and for
    those who wait for them; null where that is unknown; `overhead_ns` per action; `hop_ns` (how long a message was on
    its way, the median of the whole run); `slowest_stage`, and by what share of the median stage it is `slower`; `held`
    (the most microbatches whose activations a stage holds).
    """
    chosen = pipeline(run, selection)[["pipeline", "step"]].drop_duplicates()
    ranks, actions = pipeline_ranks(run), _every_action(run).merge(chosen, on=["pipeline", "step"])
    rows = []
    for (number, step), of_step in actions.groupby(["pipeline", "step"], dropna=False, sort=True):
        rank_rows = rows_of(ranks[ranks["pipeline"] == number], {"step": step})
        whole = int(rank_rows["span_ns"].sum())
        took = of_step.groupby("stage")["took_ns"].sum()
        slower = float(took.max() / took.median()) - 1 if len(took) else 0.0
        all_known = rank_rows[["wait_ns", "schedule_ns"]].notna().to_numpy().all()
        share = int(rank_rows["idle_ns"].sum()) / whole if whole else 0.0
        microbatches = int(of_step["microbatch"].nunique())
        names = ("schedule_ns", "imbalance_ns", "overhead_ns")
        schedule, uneven, overhead = (
            int(rank_rows[name].sum()) / whole if all_known and whole else None for name in names
        )
        rows.append(
            {
                "pipeline": number,
                "step": step,
                "ranks": len(rank_rows),
                "stages": len(took),
                "microbatches": microbatches,
                "span_ns": rank_rows["span_ns"].max(),
                "bubble": share,
                "theory": bubble(len(rank_rows), microbatches, len(took)) if len(rank_rows) else None,
                "imbalance": uneven,
                "sending": None if schedule is None else max(share - schedule - (uneven or 0) - (overhead or 0), 0.0),
                "overhead": overhead,
                "overhead_ns": int(rank_rows["overhead_ns"].sum() / rank_rows["actions"].sum()) if all_known else pd.NA,
                "hop_ns": _hop_ns(run),
                "slowest_stage": took.idxmax() if len(took) else pd.NA,
                "slower": slower,
                "held": of_step["held"].max(),
            }
        )
    return pd.DataFrame(rows, columns=list(_STEPS)).astype(_STEPS)


def pipeline_held(table: pd.DataFrame) -> pd.DataFrame:
    """Over time the microbatches whose activations each stage holds, from rows of `pipeline` of one pipeline's step.

    Columns: `stage`, `time_ns` (as `start_ns` there), `held` (from this moment on); each stage begins with 0. In
    Int64.
    """
    rows: list[tuple[int, int, int]] = []
    for stage in sorted(int(number) for number in table["stage"].unique()):
        of_stage = table[table["stage"] == stage]
        rows.append((stage, 0, 0))
        count = 0
        for row in of_stage.sort_values("start_ns", kind="stable").to_dict("records"):
            if row["action"] == FORWARD:
                count += 1
                rows.append((stage, int(row["start_ns"]), count))
            elif row["action"] != "backward_input":
                count -= 1
                rows.append((stage, int(row["end_ns"]), count))
    return pd.DataFrame(rows, columns=["stage", "time_ns", "held"]).astype("Int64")


@once_per_run
def _every_action(run: Run) -> pd.DataFrame:
    """`pipeline` of all ranks and steps."""
    rows: list[dict[str, Any]] = []
    for number, places in enumerate(pipelines(run)):
        for step, ranks in actions_by_step(run, places):
            rows += ({"pipeline": number, **row} for row in _step_rows(run, places, step, ranks))
    table = pd.DataFrame(rows, columns=list(_ACTIONS)).astype(_ACTIONS)
    return table.sort_values(["pipeline", "rank", "step", "start_ns"], kind="stable", ignore_index=True)


def _step_rows(
    run: Run, places: Sequence[int], step: int | None, ranks: Sequence[Sequence[tuple[StageAction, Label]]]
) -> Iterator[dict[str, Any]]:
    offsets, done = corrections(run), dict(zip(places, ranks, strict=True))
    times = {place: _times(run.traces[place], actions, int(offsets[place])) for place, actions in done.items()}
    zero = min((int(actions[0].min()) for actions in times.values() if len(actions[0])), default=0)
    for place in places:
        trace, (starts, ends) = run.traces[place], times[place]
        before = np.append(zero, ends[:-1])
        gaps = _gaps(run, place, np.minimum(before, starts), starts)
        holds = _held_counts([action for action, _ in done[place]])
        for number, (action, _) in enumerate(done[place]):
            yield {
                "rank": trace.rank,
                "step": step,
                "stage": action.stage,
                "action": action.kind,
                "microbatch": action.microbatch,
                "begun_ns": starts[number] - run.traces[0].origin_ns,
                "start_ns": starts[number] - zero,
                "end_ns": ends[number] - zero,
                "took_ns": ends[number] - starts[number],
                "gap_ns": max(starts[number] - before[number], 0),
                **{name: pd.NA if gaps is None else gaps[name][number] for name in _GAPS},
                "held": holds[number],
            }


def _times(trace: Trace, actions: Sequence[tuple[StageAction, Label]], offset: int) -> tuple[Integers, Integers]:
    """Starts and ends by the first rank's clock; on a GPU in device time."""
    ran = executions(trace)
    begun = [ran.first_begin_ns(label.start_ns) for _, label in actions]
    starts = [label.start_ns if at is None else at for at, (_, label) in zip(begun, actions, strict=True)]
    ends = [ran.done_ns(label.end_ns) for _, label in actions]
    return np.array(starts, dtype=np.int64) - offset, np.array(ends, dtype=np.int64) - offset


def _gaps(run: Run, place: int, starts: Integers, ends: Integers) -> dict[str, Integers] | None:
    """The parts of these gaps of a rank; None where the two ends of a message are not known."""
    if (messages := _messages(run)[place]) is None:
        return None
    waits, moves = (lengths_within(times, starts, ends) for times in messages)
    return dict(zip(_GAPS, (waits, moves, ends - starts - waits - moves), strict=True))


@once_per_run
def _messages(run: Run) -> tuple[tuple[Intervals, Intervals] | None, ...]:
    """For each trace when its messages only waited for their other end, and when one was on its way.

    None where the two ends of a message are not known.
    """
    rows = arrivals(run)
    rows = rows[rows["message"] & (rows["start_ns"] != UNKNOWN_NS)]
    return tuple(_waiting_and_moving(rows[rows["trace"] == place]) for place in range(len(run.traces)))


def _waiting_and_moving(messages: pd.DataFrame) -> tuple[Intervals, Intervals] | None:
    if messages.empty or (messages["moves_ns"] == UNKNOWN_NS).any():
        return None
    starts, moves, ends = (messages[name].to_numpy(np.int64) for name in ("start_ns", "moves_ns", "end_ns"))
    moving = union(moves, ends)
    return subtract(union(starts, moves), moving), moving


def _held_counts(actions: Sequence[StageAction]) -> list[int]:
    """Return what the stage of each action holds from the action's start on."""
    stages = {action.stage for action in actions}
    by_stage = {stage: iter(held_counts([each for each in actions if each.stage == stage])) for stage in stages}
    return [next(by_stage[action.stage]) for action in actions]


@once_per_run
def _hop_ns(run: Run) -> int | None:
    """How long a message was on its way, the median; None where that is unknown."""
    rows = arrivals(run)
    messages = rows[rows["message"] & (rows["wait_ns"] != UNKNOWN_NS) & (rows["start_ns"] != UNKNOWN_NS)]
    moved = messages["end_ns"] - messages["last_ns"]
    return int(moved.median()) if len(moved) else None
