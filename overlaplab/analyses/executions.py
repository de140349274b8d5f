"""From what the host launched to what ran: which communication a launch became, and when its work was reached.

On CPU the host's time is the truth. On a GPU the host runs ahead, so readiness is device time: the end of the last
event on the compute stream that had been launched by then (DESIGN.md, "On a GPU, readiness is device time").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.analyses.labels import Label, Span
from overlaplab.events import Kind, Trace, classify, lanes, main_stream, matching, rule_of, runtime_calls
from overlaplab.vocabulary import Rule

__all__ = ["Executions", "executions"]


class Executions(Protocol):
    """Answers for one trace, in absolute ns."""

    def of_launch(self, span: Span) -> tuple[int, int] | None:
        """Start and end of the communication launched inside a host range; None where the trace does not tell."""

    def reached(self, host_ns: int) -> int:
        """When the work that the host had issued by then was done."""

    def backward(self, span: Span) -> tuple[int, int]:
        """When the backward pass labelled by the range began, and when autograd's last operation ended."""


def executions(trace: Trace, labels: Sequence[Label]) -> Executions:
    """For a trace and its engine labels (see `labels_of`)."""
    if rule_of(trace) is Rule.GPU:
        return _OnDevice(trace)
    return _OnHost(trace, labels)


class _OnHost:
    def __init__(self, trace: Trace, labels: Sequence[Label]) -> None:
        def named(prefix: str) -> pd.DataFrame:
            return spans[matching(trace.events["name"], lambda text: text.startswith(prefix))]

        spans = _spans(trace)
        self._autograd = named("autograd::engine::evaluate_function")
        self._launches = [label for label in labels if label.word == "launch"]
        self._by_seq = {
            label.fields.get("seq"): (label.start_ns, label.end_ns) for label in labels if label.word == "comm"
        }
        # Plain gloo tells no more than this: collectives start in the order of their launches.
        self._calls, ran = named("c10d::"), named("gloo:")
        self._ran = ran[["start_ns", "end_ns"]].to_numpy() if len(self._calls) == len(ran) else None

    def of_launch(self, span: Span) -> tuple[int, int] | None:
        bounds = [
            self._by_seq[label.fields.get("seq")]
            for label in self._launches
            if label.lane == span.lane
            and span.start_ns <= label.start_ns <= span.end_ns
            and label.fields.get("seq") in self._by_seq
        ]
        if self._ran is not None:
            bounds += [(int(start), int(end)) for start, end in self._ran[_starts_inside(self._calls, span)]]
        return (min(start for start, _ in bounds), max(end for _, end in bounds)) if bounds else None

    def reached(self, host_ns: int) -> int:
        return host_ns

    def backward(self, span: Span) -> tuple[int, int]:
        inside = self._autograd["start_ns"].between(span.start_ns, span.end_ns)
        ends = self._autograd.loc[inside, "end_ns"]
        return span.start_ns, int(ends.max()) if len(ends) else span.end_ns


class _OnDevice:
    def __init__(self, trace: Trace) -> None:
        events = trace.events
        kinds = classify(trace)
        spans = _spans(trace).assign(correlation=events["correlation"])
        hosts = runtime_calls(events)[["correlation", "ts_ns"]].drop_duplicates("correlation")
        hosts = hosts.rename(columns={"ts_ns": "host_ns"})
        main = main_stream(events[kinds == Kind.COMPUTE])
        on_main = (kinds == Kind.COMPUTE) & (events["stream"] == main).to_numpy()
        stream = spans[on_main].merge(hosts, on="correlation").sort_values("host_ns")
        self._communication = spans[kinds == Kind.COMMUNICATION].merge(hosts, on="correlation")
        self._hosts = stream["host_ns"].to_numpy()
        self._done = np.maximum.accumulate(stream["end_ns"].to_numpy())

    def of_launch(self, span: Span) -> tuple[int, int] | None:
        ran = self._communication[self._communication["host_ns"].between(span.start_ns, span.end_ns)]
        return (int(ran["start_ns"].min()), int(ran["end_ns"].max())) if len(ran) else None

    def reached(self, host_ns: int) -> int:
        before = int(np.searchsorted(self._hosts, host_ns)) - 1
        return int(self._done[before]) if before >= 0 else host_ns

    def backward(self, span: Span) -> tuple[int, int]:
        return self.reached(span.start_ns), self.reached(span.end_ns)


def _spans(trace: Trace) -> pd.DataFrame:
    starts = trace.events["ts_ns"]
    return pd.DataFrame({"start_ns": starts, "end_ns": starts + trace.events["dur_ns"], "lane": lanes(trace.events)})


def _starts_inside(table: pd.DataFrame, span: Span) -> NDArray[np.bool_]:
    return (table["start_ns"].between(span.start_ns, span.end_ns) & (table["lane"] == span.lane)).to_numpy()
