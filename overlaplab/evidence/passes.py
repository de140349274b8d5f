"""Forward passes, backward passes and optimizer steps of a trace, with labels or without."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from overlaplab.events import Trace, once_per_trace, step_windows
from overlaplab.evidence.ddp import autograd_passes, forward_passes, optimizer_steps
from overlaplab.evidence.executions import Executions, executions
from overlaplab.evidence.labels import Label, Span, engine_labels

PASSES = ("forward", "backward", "optimizer")


@once_per_trace
def pass_labels(trace: Trace) -> tuple[Label, ...]:
    """The labels `forward`, `backward` and `optimizer`, in order of start, as the engine writes them.

    A trace without a label `forward` gets those of DDP, by torch's own ranges: a forward pass is a range
    `DistributedDataParallel.forward`. A backward pass lasts from the first of autograd's functions after it to the end
    of the last one and of the buckets launched by the Recorder's labels within, for which DDP waits before it returns.
    It sends gradients (`sync=1`) if there are such buckets. Empty without DDP, and without the Recorder's labels.
    """
    labels = engine_labels(trace)
    if any(label.word == "forward" for label in labels):
        return tuple(label for label in labels if label.word in PASSES)
    launches = [label for label in labels if label.word == "bucket_launch"]
    forwards = forward_passes(trace) if launches else ()
    if not forwards:
        return ()
    backwards = _number_passes(trace, "backward", autograd_passes(trace))
    passes = [
        *_number_passes(trace, "forward", forwards),
        *_extend_to_buckets(backwards, launches, executions(trace)),
        *update_labels(trace),
    ]
    return tuple(sorted(passes, key=lambda label: label.start_ns))


def update_labels(trace: Trace) -> tuple[Label, ...]:
    """The labels `optimizer`, by torch's own ranges, which any loop has."""
    return tuple(_label("optimizer", span, {}) for span in optimizer_steps(trace))


def _number_passes(trace: Trace, word: str, spans: Iterable[Span]) -> Iterator[Label]:
    """With `microbatch`, the pass's place in its step."""
    starts = [window.start_ns for window in step_windows(trace)]
    before: Counter[int] = Counter()
    for span in spans:
        step = bisect_right(starts, span.start_ns)
        yield _label(word, span, {"microbatch": str(before[step])})
        before[step] += 1


def _extend_to_buckets(backwards: Iterable[Label], launches: Sequence[Label], ran: Executions) -> Iterator[Label]:
    starts = [label.start_ns for label in launches]
    for backward in backwards:
        within = launches[bisect_left(starts, backward.start_ns) : bisect_right(starts, backward.end_ns)]
        ends = [bounds[1] for label in within if (bounds := ran.communication_span(label)) is not None]
        fields = backward.fields | {"sync": "1" if within else "0"}
        yield _label("backward", backward, fields, end_ns=max([backward.end_ns, *ends]))


def _label(word: str, span: Span, fields: dict[str, str], *, end_ns: int | None = None) -> Label:
    end_ns = span.end_ns if end_ns is None else end_ns
    return Label(start_ns=span.start_ns, end_ns=end_ns, thread=span.thread, word=word, fields=fields)
