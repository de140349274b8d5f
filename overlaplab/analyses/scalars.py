"""A run as a flat dictionary of numbers, for experiment trackers, conditions and baselines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

import pandas as pd

from overlaplab.analyses.collectives import collectives
from overlaplab.analyses.exposed import CAUSES, exposed
from overlaplab.analyses.summary import FIGURES, ratio_of_sums, summary
from overlaplab.analyses.watched.scalars import watched_scalars
from overlaplab.analyses.worst import damaged_steps, drop_damaged, without_steps
from overlaplab.causes import Cause
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, activity
from overlaplab.evidence.pipelines import idle_by_schedule
from overlaplab.evidence.selection import measured_traces, selected_traces
from overlaplab.load.watched import Watched
from overlaplab.selection import EVERYTHING, Selection

Scalars: TypeAlias = Mapping[str, float | None]
OF_CAUSE = {"exposed." + re.sub(r"\W", "_", cause): cause for cause in CAUSES}
"""Figures that are the exposed time of one cause: `exposed.tail`, `exposed.straggler_wait`."""
_NAME_OF = {cause: name for name, cause in OF_CAUSE.items()}
SHARES = {"exposed_share": "exposed_comm_ns", **{f"{name}_share": name for name in OF_CAUSE}}
"""Figures that are another one's share of the step time, from 0 to 1: `exposed.tail_share`."""
HIDDEN = {"hidden_gathers": "all_gather", "hidden_scatters": "reduce_scatter", "hidden_all_reduces": "all_reduce"}
"""Figures that count the collectives of a kind that are hidden."""
_RATIO = "overlap_ratio"
_OF_COMMUNICATION = ("comm_ns", "overlapped_ns", "exposed_comm_ns", "exposed_wait_ns", "exposed_transfer_ns", _RATIO)


def scalars(run: Run | Watched, selection: Selection = EVERYTHING, *, causes: bool = True) -> dict[str, float | None]:
    """The figures of `summary`, by name, and the exposed time of each cause (`exposed.tail`, …): one number each.

    A time is the mean over all undamaged steps of all ranks in which it is known, in ns; `overlap_ratio` is the ratio
    of the sums. `exposed_share`, and each cause's (`exposed.tail_share`, …), is of the step time, from 0 to 1.
    `hidden_gathers`, `hidden_scatters` and `hidden_all_reduces` count the collectives of which less than half the time
    is exposed, in a rank's median step (of an even number the lower), of the rank with fewest.

    None where a figure is known in no step of a rank; figures of communication also where none was recognised on a rank
    of several. `exposed.straggler_wait` is None where `exposed_wait_ns` is, and causes of pipelines where the schedule
    is unknown. Without `causes` those, and their shares, are left out, which is quicker. Raises `OverlaplabError` for
    an unknown rank or step.

    `load_watched` gives a watched training instead, whose figures are of all its steps in which no profiler ran:
    `steps`, means of `span_ns` and `data_ns`, of the measured steps `forward_ns`, `backward_ns`, `exposed_comm_ns` with
    its parts `exposed_gradients_ns`, `exposed_gathers_ns` and `exposed_others_ns`, and `exposed_share`; `late_share` is
    of the measured steps that tell who was last. It takes no selection; `step_scalars` has it step by step.
    """
    if isinstance(run, Watched):
        if selection != EVERYTHING:
            what = "a watched training's figures are of all its steps"
            raise OverlaplabError(what, remedy="Leave the selection out.")
        return watched_scalars(run)
    every = summary(run, selection)
    table = drop_damaged(every)
    ranks = len(selected_traces(run, selection))
    figures = {column: _mean(table, column, ranks) for column in FIGURES if column != _RATIO}
    figures[_RATIO] = None if figures["comm_ns"] is None else ratio_of_sums(table)
    recognised = _communication_recognised(run, selection)
    unknown = dict.fromkeys((*_OF_COMMUNICATION, *HIDDEN))
    figures |= _hidden_counts(table, collectives(run, selection)) if recognised else unknown
    if causes and figures["exposed_comm_ns"] is None:
        figures |= dict.fromkeys(OF_CAUSE)
    elif causes:
        figures |= _exposed_by_cause(run, without_steps(exposed(run, selection), damaged_steps(every)), len(table))
        if figures["exposed_wait_ns"] is None:
            figures[_NAME_OF[Cause.STRAGGLER]] = None
    return figures | _shares(figures)


def _shares(figures: Scalars) -> dict[str, float | None]:
    """`SHARES` of the figures that are there."""
    span_ns, shares = figures["span_ns"], {}
    for share, name in SHARES.items():
        if name in figures:
            part_ns = figures[name]
            shares[share] = part_ns / span_ns if span_ns and part_ns is not None else None
    return shares


def _hidden_counts(steps: pd.DataFrame, rows: pd.DataFrame) -> dict[str, float | None]:
    """`HIDDEN` in these rows of `summary`, from rows of `collectives`; None where a collective's time is unknown."""
    windows = ["rank", "step"]
    counts: dict[str, float | None] = {}
    for name, kind in HIDDEN.items():
        alike = rows[rows["kind"] == kind]
        hidden = (2 * alike["exposed_ns"] < alike["end_ns"] - alike["start_ns"]).astype("Int64")
        by_step = alike[windows].assign(hidden=hidden).groupby(windows, dropna=False)["hidden"].sum().reset_index()
        by_rank = steps[windows].merge(by_step, how="left").fillna({"hidden": 0}).groupby("rank", dropna=False)
        fewest = by_rank["hidden"].quantile(interpolation="lower").min()
        counts[name] = None if hidden.isna().any() or steps.empty else float(fewest)
    return counts


def _exposed_by_cause(run: Run, rows: pd.DataFrame, steps: int) -> dict[str, float | None]:
    """The mean per step of each cause's exposed time in rows of `exposed`."""
    sums = rows.groupby("cause")["exposed_ns"].sum()
    by_cause: dict[str, float | None] = {name: float(sums.get(cause, 0)) / steps for name, cause in OF_CAUSE.items()}
    if Cause.SEND in sums and not idle_by_schedule(run):  # it has what the schedule would explain, too
        by_cause |= dict.fromkeys((_NAME_OF[Cause.BUBBLE], _NAME_OF[Cause.IMBALANCE]))
    return by_cause


def _mean(table: pd.DataFrame, column: str, ranks: int) -> float | None:
    """The mean over the steps in which it is known; None if one of so many ranks has none."""
    rows = table[table[column].notna()]
    if rows.empty or rows["rank"].nunique(dropna=False) < ranks:
        return None
    return float(rows[column].astype("Float64").mean())


def _communication_recognised(run: Run, selection: Selection) -> bool:
    """Whether each measured rank that has others communicated; else its communication may count as something else."""
    return all(
        len(activity(trace).communication) or max(len(run.traces), trace.world_size or 1) == 1
        for trace in measured_traces(run, selection)
    )
