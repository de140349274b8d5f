"""A watched training as flat dictionaries of numbers, for experiment trackers: of all its steps, and step by step."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from overlaplab.analyses.watched.kinds import watched_step_times
from overlaplab.analyses.watched.late import watched_late
from overlaplab.analyses.watched.steps import EXPOSED, watched_bursts, watched_steps
from overlaplab.load.watched import Watched

_OF_BURSTS = ("forward_ns", "backward_ns", *EXPOSED, "exposed_comm_ns")


def watched_scalars(watched: Watched) -> dict[str, float | None]:
    """The figures of a watched training by name, one number each; `overlaplab.scalars` says what they are."""
    steps = watched_steps(watched)
    bursts = watched_bursts(watched, steps)
    late = watched_late(watched, watched_step_times(steps))
    steps, bursts = steps[~steps["profiled"]], bursts[~bursts["profiled"]]
    figures: dict[str, float | None] = {"steps": float(steps["step"].nunique())}
    figures |= {column: _mean(steps[column]) for column in ("span_ns", "data_ns")}
    figures |= {column: _mean(bursts[column]) for column in _OF_BURSTS}
    is_known = bursts["exposed_comm_ns"].notna()
    spans = float(bursts.loc[is_known, "span_ns"].sum())
    figures["exposed_share"] = float(bursts.loc[is_known, "exposed_comm_ns"].sum()) / spans if spans else None
    telling = late["step"].nunique()
    figures["late_share"] = late.loc[late["late"], "step"].nunique() / telling if telling else None
    return figures


def step_scalars(watched: Watched) -> Iterator[tuple[int, dict[str, float]]]:
    """Each step of a watched training with the figures that are known of it, in order of steps.

    `span_ns` is the median over the ranks; in bursts there are also `exposed_comm_ns` and `exposed_share` (medians over
    the ranks of which it is known) and `late_ns` (how much later than the first rank the last one came). Steps in which
    a profiler ran are left out.
    """
    steps = watched_steps(watched)
    times, bursts = watched_step_times(steps), watched_bursts(watched, steps)
    bursts = bursts[~bursts["profiled"] & bursts["exposed_comm_ns"].notna()].astype({"exposed_comm_ns": "float64"})
    bursts = bursts.assign(exposed_share=bursts["exposed_comm_ns"] / bursts["span_ns"])
    measured = bursts.groupby("step")[["exposed_comm_ns", "exposed_share"]].median()
    table = measured.join(watched_late(watched, times).groupby("step")["late_ns"].max(), how="outer")
    more = {int(row.pop("step")): row for row in table.rename_axis("step").reset_index().to_dict("records")}
    for step, span_ns in times.items():
        figures = {str(name): float(value) for name, value in more.get(int(step), {}).items() if pd.notna(value)}  # type: ignore[call-overload]
        yield int(step), {"span_ns": float(span_ns)} | figures  # type: ignore[call-overload]


def _mean(values: pd.Series) -> float | None:
    """The mean of what is known; None where nothing is."""
    return float(values.astype("Float64").mean()) if values.notna().any() else None
