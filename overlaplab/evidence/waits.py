"""Wait and transfer: a collective's time before and after its last rank arrived (docs/design.md).

Both are known only if every member's trace is present, for collectives in which every rank needs all others' data, or
is held up by the last one as on an emulated link, and for messages whose two ends are known. For collectives whose root
the trace names, wait is known for the ranks that surely waited for the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from msgspec import Struct
from numpy.typing import NDArray

from overlaplab.events import Run, activity, once_per_run
from overlaplab.evidence.arrays import Fields, Groups, as_table, grouped_by, take_values
from overlaplab.evidence.call_metadata import TEXTS
from overlaplab.evidence.clocks import corrections
from overlaplab.evidence.group_pairing import ROOTED
from overlaplab.evidence.matching import match_collectives
from overlaplab.evidence.recorded import RECORDED_COLUMNS, UNKNOWN_NS, emulates_link, recorded_collectives
from overlaplab.intervals import EMPTY, Integers, Intervals, Mask, intersect, subtract, total, union


class Exposed(Struct, frozen=True, kw_only=True):
    """A rank's exposed communication, split into disjoint sets of intervals in absolute ns of its own clock."""

    wait: Intervals
    transfer: Intervals
    unknown: Intervals
    """Wait and transfer cannot be distinguished."""


@once_per_run
def arrivals(run: Run) -> pd.DataFrame:
    """Rows of `match_collectives` joined with those of `recorded_collectives`; all times by the first rank's clock.

    Columns: those of `match_collectives`; `rank` (Int64); `launch_ns`, `host_ns`, `arrived_ns`, `start_ns`, `end_ns`
    (absolute int64, `UNKNOWN_NS` where unknown); `kind`, `dtype`, `group`, `group_description` (from any of the
    collective's ranks, else empty), `bytes` (the largest rank's, -1 where unknown); `last_ns` (when its last rank
    arrived; of messages that one kernel carries, the last of all their ranks), `wait_ns` (from this rank's arrival
    until then) and `moves_ns` (the moment between `start_ns` and `end_ns` from which on it did not wait); these three
    are `UNKNOWN_NS` where wait is unknown; `all_wait` (bool: all ranks wait for the last, and only then do data move).
    """
    offsets = corrections(run)
    table: Fields = {str(name): column.to_numpy() for name, column in match_collectives(run).items()}
    tables = [recorded_collectives(trace) for trace in run.traces]
    missing_columns = [name for name in RECORDED_COLUMNS if name not in table]  # `match_collectives` has better groups
    table |= {name: np.concatenate([each[name].to_numpy() for each in tables]) for name in missing_columns}
    for name in ("launch_ns", "host_ns", "arrived_ns", "start_ns", "end_ns"):
        table[name] = np.where(table[name] == UNKNOWN_NS, UNKNOWN_NS, table[name] - offsets[table["trace"]])
    groups = Groups(table["match"])
    _share_known(table, groups)
    emulated = np.array([emulates_link(trace) for trace in run.traces])[table["trace"]]
    all_wait = ~np.isin(table["kind"], [*ROOTED, ""]) | (emulated & ~np.isin(table["kind"], ["send_recv", ""]))
    table["all_wait"] = table["message"] | all_wait
    came_ns = came_at_ns(table)
    last_arrived_ns, last_came_ns = (groups.spread(np.maximum, each) for each in (table["arrived_ns"], came_ns))
    wait_known = table["complete"] & ~table["doubtful"] & (table["all_wait"] | _waits_for_last(table, groups, came_ns))
    kernels = message_kernels(table)
    if (kernels >= 0).any():  # all messages of a kernel are waited for together; skipped only for speed
        wait_known = wait_known & ~np.isin(kernels, kernels[~wait_known & (kernels >= 0)])
        last_arrived_ns, last_came_ns = (
            np.where(kernels >= 0, Groups(kernels).spread(np.maximum, each), each)
            for each in (last_arrived_ns, last_came_ns)
        )
    table["last_ns"] = np.where(wait_known, last_arrived_ns, UNKNOWN_NS)
    arrived, ends = table["arrived_ns"], table["end_ns"]
    waited_ns = np.clip(last_arrived_ns, arrived, np.maximum(arrived, ends)) - arrived
    table["wait_ns"] = np.where(wait_known, waited_ns, UNKNOWN_NS)
    table["moves_ns"] = np.where(wait_known, np.clip(last_came_ns, table["start_ns"], ends), UNKNOWN_NS)
    ranks = pd.array([trace.rank for trace in run.traces], dtype="Int64")
    return as_table(table | {"rank": ranks[table["trace"]]})


def _waits_for_last(table: Fields, groups: Groups, came_ns: Integers) -> Mask:
    """Mark rows of rooted collectives whose wait for the last rank is known: in a broadcast or scatter all rows if the
    root came last, else only the last rank's (it waits for nobody); in a reduce or gather the root's.

    Others may also wait for ranks that pass the data on.
    """
    is_root = groups.place() == groups.spread(np.maximum, table["root"])
    is_last = came_ns == groups.spread(np.maximum, came_ns)
    has_root, root_is_last = (groups.spread(np.logical_or, each) for each in (is_root, is_root & is_last))
    gets = has_root & (root_is_last | (is_last & ~is_root))
    return np.asarray(np.where(np.isin(table["kind"], ["broadcast", "scatter"]), gets, is_root))


def came_at_ns(table: Mapping[str, NDArray[Any]]) -> Integers:
    """When each rank came to the collective in rows of `arrivals`: its arrival, or earlier where another group's
    collective then had the rank's link, for which no other rank is to blame.
    """
    return np.asarray(np.minimum(table["arrived_ns"], table["start_ns"]), dtype=np.int64)


def message_kernels(table: Mapping[str, NDArray[Any]] | pd.DataFrame) -> Integers:
    """A kernel's number for each row of `arrivals` that is a message carried by it, else -1; one may carry several."""
    names = ("source", "destination", "trace", "start_ns", "end_ns")
    source, destination, trace, start, end = (np.asarray(table[name], dtype=np.int64) for name in names)
    is_message = ((source >= 0) | (destination >= 0)) & (start != UNKNOWN_NS)
    if not is_message.any():  # for speed alone
        return np.full(len(is_message), -1)
    return np.where(is_message, grouped_by(trace, start, end).of_row, -1)


def _share_known(table: Fields, groups: Groups) -> None:
    """Give all rows of a collective what is known from any of its ranks."""
    for name in TEXTS:
        column = table[name]
        is_known = (column != "") & (table["kind_known"] if name == "kind" else True)
        agreed = take_values(column, groups.first(is_known), "")[groups.of_row]
        table[name] = np.where(agreed != "", agreed, column)
    table["bytes"] = groups.spread(np.maximum, table["bytes"])


@once_per_run
def exposed_parts(run: Run) -> tuple[Exposed, ...]:
    """Each trace's exposed communication by its own clock; each moment counts once.

    At a moment in several collectives: transfer if any is known to transfer; else unknown if any is unknown; else wait.
    So wait is only time in which nothing moved.
    """
    exposures = [activity(trace).exposed_communication for trace in run.traces]
    phantoms = run.manifest is not None and bool(run.manifest.phantom_ranks)
    if len(exposures) == 1 and (run.traces[0].world_size or 1) > 1 and not phantoms:  # the other ranks are unknown
        return (Exposed(wait=EMPTY, transfer=EMPTY, unknown=exposures[0]),)
    rows = arrivals(run)
    offsets = corrections(run)
    parts = []
    for place, exposed in enumerate(exposures):
        trace_rows = rows[(rows["trace"] == place) & (rows["start_ns"] != UNKNOWN_NS)]
        wait_known = trace_rows["moves_ns"].to_numpy() != UNKNOWN_NS
        times = trace_rows[["start_ns", "moves_ns", "end_ns"]].to_numpy(np.int64)
        starts, moves, ends = times.T + offsets[place]
        transfer = intersect(exposed, union(moves[wait_known], ends[wait_known]))
        waiting = subtract(union(starts[wait_known], moves[wait_known]), union(starts[~wait_known], ends[~wait_known]))
        not_transfer = subtract(exposed, transfer)
        wait = intersect(not_transfer, waiting)
        unknown = subtract(not_transfer, wait) if total(not_transfer) else EMPTY
        parts.append(Exposed(wait=wait, transfer=transfer, unknown=unknown))
    return tuple(parts)


@once_per_run
def numbered_arrivals(run: Run) -> pd.DataFrame:
    """`arrivals`' rows in order of the collective's first start, with `index`, its number in `collectives`.

    `trace` and `row` say where each comes from: the index in `run.traces`, the row of `recorded_collectives`.
    """
    table = arrivals(run)
    starts, match = table["start_ns"].to_numpy(), table["match"].to_numpy()
    began = np.where(starts != UNKNOWN_NS, starts, table["launch_ns"])
    first = Groups(match).spread(np.minimum, began)
    order = np.lexsort((table["trace"], match, first))
    return table.iloc[order].reset_index(drop=True).assign(index=pd.factorize(match[order])[0])
