"""Anybody's pipeline, by its messages alone: how long each rank computes nothing while it waits for one.

Without labels of stages' actions it is unknown which microbatch a rank works on, and what of its waits is the
schedule's own, what an unequal stage's, and what sending's; `pipeline` tells these of labelled runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.axes import PIPELINE
from overlaplab.events import Run, Trace, Window, activity
from overlaplab.evidence.call_metadata import group_axes
from overlaplab.evidence.clocks import corrections
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.evidence.selection import rows_by_rank
from overlaplab.evidence.waits import arrivals
from overlaplab.intervals import clip, intersect, subtract, total, union
from overlaplab.selection import EVERYTHING, Selection

_COLUMNS = {
    **dict.fromkeys(("rank", "place", "step", "span_ns", "busy_ns", "bubble_ns"), "Int64"),
    "bubble": "Float64",
    **dict.fromkeys(("wait_ns", "transfer_ns", "sending_ns", "other_ns", "fill_ns", "received", "sent"), "Int64"),
}


def pipeline_waits(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank and step in which the rank had messages along the pipeline, by its groups' descriptions.

    Columns: `rank`; `place` (along the pipeline, from 0; null where the trace does not list the group's members);
    `step`; `span_ns` (from the first to the last computation in the step's window); `busy_ns` (the computation in it);
    `bubble_ns` (in it nothing is computed while a message is received), `bubble` (the same ÷ `span_ns`) and its parts:
    `wait_ns` (the sender had not begun) and `transfer_ns` (the rest), both null where an end of a message is not known;
    `sending_ns` (nothing is computed, and messages are sent alone); `other_ns` (the rest of the span); `fill_ns`
    (before the span nothing is computed while the step's own first messages are received); `received`, `sent`
    (messages; both null where the trace does not tell which are received: then all count as received).

    A batch of messages is one kernel: it receives if one of its messages does. Empty without such messages, and for
    ranks whose device activity was not recorded. Raises `OverlaplabError` for an unknown rank or step.
    """
    rows = rows_by_rank(run, selection, partial(_trace_rows, run))
    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype(_COLUMNS)


def _trace_rows(run: Run, trace: Trace, steps: Sequence[Window]) -> Iterator[dict[str, Any]]:
    number = run.traces.index(trace)
    messages = _messages(run, number)
    if messages.empty:
        return
    compute = activity(trace).compute
    receives, waits = (union(*messages.loc[messages["receives"], list(ends)].to_numpy().T) for ends in (_RAN, _WAITED))
    sends = union(*messages[list(_RAN)].to_numpy().T)
    launched = messages["host_ns"].where(messages["host_ns"] != UNKNOWN_NS, messages["start_ns"]).to_numpy(np.int64)
    order = np.argsort(launched, kind="stable")
    moments = launched[order]
    message = {str(name): column.to_numpy()[order] for name, column in messages.items()}
    for step in steps:
        inside = clip(compute, step.start_ns, step.end_ns)
        ours = slice(*np.searchsorted(moments, (step.host_start_ns, step.host_end_ns)))
        if ours.start == ours.stop or not len(inside):
            continue
        begin, end = int(inside[0, 0]), int(inside[-1, 1])
        idle = subtract(clip(union([begin], [end]), begin, end), inside)
        bubble = intersect(idle, receives)
        all_known = message["is_known"][ours].all()
        wait = total(intersect(bubble, waits)) if all_known else None
        begun, ended = message["start_ns"][ours], message["end_ns"][ours]
        first = message["receives"][ours] & (begun < begin)
        before = subtract(union(begun[first], np.minimum(ended[first], begin)), compute)
        sending = total(subtract(intersect(idle, sends), receives))
        tells_ends = bool(message["tells_ends"][ours].all())
        yield {
            "place": _place(trace, message["group"][ours]),
            "step": step.step,
            "span_ns": end - begin,
            "busy_ns": total(inside),
            "bubble_ns": total(bubble),
            "bubble": total(bubble) / (end - begin),
            "wait_ns": wait,
            "transfer_ns": None if wait is None else total(bubble) - wait,
            "sending_ns": sending,
            "other_ns": total(idle) - total(bubble) - sending,
            "fill_ns": total(before),
            "received": int((message["source"][ours] >= 0).sum()) if tells_ends else None,
            "sent": int((message["destination"][ours] >= 0).sum()) if tells_ends else None,
        }


_RAN, _WAITED = ("start_ns", "end_ns"), ("start_ns", "moves_ns")
"""The columns between which a message's kernel ran, and those between which it waited for the last other end."""


def _messages(run: Run, number: int) -> pd.DataFrame:
    """A trace's messages along the pipeline, by its own clock.

    Columns: `arrivals`', and `receives` (its kernel receives, or may), `tells_ends` (the trace tells who receives),
    `is_known` (the arrival of its kernel's last end is), `moves_ns` (when that was; the start where it is unknown).
    """
    rows = arrivals(run)
    axes = group_axes(rows["group_description"].to_numpy())
    along = (axes == PIPELINE) & (rows["kind"] == "send_recv") & (rows["start_ns"] != UNKNOWN_NS)
    messages: pd.DataFrame = rows[along & (rows["trace"] == number)].copy()
    offset = int(corrections(run)[number])
    for name in ("start_ns", "end_ns", "host_ns"):
        messages[name] = messages[name].where(messages[name] == UNKNOWN_NS, messages[name] + offset)
    messages["tells_ends"] = (messages["source"] >= 0) | (messages["destination"] >= 0)
    receives = (messages["source"] >= 0) | ~messages["tells_ends"]
    messages["receives"] = receives.groupby([messages[name] for name in _RAN]).transform("any").astype(bool)
    messages["is_known"] = messages["moves_ns"] != UNKNOWN_NS
    messages["moves_ns"] = (messages["moves_ns"] + offset).where(messages["is_known"], messages["start_ns"])
    return messages


def _place(trace: Trace, groups: NDArray[np.object_]) -> int | None:
    """The rank's place among the members of the messages' group."""
    names = set(groups)
    members = [group.ranks for group in trace.groups if group.name in names and trace.rank in group.ranks]
    return None if len(members) != 1 or trace.rank is None else members[0].index(trace.rank)
