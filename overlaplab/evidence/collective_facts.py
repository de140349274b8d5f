"""Facts about each collective that explain why its time was exposed: how late it was launched, how long it queued, and
what it was for. `analyses.exposed` decides by them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.events import Run, Trace, activity, once_per_run, once_per_trace, rule_of, step_windows
from overlaplab.evidence.clocks import clocks, corrections
from overlaplab.evidence.executions import executions
from overlaplab.evidence.purposes import GRADIENTS, Role, purposes
from overlaplab.evidence.recorded import UNKNOWN_NS, recorded
from overlaplab.evidence.waits import numbered
from overlaplab.intervals import within
from overlaplab.vocabulary import Rule

__all__ = ["collective_facts", "could_start"]

_COLUMNS = (
    *("index", "kind", "what", "late_rank", "start_ns", "end_ns", "moves_ns", "matched", "message"),
    *("asked_ns", "late_ns", "queued_ns", "backward_end_ns", "after_backward"),
)


@once_per_run
def collective_facts(run: Run) -> tuple[pd.DataFrame, ...]:
    """For each trace its collectives whose execution time is known, in order of start; times by the trace's own clock.

    Columns:

    - `index` (of `overlaplab.collectives`), `kind`, `what` (see `purposes`), `start_ns`, `end_ns`
    - `late_rank` (Int64): the rank that arrived last, by more than the clocks may differ
    - `moves_ns`: when the last rank had arrived; the start where that is unknown
    - `matched` (bool): whether the arrival of the last rank is known
    - `message` (bool): from one rank to another
    - `asked_ns`: from when it could have started, given its launch
    - `late_ns`: how much earlier it would have moved data if every rank had launched it when its input was ready;
      counts only time in which the link was free
    - `queued_ns`: how much earlier still if the link had been free at its launch
    - `backward_end_ns`: the end of the pass whose gradients it moves, `UNKNOWN_NS` for none
    - `after_backward` (bool): launched after that end
    - `gradients` (bool): it moves gradients
    - `edge`, `at_once` (bool): rules 8 and 4 of docs/exposed.md
    """
    every = numbered(run)
    every = every.assign(late_rank=_late_ranks(run, every), matched=every["last_ns"] != UNKNOWN_NS)
    tables = [_of_trace(run, place, every[every["trace"] == place]) for place in range(len(run.traces))]
    joined = pd.concat(tables) if tables else every
    avoidable = _avoidable(joined) if len(joined) else joined
    facts = []
    for place, table in enumerate(tables):
        of_trace = avoidable.loc[table.index]
        keep = (table["start_ns"] != UNKNOWN_NS).to_numpy()
        timed = table.assign(late_ns=of_trace["late_ns"], queued_ns=of_trace["queued_ns"])[keep]
        timed = timed.assign(**_by_own_clock(timed, int(corrections(run)[place])))
        facts.append(_edges(run.traces[place], timed).sort_values("start_ns", kind="stable", ignore_index=True))
    return tuple(facts)


def _late_ranks(run: Run, every: pd.DataFrame) -> pd.Series:
    """The rank that arrived last at each collective; null where unknown, or where the clocks may differ by as much."""
    by, known = every["match"], every["last_ns"] != UNKNOWN_NS
    arrived = every["arrived_ns"].groupby(by)
    error = pd.Series(clocks(run)["error_ns"].to_numpy(np.int64)[every["trace"]], index=every.index)
    sure = known & (arrived.transform("max") - arrived.transform("min") > error.groupby(by).transform("max"))
    last = sure & (every["arrived_ns"] == every["last_ns"])
    return every["rank"].where(last).groupby(by).transform("max")


def _of_trace(run: Run, place: int, every: pd.DataFrame) -> pd.DataFrame:
    """One trace's rows with purposes, and how late and how long queued this rank was; by the first rank's clock."""
    trace, offset = run.traces[place], int(corrections(run)[place])
    table = every.join(purposes(trace).iloc[every["row"]].set_index(every.index))
    starts, asked = table["start_ns"].to_numpy(np.int64) + offset, could_start(trace)[table["row"]]
    ready = table["ready_ns"].to_numpy(np.int64)
    ran = table["start_ns"].to_numpy(np.int64) != UNKNOWN_NS
    since = np.minimum(
        np.where((ready != UNKNOWN_NS) & ran, np.maximum(ready, _gathered_since(table, starts)), asked), asked
    )
    late = asked - since - within(activity(trace).communication, since, asked)
    ends = np.sort((table["end_ns"].to_numpy(np.int64) + offset)[ran])
    before = np.searchsorted(ends, starts, side="right") - 1
    busy = np.append(ends, UNKNOWN_NS)[np.where(ran, before, len(ends))]
    queued = np.where(busy > asked, busy - asked, 0)
    host = table["host_ns"].to_numpy(np.int64)
    begins = np.array([window.host_start_ns for window in step_windows(trace)], dtype=np.int64)
    launched = np.where(host != UNKNOWN_NS, host, starts - offset)  # a step's first gather may run before its window
    by_step = np.searchsorted(begins, launched, side="right")
    return table.assign(asked_ns=asked, late_ns=late, queued_ns=queued, launching_step=by_step)


@once_per_trace
def could_start(trace: Trace) -> NDArray[np.int64]:
    """When each row of `recorded` could have started, given its launch; absolute, `UNKNOWN_NS` if it has no start.

    On a GPU: when the compute stream had reached the launch.
    """
    starts, launched = (recorded(trace)[name].to_numpy(np.int64) for name in ("start_ns", "launch_ns"))
    known = launched != UNKNOWN_NS
    found = np.where(known, launched, starts)
    if rule_of(trace) is Rule.GPU and known.any():
        ran = executions(trace)
        reached = [max(at, ran.reached(at)) if sure else at for at, sure in zip(found.tolist(), known, strict=True)]
        found = np.array(reached, dtype=np.int64)
    return np.asarray(np.minimum(found, starts), dtype=np.int64)


def _gathered_since(table: pd.DataFrame, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each gather when the previous one began: the link's idle time before that was the previous one's to use."""
    gathers = np.flatnonzero((table["role"] == Role.GATHER).to_numpy() & (table["start_ns"] != UNKNOWN_NS).to_numpy())
    gathers = gathers[np.argsort(starts[gathers], kind="stable")]
    since = np.full(len(table), UNKNOWN_NS, dtype=np.int64)
    since[gathers[1:]] = starts[gathers[:-1]]
    return since


def _avoidable(table: pd.DataFrame) -> pd.DataFrame:
    """`late_ns` and `queued_ns` of whole collectives: how much earlier the last rank could have arrived.

    A rank's own delay matters only if it arrives last. Unmatched collectives keep the rank's own values.
    """
    arrived, by = table["arrived_ns"], table["match"]
    last = arrived.groupby(by).transform("max")
    in_time = (arrived - table["late_ns"]).groupby(by).transform("max")
    alone = (arrived - table["late_ns"] - table["queued_ns"]).groupby(by).transform("max")
    matched = table["matched"]
    return pd.DataFrame(
        {
            "late_ns": table["late_ns"].where(~matched, last - in_time),
            "queued_ns": table["queued_ns"].where(~matched, in_time - alone),
        }
    )


def _by_own_clock(table: pd.DataFrame, offset: int) -> dict[str, pd.Series]:
    starts, ends = table["start_ns"] + offset, table["end_ns"] + offset
    last = (table["last_ns"] + offset).where(table["matched"], starts)
    return {"start_ns": starts, "end_ns": ends, "moves_ns": last.clip(starts, ends)}


def _edges(trace: Trace, table: pd.DataFrame) -> pd.DataFrame:
    """The documented columns, with `edge` and `at_once` added."""
    compute = activity(trace).compute
    ends, asked = table["end_ns"].to_numpy(np.int64), table["asked_ns"].to_numpy(np.int64)
    purposeless = ~table["role"].isin([*GRADIENTS, Role.GATHER]).to_numpy()
    alone = within(compute, asked, ends) == 0
    gathers = (table["role"] == Role.GATHER).to_numpy()
    hidden = pd.Series(within(compute, table["start_ns"].to_numpy(np.int64), ends) > 0, index=table.index)
    begins = np.array([window.start_ns for window in step_windows(trace)], dtype=np.int64)
    window = np.searchsorted(begins, table["start_ns"], side="right")
    over = table["end_ns"].where(gathers, np.iinfo(np.int64).max)
    first = over.groupby(table["launching_step"]).transform("min")  # when the step's first gather ended
    alike = [window, table["group"], table["kind"]]
    latest = (table["start_ns"] == table["start_ns"].groupby(alike, dropna=False).transform("max")).to_numpy()
    some_hidden = hidden.groupby(alike, dropna=False).transform("any").to_numpy()
    plain = purposeless & (table["role"] == Role.OTHER).to_numpy()
    gradients = table["role"].isin(GRADIENTS).to_numpy()
    early = gathers & (asked < first.to_numpy())
    edge = (gradients & (ends >= table["backward_end_ns"].to_numpy())) | early | (plain & latest & some_hidden)
    return table[list(_COLUMNS)].assign(gradients=gradients, edge=edge, at_once=purposeless & alone & ~edge)
