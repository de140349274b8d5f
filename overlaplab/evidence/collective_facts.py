"""Facts about each collective that explain why its time was exposed: how late it was launched, how long it queued, and
what it was for. `analyses.exposed` decides by them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.axes import PIPELINE, axis_of
from overlaplab.events import Run, Trace, activity, once_per_run, once_per_trace, rule_of, step_windows
from overlaplab.evidence.clocks import clocks, corrections
from overlaplab.evidence.executions import executions
from overlaplab.evidence.moments import GRAIN_NS
from overlaplab.evidence.purposes import GRADIENTS, Role, purposes
from overlaplab.evidence.recorded import UNKNOWN_NS, recorded
from overlaplab.evidence.waits import kernels_of, numbered
from overlaplab.intervals import within
from overlaplab.vocabulary import Rule

__all__ = ["collective_facts", "could_start"]

_COLUMNS = (
    *("index", "kind", "what", "axis", "late_rank", "start_ns", "end_ns", "moves_ns", "matched", "message"),
    *("of_pipeline", "link", "group"),
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
    - `axis` (of the mesh, empty where unknown), `of_pipeline` (bool): a message along the pipeline, whether or not its
      other end is known
    - `link` (int64): the stream, as streams of a device work at once; -1 where all share a link (on hosts, and behind
      an emulated link); `group`
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
    latest = arrived.transform("max")
    error = pd.Series(clocks(run)["error_ns"].to_numpy(np.int64)[every["trace"]], index=every.index)
    sure = latest - arrived.transform("min") > error.groupby(by).transform("max")
    last = every["rank"].where(sure & (every["arrived_ns"] == latest)).groupby(by).transform("max")
    last = last.where(known & (every["last_ns"] == latest))
    kernels = kernels_of(every)
    return last.where(kernels < 0, last.groupby(kernels).transform("max"))


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
    emulated = run.manifest is not None and run.manifest.emulated_link is not None
    axes = table["group_description"].map(axis_of)
    table = table.assign(
        axis=axes,
        of_pipeline=(axes == PIPELINE) & (table["kind"] == "send_recv"),
        link=-1 if emulated or rule_of(trace) is not Rule.GPU else table["stream"],
    )
    busy = np.where(ran, _busy_until(table, starts, table["end_ns"].to_numpy(np.int64) + offset), UNKNOWN_NS)
    queued = np.where(busy > asked, busy - asked, 0)
    host = table["host_ns"].to_numpy(np.int64)
    begins = np.array([window.host_start_ns for window in step_windows(trace)], dtype=np.int64)
    launched = np.where(host != UNKNOWN_NS, host, starts - offset)  # a step's first gather may run before its window
    by_step = np.searchsorted(begins, launched, side="right")
    return table.assign(asked_ns=asked, late_ns=late, queued_ns=queued, launching_step=by_step)


def _busy_until(table: pd.DataFrame, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each collective until when it may have queued behind another; `UNKNOWN_NS` for none.

    That is the last end before its start, of one that shares its link or its group. Others work at once, unless it
    began where one of them ended.
    """
    last = _last_before(starts, ends)
    found = np.where(starts - last <= GRAIN_NS, last, UNKNOWN_NS)
    for shared in (table["link"], table["group"]):
        for value in shared.unique():
            own = (shared == value).to_numpy()
            if value != "":
                found[own] = np.maximum(found[own], _last_before(starts[own], ends[own]))
    return found


def _last_before(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each start the last end until then, `UNKNOWN_NS` for none."""
    order = np.sort(ends)
    return np.append(order, UNKNOWN_NS)[np.searchsorted(order, starts, side="right") - 1]


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
