"""Wait and transfer: a collective's time before and after its last rank arrived (docs/design.md).

Both are known only if every member's trace is present, for collectives in which every rank needs all others' data, and
for messages whose two ends are known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.events import Run, activity, once_per_run
from overlaplab.evidence.arguments import TEXTS
from overlaplab.evidence.clocks import corrections
from overlaplab.evidence.matching import matched
from overlaplab.evidence.pairing import ROOTED
from overlaplab.evidence.recorded import UNKNOWN_NS, recorded
from overlaplab.intervals import EMPTY, Intervals, intersect, subtract, total, union

__all__ = ["Exposed", "arrivals", "exposed_parts", "kernels_of", "numbered"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """A rank's exposed communication, split into disjoint sets of intervals in absolute ns of its own clock."""

    wait: Intervals
    transfer: Intervals
    unknown: Intervals
    """Wait and transfer cannot be distinguished."""


@once_per_run
def arrivals(run: Run) -> pd.DataFrame:
    """`matched`'s rows joined with `recorded`'s, all times by the first rank's clock.

    Columns: those of `matched`; `rank` (Int64); `launch_ns`, `host_ns`, `arrived_ns`, `start_ns`, `end_ns` (absolute
    int64, `UNKNOWN_NS` where unknown); `kind`, `dtype`, `group`, `group_description` (from any of the collective's
    ranks, else empty), `bytes` (the largest rank's, -1 where unknown); `last_ns` (when its last rank arrived; of
    messages that one kernel carries, the last of all their ranks) and `wait_ns` (this rank's; both `UNKNOWN_NS` where
    wait is unknown).
    """
    own = matched(run)
    offsets = corrections(run)
    tables = []
    for place, trace in enumerate(run.traces):
        rows = own[own["trace"] == place]
        table = recorded(trace).iloc[rows["row"]].set_index(rows.index)
        for name in ("launch_ns", "host_ns", "arrived_ns", "start_ns", "end_ns"):
            table[name] = table[name].where(table[name] == UNKNOWN_NS, table[name] - offsets[place])
        tables.append(table)
    joined = own.join(pd.concat(tables))
    joined["rank"] = pd.array([run.traces[place].rank for place in joined["trace"]], dtype="Int64")
    _agree(joined)
    mutual = joined["message"] | ~joined["kind"].isin({*ROOTED, ""})
    known = (joined["complete"] & ~joined["doubtful"] & mutual).to_numpy()
    last = joined.groupby("match")["arrived_ns"].transform("max").to_numpy()
    kernels = kernels_of(joined)
    if (kernels >= 0).any():  # all messages of a kernel are waited for together
        known = known & ~np.isin(kernels, np.unique(kernels[~known & (kernels >= 0)]))
        last = np.where(kernels >= 0, pd.Series(last).groupby(kernels).transform("max"), last)
    joined["last_ns"] = np.where(known, last, UNKNOWN_NS)
    wait = np.clip(last, joined["start_ns"], joined["end_ns"]) - joined["start_ns"].to_numpy()
    joined["wait_ns"] = np.where(known, wait, UNKNOWN_NS)
    return joined


def kernels_of(table: pd.DataFrame) -> NDArray[np.int64]:
    """For each row of `arrivals` that is a message by a kernel the kernel's number, else -1: one may carry several."""
    own = ((table["source"] >= 0) | (table["destination"] >= 0)) & (table["start_ns"] != UNKNOWN_NS)
    number = table.groupby(["trace", "start_ns", "end_ns"], sort=False).ngroup()
    return np.asarray(number.where(own, -1), dtype=np.int64)


def _agree(table: pd.DataFrame) -> None:
    """Give all rows of a collective what is known from any of its ranks."""
    kind = table["kind"].where(table["kind_known"], "")
    for name, values in (*((name, table[name]) for name in TEXTS if name != "kind"), ("kind", kind)):
        known = values.where(values != "", None)
        agreed = known.groupby(table["match"]).transform("first")
        table[name] = agreed.where(agreed.notna(), table[name]).astype(object)
    table["bytes"] = table.groupby("match")["bytes"].transform("max")


@once_per_run
def exposed_parts(run: Run) -> tuple[Exposed, ...]:
    """Each trace's exposed communication by its own clock; each moment counts once.

    At a moment in several collectives: transfer if any is known to transfer; else unknown if any is unknown; else wait.
    So wait is only time in which nothing moved.
    """
    exposures = [subtract(busy.communication, busy.compute) for busy in map(activity, run.traces)]
    phantoms = run.manifest is not None and bool(run.manifest.phantom_ranks)
    if len(exposures) == 1 and (run.traces[0].world_size or 1) > 1 and not phantoms:  # the other ranks are unknown
        return (Exposed(wait=EMPTY, transfer=EMPTY, unknown=exposures[0]),)
    rows = arrivals(run)
    offsets = corrections(run)
    parts = []
    for place, exposed in enumerate(exposures):
        own = rows[(rows["trace"] == place) & (rows["start_ns"] != UNKNOWN_NS)]
        starts, ends, waits = (own[name].to_numpy(np.int64) for name in ("start_ns", "end_ns", "wait_ns"))
        starts, ends = starts + offsets[place], ends + offsets[place]
        known = waits != UNKNOWN_NS
        arrived = starts[known] + waits[known]
        transfer = intersect(exposed, union(arrived, ends[known]))
        waiting = subtract(union(starts[known], arrived), union(starts[~known], ends[~known]))
        not_transfer = subtract(exposed, transfer)
        wait = intersect(not_transfer, waiting)
        parts.append(
            Exposed(
                wait=wait, transfer=transfer, unknown=subtract(not_transfer, wait) if total(not_transfer) else EMPTY
            )
        )
    return tuple(parts)


@once_per_run
def numbered(run: Run) -> pd.DataFrame:
    """`arrivals`' rows in order of the collective's first start, with `index`, its number in `collectives`.

    `trace` and `row` say where each comes from: the index in `run.traces`, the row of `recorded`.
    """
    table = arrivals(run)
    began = np.where(table["start_ns"] != UNKNOWN_NS, table["start_ns"], table["launch_ns"])
    first = pd.Series(began, index=table.index).groupby(table["match"]).transform("min")
    table = table.assign(first=first).sort_values(["first", "match", "trace"], kind="stable", ignore_index=True)
    return table.assign(index=pd.factorize(table["match"])[0])
