"""What a stage of a pipeline does with each microbatch: by labels, by torch's ranges, or by the messages between."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from overlaplab.costs.pipeline import BACKWARD, FORWARD, INPUT, WEIGHT
from overlaplab.events import Trace, once_per_trace, step_windows
from overlaplab.events.rows import host_ranges
from overlaplab.evidence.ddp import autograd_functions, join_ranges, optimizer_steps
from overlaplab.evidence.executions import executions
from overlaplab.evidence.labels import Label, Span, engine_labels
from overlaplab.evidence.launches import event_spans
from overlaplab.evidence.recorded import recorded_collectives
from overlaplab.evidence.selection import is_inside, launched_in
from overlaplab.intervals import Integers, Intervals
from overlaplab.vocabulary import STAGE_WORDS

_ACTION = re.compile(r"PP:(?P<stage>\d+)(?P<kind>[FBIW])(?P<microbatch>\d+)")
"""A range in torch/distributed/pipelining/schedules.py, of schedules with several stages on each rank."""
_KINDS = {"F": FORWARD, "B": BACKWARD, "I": INPUT, "W": WEIGHT}
_LITTLE = 0.01
"""This share of what is computed between two messages may stand apart from the pass at either end."""
_Way = tuple[str, str]
"""The sender and the receiver of a message: ranks, with -1 for the rank itself, or of gloo places in the group."""


@once_per_trace
def stage_labels(trace: Trace) -> tuple[Label, ...]:
    """The labels of actions, in order of start: the engine's, by torch's ranges, or by the messages between them.

    Those by messages name no stage, as a rank has only one, but how many `neighbours` it has.
    """
    labels = tuple(label for label in engine_labels(trace) if label.word in STAGE_WORDS)
    if labels or not (recorded_collectives(trace)["kind"] == "send_recv").any():
        return labels
    return tuple(_named_actions(trace)) or tuple(_actions_by_messages(trace))


def _named_actions(trace: Trace) -> Iterator[Label]:
    """The actions that torch's ranges name, each from its first computation to its last: a range begins with a wait."""
    spans = event_spans(trace, host_ranges(trace.events, _ACTION.fullmatch)).sort_values("start_ns")
    computed = executions(trace).host_compute
    for start_ns, end_ns, thread, event in spans.to_numpy().tolist():
        action = _ACTION.fullmatch(str(trace.events["name"].iloc[event]))
        inside = computed[np.searchsorted(computed[:, 0], start_ns) : np.searchsorted(computed[:, 0], end_ns)]
        if action is not None and len(inside):
            fields = {name: action[name] for name in ("stage", "microbatch")}
            span = Span(start_ns=int(inside[0, 0]), end_ns=int(inside[-1, 1]) + 1, thread=thread)
            yield Label.make(span, f"stage_{_KINDS[action['kind']]}", fields)


def _actions_by_messages(trace: Trace) -> list[Label]:
    """The actions of a rank with one stage, as in torch's GPipe and 1F1B, in order of start.

    Between two messages it computes one pass or two; where autograd evaluates functions, a backward pass. Only of steps
    whose messages, up to the optimizer's step, pass results on (see `_are_passed_on`); none if those of most do not.
    """
    table = recorded_collectives(trace)
    table = table[table["kind"] == "send_recv"].sort_values("host_ns", kind="stable")
    called, ways = table["host_ns"].to_numpy(np.int64), [*_ways(table)]
    if not table["kind_known"].all() or any(sender == receiver for sender, receiver in ways):
        return []
    functions, updates, computed = autograd_functions(trace), optimizer_steps(trace), executions(trace).host_compute
    labels: list[Label] = []
    refused = 0
    for step in step_windows(trace):
        begin, over = step.host_start_ns, step.host_end_ns
        over = min([over, *(each.start_ns for each in launched_in(updates, step))])
        first, last = np.searchsorted(called, (begin, over))
        evaluated = functions[(begin <= functions["start_ns"]) & (functions["end_ns"] <= over)]
        if evaluated.empty:
            continue
        backwards = join_ranges(evaluated, np.searchsorted(called[first:last], evaluated["start_ns"]))
        inside = (begin <= computed[:, 0]) & (computed[:, 1] <= over)
        forwards = _forward_passes(computed[inside], called[first:last], backwards)
        if not _are_passed_on(ways[first:last], called[first:last], forwards, backwards):
            refused += 1
            continue
        for number, (forward, backward) in enumerate(zip(forwards, backwards, strict=True)):
            fields = {"microbatch": str(number), "neighbours": str(len(set(ways[first:last])) // 2)}
            labels.append(Label.make(forward, f"stage_{FORWARD}", fields))
            labels.append(Label.make(backward, f"stage_{BACKWARD}", fields))
    are_enough = len(step_windows(trace)) >= 2 * refused
    return sorted(labels, key=lambda label: label.start_ns) if are_enough else []


def _ways(messages: pd.DataFrame) -> Iterator[_Way]:
    """Yield each message's way; gloo's groups of messages are called `GROUP:SENDER-RECEIVER`."""
    for group, source, destination in zip(messages["group"], messages["source"], messages["destination"], strict=True):
        if source < 0 and destination < 0:
            sender, _, receiver = str(group).rpartition(":")[2].partition("-")
            yield sender, receiver
        else:
            yield str(source), str(destination)


def _forward_passes(computed: Intervals, called: Integers, backwards: Sequence[Span]) -> list[Span]:
    """The forward passes: what else is computed between two messages, of that as many as backward passes, the longest.

    Each without the little that is computed before and after it, perhaps a wait apart.
    """
    starts, ends = np.array([[span.start_ns, span.end_ns] for span in backwards], np.int64).T
    before = np.searchsorted(starts, computed[:, 0], side="right") - 1
    computed = computed[(before < 0) | (computed[:, 0] > ends[before])]
    borders = np.sort([*called.tolist(), *(each.start_ns for each in backwards)])
    pieces = pd.DataFrame(computed, columns=["start_ns", "end_ns"])
    pieces["weight"] = (pieces["end_ns"] - pieces["start_ns"]).clip(1)
    pieces["stretch"] = np.searchsorted(borders, computed[:, 0])
    by = pieces.groupby("stretch")["weight"]
    done, pieces["whole"] = by.cumsum(), by.transform("sum")
    little = _LITTLE * pieces["whole"]
    pieces = pieces[(done > little) & (done - pieces["weight"] < pieces["whole"] - little)]
    stretches = pieces.groupby("stretch").agg({"start_ns": "min", "end_ns": "max", "whole": "first"})
    longest = stretches.nlargest(len(backwards), "whole")[["start_ns", "end_ns"]]
    thread = backwards[0].thread
    return [Span(start_ns=start, end_ns=end + 1, thread=thread) for start, end in sorted(longest.to_numpy().tolist())]


def _are_passed_on(ways: Sequence[_Way], called: Integers, forwards: Sequence[Span], backwards: Sequence[Span]) -> bool:
    """Whether the messages of a step are those between stages.

    Each neighbour sends and receives one per microbatch, none within a backward pass. One gets what the forward passes
    computed, and its answers are there before the backward passes; of the other it is the reverse.
    """
    moments: dict[_Way, list[int]] = {}  # in order of the first one each way
    for way, at_ns in zip(ways, called.tolist(), strict=True):
        moments.setdefault(way, []).append(at_ns)
    if {len(moments.get(way[::-1], ())) for way in moments} != {len(backwards)} or len(forwards) != len(backwards):
        return False
    if any(is_inside(backwards, at_ns) for at_ns in called.tolist()):
        return False
    neighbours = len(moments) // 2
    starts = sorted(span.start_ns for span in (*forwards, *backwards))

    def follows(sent_ns: int, span: Span) -> bool:
        """Whether a message is sent after the pass, and before the next one begins."""
        after = starts[bisect_left(starts, span.end_ns) :][:1]
        return span.end_ns <= sent_ns <= min(after, default=sent_ns)

    following, preceding = 0, 0
    while moments:
        way = next(iter(moments))
        there, back = moments.pop(way), moments.pop(way[::-1])
        each = list(zip(forwards, backwards, there, back, strict=True))
        following += all(follows(sent, forward) and came <= backward.start_ns for forward, backward, sent, came in each)
        preceding += all(came <= forward.start_ns and follows(sent, backward) for forward, backward, came, sent in each)
    return following <= 1 and preceding <= 1 and following + preceding == neighbours
