"""Facts about each collective that explain why its time was exposed: how late it was launched, how long it queued, and
what it was for. `analyses.exposed` decides by them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from overlaplab.axes import PIPELINE
from overlaplab.events import Run, Trace, activity, once_per_run, once_per_trace, rule_of, step_windows
from overlaplab.evidence.arrays import Fields, Groups, grouped_by, number_texts, or_none, take_rows, take_values
from overlaplab.evidence.call_metadata import group_axes
from overlaplab.evidence.clocks import clocks, corrections
from overlaplab.evidence.executions import executions
from overlaplab.evidence.moments import GRAIN_NS
from overlaplab.evidence.purposes import GRADIENTS, Role, purposes
from overlaplab.evidence.recorded import UNKNOWN_NS, recorded_collectives
from overlaplab.evidence.stages import stage_labels
from overlaplab.evidence.waits import came_at_ns, message_kernels, numbered_arrivals
from overlaplab.intervals import Integers, lengths_within
from overlaplab.vocabulary import Rule

_FIELDS = (
    *("index", "kind", "what", "axis", "late_rank", "start_ns", "end_ns", "moves_ns", "matched", "message"),
    *("of_pipeline", "link", "group"),
    *("asked_ns", "late_ns", "queued_ns", "backward_end_ns", "after_backward"),
)


@once_per_run
def collective_facts(run: Run) -> tuple[Fields, ...]:
    """For each trace its collectives whose execution time is known, in order of start; times by the trace's own clock.

    Fields:

    - `index` (of `overlaplab.collectives`), `kind`, `what` (see `purposes`), `start_ns`, `end_ns`
    - `late_rank` (objects): the rank that arrived last, by more than the clocks may differ; None where unknown
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
    table: Fields = {str(name): column.to_numpy() for name, column in numbered_arrivals(run).items() if name != "rank"}
    late = _late_ranks(run, table)
    table |= {"late_rank": or_none(late, late >= 0), "matched": table["last_ns"] != UNKNOWN_NS}
    rows_of = [np.flatnonzero(table["trace"] == place) for place in range(len(run.traces))]
    tables = [_trace_facts(run, place, take_rows(table, rows)) for place, rows in enumerate(rows_of)]
    avoidable = _avoidable_delays(table, rows_of, tables)
    facts = []
    for place, (trace, rows) in enumerate(zip(run.traces, rows_of, strict=True)):
        fields = tables[place] | take_rows(avoidable, rows)
        fields = take_rows(fields, np.flatnonzero(fields["start_ns"] != UNKNOWN_NS))
        moves = np.where(fields["matched"], fields["moves_ns"], fields["start_ns"])
        moments = {"start_ns": fields["start_ns"], "end_ns": fields["end_ns"], "moves_ns": moves}
        fields |= {name: moment + int(corrections(run)[place]) for name, moment in moments.items()}
        facts.append(take_rows(_edges(trace, fields), np.argsort(fields["start_ns"], kind="stable")))
    return tuple(facts)


def _late_ranks(run: Run, table: Fields) -> Integers:
    """The rank that arrived last at each collective; -1 where unknown, or where the clocks may differ by as much."""
    groups, trace, arrived = Groups(table["match"]), table["trace"], came_at_ns(table)
    ranks = np.array([-1 if source.rank is None else source.rank for source in run.traces], dtype=np.int64)[trace]
    error = groups.spread(np.maximum, clocks(run)["error_ns"].to_numpy(np.int64)[trace])
    latest = groups.spread(np.maximum, arrived)
    sure = latest - groups.spread(np.minimum, arrived) > error
    last = groups.spread(np.maximum, np.where(sure & (arrived == latest), ranks, -1))
    last = np.where(table["last_ns"] != UNKNOWN_NS, last, -1)
    kernels = message_kernels(table)
    if (kernels < 0).all():
        return last
    of_kernel = Groups(kernels)
    last_of_all = of_kernel.spread(np.maximum, np.where(latest == of_kernel.spread(np.maximum, latest), last, -1))
    return np.where(kernels < 0, last, last_of_all)


def _trace_facts(run: Run, place: int, table: Fields) -> Fields:
    """One trace's rows with purposes, and how late and how long queued this rank was; by the first rank's clock."""
    trace, offset = run.traces[place], int(corrections(run)[place])
    table |= {str(name): column.to_numpy()[table["row"]] for name, column in purposes(trace).items()}
    starts, earliest, ready = table["start_ns"] + offset, earliest_starts(trace)[table["row"]], table["ready_ns"]
    ran = table["start_ns"] != UNKNOWN_NS
    since = np.where((ready != UNKNOWN_NS) & ran, np.maximum(ready, _gathered_since(table, starts)), earliest)
    since = np.minimum(since, earliest)
    late = earliest - since - lengths_within(activity(trace).communication, since, earliest)
    emulated = run.manifest is not None and run.manifest.emulated_link is not None
    table["axis"] = group_axes(table["group_description"])
    between_stages = (table["axis"] == PIPELINE) | ((table["axis"] == "") & bool(stage_labels(trace)))
    table["of_pipeline"] = between_stages & (table["kind"] == "send_recv")
    table["link"] = np.full_like(starts, -1) if emulated or rule_of(trace) is not Rule.GPU else table["stream"]
    busy = np.where(ran, _busy_until(table, starts, table["end_ns"] + offset), UNKNOWN_NS)
    queued = np.where(busy > earliest, busy - earliest, 0)
    host = table["host_ns"]
    begins = np.array([window.host_start_ns for window in step_windows(trace)], dtype=np.int64)
    launched = np.where(host != UNKNOWN_NS, host, starts - offset)  # a step's first gather may run before its window
    by_step = np.searchsorted(begins, launched, side="right")
    return table | {"asked_ns": earliest, "late_ns": late, "queued_ns": queued, "launching_step": by_step}


def _busy_until(table: Fields, starts: Integers, ends: Integers) -> Integers:
    """For each collective until when it may have queued behind another; `UNKNOWN_NS` for none.

    That is the last end before its start, of one that shares its link or its group. Others work at once, unless it
    began where one of them ended.
    """
    last = _last_before(starts, ends)
    until = np.where(starts - last <= GRAIN_NS, last, UNKNOWN_NS)
    for shared in (table["link"], table["group"]):
        for value in set(shared.tolist()) - {""}:
            sharing = shared == value
            until[sharing] = np.maximum(until[sharing], _last_before(starts[sharing], ends[sharing]))
    return until


def _last_before(starts: Integers, ends: Integers) -> Integers:
    """For each start the last end until then, `UNKNOWN_NS` for none."""
    order = np.sort(ends)
    return take_values(order, np.searchsorted(order, starts, side="right") - 1, UNKNOWN_NS)


@once_per_trace
def earliest_starts(trace: Trace) -> Integers:
    """When each row of `recorded_collectives` could have started, given its launch; absolute.

    On a GPU: when the compute stream had reached the launch. `UNKNOWN_NS` if it has no start.
    """
    starts, launched = (recorded_collectives(trace)[name].to_numpy(np.int64) for name in ("start_ns", "launch_ns"))
    has_launch = launched != UNKNOWN_NS
    possible = np.where(has_launch, launched, starts)
    if rule_of(trace) is Rule.GPU and has_launch.any():
        ran, moments = executions(trace), zip(possible.tolist(), has_launch, strict=True)
        possible = np.array([max(at, ran.done_ns(at)) if sure else at for at, sure in moments], dtype=np.int64)
    return np.asarray(np.minimum(possible, starts), dtype=np.int64)


def _gathered_since(table: Fields, starts: Integers) -> Integers:
    """For each gather when the previous one began: the link's idle time before that was the previous one's to use."""
    gathers = np.flatnonzero((table["role"] == Role.GATHER) & (table["start_ns"] != UNKNOWN_NS))
    gathers = gathers[np.argsort(starts[gathers], kind="stable")]
    since = np.full(len(starts), UNKNOWN_NS, dtype=np.int64)
    since[gathers[1:]] = starts[gathers[:-1]]
    return since


def _avoidable_delays(table: Fields, rows_of: Sequence[NDArray[np.intp]], tables: Sequence[Fields]) -> Fields:
    """`late_ns` and `queued_ns` of whole collectives: how much earlier the last rank could have arrived.

    A rank's own delay matters only if it arrives last. Unmatched collectives keep the rank's own values.
    """
    late, queued = np.zeros_like(table["match"]), np.zeros_like(table["match"])
    for rows, fields in zip(rows_of, tables, strict=True):
        late[rows], queued[rows] = fields["late_ns"], fields["queued_ns"]
    groups, arrived = Groups(table["match"]), table["arrived_ns"]
    last = groups.spread(np.maximum, arrived)
    last_in_time = groups.spread(np.maximum, arrived - late)
    last_on_free_link = groups.spread(np.maximum, arrived - late - queued)
    return {
        "late_ns": np.where(table["matched"], last - last_in_time, late),
        "queued_ns": np.where(table["matched"], last_in_time - last_on_free_link, queued),
    }


def _edges(trace: Trace, table: Fields) -> Fields:
    """The fields of `collective_facts`: `_FIELDS`, and `gradients`, `edge` and `at_once`, found here."""
    compute = activity(trace).compute
    starts, ends, earliest = table["start_ns"], table["end_ns"], table["asked_ns"]
    role = table["role"]
    gathers, gradients = role == Role.GATHER, np.isin(role, list(GRADIENTS))
    purposeless = ~gradients & ~gathers
    alone = lengths_within(compute, earliest, ends) == 0
    begins = np.array([window.start_ns for window in step_windows(trace)], dtype=np.int64)
    step = np.searchsorted(begins, starts, side="right")
    gather_ends = np.where(gathers, ends, np.iinfo(np.int64).max)
    first_gather_end = Groups(table["launching_step"]).spread(np.minimum, gather_ends)
    similar = grouped_by(step, number_texts(table["group"]), number_texts(table["kind"]))
    latest = starts == similar.spread(np.maximum, starts)
    some_hidden = similar.spread(np.logical_or, lengths_within(compute, starts, ends) > 0)
    is_last_gradient = gradients & (ends >= table["backward_end_ns"])
    is_first_gather = gathers & (earliest < first_gather_end)
    is_last_unknown = purposeless & (role == Role.OTHER) & latest & some_hidden
    edge = is_last_gradient | is_first_gather | is_last_unknown
    documented = {name: table[name] for name in _FIELDS}
    return documented | {"gradients": gradients, "edge": edge, "at_once": purposeless & alone & ~edge}
