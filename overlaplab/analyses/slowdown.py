"""How much longer the same kernels take while a GPU also communicates, measured within the run."""

from __future__ import annotations

import numpy as np
import pandas as pd

from overlaplab.events import (
    Run,
    Trace,
    WorkKind,
    activity,
    counting_as,
    empty_table,
    rule_of,
    step_windows,
    windows_at,
)
from overlaplab.intervals import lengths_within
from overlaplab.vocabulary import Rule

_TYPES = {"name": "object", "pairs": "int64", "alone_ns": "int64", "beside_ns": "int64", "slowdown": "float64"}
_ALONE, _BESIDE = 0.1, 0.9
"""Communication runs during at most 10 % of a kernel that ran alone, and at least 90 % of one beside it."""


def slowdowns(run: Run) -> pd.DataFrame:
    """One row per compute kernel that ran both ways, the most time first.

    The n-th kernel of a name in a step does the same work in every step and on every rank that launch as many of them.
    So it is compared with itself: where it ran alone, and where its rank communicated meanwhile. (2507.03114 measures
    19 % in the mean on A100, H100 and MI250, and 40 % at most.)

    Columns: `name`, `pairs` (how many such kernels of a step ran both ways), `alone_ns`, `beside_ns` (their medians,
    added up; all int64), `slowdown` (float64: `beside_ns` ÷ `alone_ns`, less 1). Empty without a GPU.
    """
    tables = [_kernels(trace) for trace in run.traces if rule_of(trace) is Rule.GPU]
    if not tables:
        return empty_table(_TYPES)
    table = pd.concat(tables, ignore_index=True)
    usual = table.groupby("name")["alike"].agg(lambda alike: alike.mode().iloc[0])
    table = table[table["alike"] == table["name"].map(usual)]
    took = {
        way: table[chosen].groupby(["name", "place"])["dur_ns"].median()
        for way, chosen in (("alone_ns", table["share"] <= _ALONE), ("beside_ns", table["share"] >= _BESIDE))
    }
    pairs = pd.DataFrame(took).dropna().groupby("name").agg(["sum", "size"])
    sums = pairs.xs("sum", axis=1, level=1).assign(pairs=pairs["alone_ns"]["size"]).reset_index()
    sums["slowdown"] = sums["beside_ns"] / sums["alone_ns"] - 1
    ordered = sums.sort_values("beside_ns", ascending=False, kind="stable", ignore_index=True)
    return ordered.reindex(columns=list(_TYPES)).round({"alone_ns": 0, "beside_ns": 0}).astype(_TYPES)


def _kernels(trace: Trace) -> pd.DataFrame:
    """The compute kernels of all steps: `alike`, how many of its name its step has, its `place` among those, and the
    `share` of its time in which the rank communicated.
    """
    events = trace.events[counting_as(trace, WorkKind.COMPUTE)]
    step = windows_at(step_windows(trace), events["ts_ns"].to_numpy())
    inside = (step >= 0) & (events["dur_ns"] > 0).to_numpy()
    events, step = events[inside], step[inside]
    starts, took = events["ts_ns"].to_numpy(np.int64), events["dur_ns"].to_numpy(np.int64)
    same = pd.Series(step).groupby([step, events["name"].cat.codes.to_numpy()])
    return pd.DataFrame(
        {
            "name": events["name"].astype(object).to_numpy(),
            "dur_ns": took,
            "share": lengths_within(activity(trace).communication, starts, starts + took) / took,
            "place": same.cumcount().to_numpy(),
            "alike": same.transform("size").to_numpy(),
        }
    )
