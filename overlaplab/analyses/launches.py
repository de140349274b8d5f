"""Which collectives a rank launched, and when each ran.

Who tells depends on the recording: the engine's labels tell kind and bytes; without them, operators and kernels tell
the kind by their names, and nothing tells the bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.analyses.labels import Label, Span
from overlaplab.events import Kind, Trace, classify, lanes, matching, rule_of, runtime_calls
from overlaplab.vocabulary import Rule, collective_kind

__all__ = ["Enclosing", "Launch", "bytes_of", "launches", "spans_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch(Span):
    """A collective, as the host's range that launched it."""

    kind: str | None = None
    """`all_reduce`, `all_gather`, …; None where nothing tells."""
    bytes: int | None = None
    """Of the full tensor; None where nothing tells."""
    ran: tuple[int, int] | None = None
    """Start and end of the communication itself; None where the trace does not tell."""


def launches(trace: Trace, labels: Sequence[Label]) -> tuple[Launch, ...]:
    """The trace's collectives in order of launch, given its labels (see `labels_of`)."""
    if rule_of(trace) is Rule.GPU:
        found = _on_device(trace, labels)
    elif any(label.word == "launch" for label in labels):
        found = _on_link(labels)
    else:
        found = _on_gloo(trace, labels)
    return tuple(sorted(found, key=lambda launch: launch.start_ns))


def bytes_of(found: Sequence[Launch]) -> int | None:
    """The sum of these collectives' bytes; None where there is none, or one tells nothing."""
    known = [launch.bytes for launch in found if launch.bytes is not None]
    return sum(known) if known and len(known) == len(found) else None


def spans_of(trace: Trace) -> pd.DataFrame:
    """Every event's `start_ns`, `end_ns` (absolute) and `lane`."""
    starts = trace.events["ts_ns"]
    return pd.DataFrame({"start_ns": starts, "end_ns": starts + trace.events["dur_ns"], "lane": lanes(trace.events)})


def _on_link(labels: Sequence[Label]) -> Iterator[Launch]:
    """The emulated link: a call on the caller's thread, joined by its number with what the link's thread did."""
    carried = {label.fields["seq"]: label for label in labels if label.word == "comm"}
    for call in labels:
        if call.word != "launch":
            continue
        comm = carried.get(call.fields["seq"])
        yield Launch(
            start_ns=call.start_ns,
            end_ns=call.end_ns,
            lane=call.lane,
            kind=comm.fields.get("kind") if comm else None,
            bytes=_told_bytes(comm),
            ran=(comm.start_ns, comm.end_ns) if comm else None,
        )


def _on_gloo(trace: Trace, labels: Sequence[Label]) -> Iterator[Launch]:
    """Plain gloo: c10d's operators, and around them the engine's labels, which also tell the bytes."""
    spans = spans_of(trace)
    names = trace.events["name"]
    called = matching(names, lambda text: text.startswith("c10d::"))
    calls = spans[called].assign(name=names[called].astype(str))
    ran = spans.loc[matching(names, lambda text: text.startswith("gloo:")), ["start_ns", "end_ns"]].to_numpy()
    pairs = _in_order(calls["start_ns"].to_numpy(), ran)
    labelled = Enclosing([label for label in labels if label.word == "collective"])
    told: set[int] = set()
    columns = (calls[column].tolist() for column in ("start_ns", "end_ns", "lane", "name"))
    for (start, end, lane, name), bounds in zip(zip(*columns, strict=True), pairs, strict=True):
        label = labelled.of(lane, start)
        if label is not None:
            told.add(label.start_ns)
        yield Launch(
            start_ns=start,
            end_ns=end,
            lane=lane,
            kind=label.fields["kind"] if label else collective_kind(name),
            bytes=_told_bytes(label),
            ran=bounds,
        )
    for label in labelled.labels:  # where operators are not recorded
        if label.start_ns not in told:
            yield _labelled(label, None)


def _in_order(called: NDArray[np.int64], ran: NDArray[np.int64]) -> list[tuple[int, int] | None]:
    """For every call, in order of time, when its collective ran: gloo starts them in the order of the calls.

    A recording may begin after a call whose collective it holds, and end before the collective of a call. So the
    first few that ran are left out, as few as let none start before its call, and the last calls may have none.
    """
    for skipped in range(len(ran) + 1):
        rest = ran[skipped:]
        if len(rest) <= len(called) and (rest[:, 0] >= called[: len(rest)]).all():
            found: list[tuple[int, int] | None] = [(int(start), int(end)) for start, end in rest]
            return found + [None] * (len(called) - len(rest))
    raise AssertionError("an empty rest always fits")


def _on_device(trace: Trace, labels: Sequence[Label]) -> Iterator[Launch]:
    """Communication's device events, by the host's call that launched each; those in one label are one collective."""
    events = trace.events
    kinds = classify(trace)
    spans = spans_of(trace).assign(correlation=events["correlation"], name=events["name"].astype(str))
    calls = runtime_calls(events)
    hosts = pd.DataFrame({"correlation": calls["correlation"], "at_ns": calls["ts_ns"], "host": lanes(calls)})
    found = spans[kinds == Kind.COMMUNICATION].merge(hosts.drop_duplicates("correlation"), on="correlation")
    labelled = Enclosing([label for label in labels if label.word == "comm"], any_lane=True)
    bounds: dict[int, tuple[int, int]] = {}
    columns = (found[column].tolist() for column in ("at_ns", "host", "start_ns", "end_ns", "name"))
    for at, lane, start, end, name in zip(*columns, strict=True):
        label = labelled.of(lane, at)
        if label is None:
            yield Launch(start_ns=at, end_ns=at, lane=lane, kind=collective_kind(name), ran=(start, end))
        else:
            first, last = bounds.get(label.start_ns, (start, end))
            bounds[label.start_ns] = (min(first, start), max(last, end))
    for label in labelled.labels:
        yield _labelled(label, bounds.get(label.start_ns))


def _labelled(label: Label, ran: tuple[int, int] | None) -> Launch:
    return Launch(
        start_ns=label.start_ns,
        end_ns=label.end_ns,
        lane=label.lane,
        kind=label.fields.get("kind"),
        bytes=_told_bytes(label),
        ran=ran,
    )


def _told_bytes(label: Label | None) -> int | None:
    return int(label.fields["bytes"]) if label and "bytes" in label.fields else None


class Enclosing:
    """Which of some labels, not nested in each other, encloses a moment of a thread."""

    def __init__(self, labels: Sequence[Label], *, any_lane: bool = False) -> None:
        self.labels = labels
        self._any_lane = any_lane
        self._by_lane: dict[int, list[Label]] = {}
        for label in labels:
            self._by_lane.setdefault(self._lane(label.lane), []).append(label)
        self._starts = {lane: [label.start_ns for label in found] for lane, found in self._by_lane.items()}

    def of(self, lane: int, at_ns: int) -> Label | None:
        """The label around this moment of the thread, if there is one."""
        lane = self._lane(lane)
        place = bisect_right(self._starts.get(lane, []), at_ns) - 1
        label = self._by_lane[lane][place] if place >= 0 else None
        return label if label and at_ns <= label.end_ns else None

    def _lane(self, lane: int) -> int:
        return -1 if self._any_lane else lane
