"""Gathers from FSDP2's own ranges, in any trace (torch/distributed/fsdp/_fully_shard).

FSDP2 records when it gathers, but not when it frees: `post_forward` and `post_backward_reshard` occur whether or not
they free. A unit was freed if it is gathered again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from overlaplab.costs.memory import gathered_bytes, reduced_bytes
from overlaplab.evidence.executions import Executions, bounds_of
from overlaplab.evidence.gathers import Gather
from overlaplab.evidence.labels import Label, Ordered, Span
from overlaplab.evidence.launches import Launch, bytes_of
from overlaplab.manifest import Manifest
from overlaplab.vocabulary import FSDP2_ROOT

__all__ = ["Passes", "fsdp2_gathers", "fsdp2_scatters", "sized", "unit_sizes"]


class Passes:
    """The backward passes of a trace. Whatever follows one belongs to the next microbatch."""

    def __init__(self, ranges: Sequence[Label]) -> None:
        self._begun = [label.start_ns for label in ranges if label.word == "pre_backward"]
        self._ended = [label.end_ns for label in ranges if label.word == "root_post_backward_callback"]

    def before(self, at_ns: int) -> int:
        """How many had ended by then."""
        return bisect_right(self._ended, at_ns)

    def within(self, at_ns: int) -> bool:
        """Whether one had begun and not ended by then."""
        begun, ended = bisect_left(self._begun, at_ns), self.before(at_ns)
        return begun > 0 and (ended == 0 or self._begun[begun - 1] >= self._ended[ended - 1])


def fsdp2_gathers(ranges: Sequence[Label], ran: Executions) -> list[Gather]:
    """The gathers in a trace's FSDP2 ranges (`fsdp2_ranges_of`), in order of launch.

    There is one for each `all_gather` that launched a collective; if no launch is recorded, one for each `all_gather`.
    `microbatch` is the number of backward passes that ended before, from the trace's start. Once a backward pass has
    begun, gathers are for it. The use begins after `all_gather_copy_out`. The unit is freed at the end of the last
    `post_forward` or `post_backward_reshard` before it is gathered again; if it is never gathered again, at the end of
    the last `post_backward_reshard`.
    """
    gathered = [label for label in ranges if label.word == "all_gather"]
    launching = [label for label in gathered if ran.inside(label)]
    passes = Passes(ranges)
    words = Ordered(ranges, lambda label: (_unit(label), label.word))
    gathers: list[Gather] = []
    next_ns: dict[str, float] = {}
    for label in reversed(launching or gathered):
        unit = _unit(label)
        gathers.append(_gather(label, next_ns.get(unit, inf), words, passes, ran))
        next_ns[unit] = label.start_ns
    return gathers[::-1]


def fsdp2_scatters(ranges: Sequence[Label], ran: Executions) -> list[Label]:
    """The ranges that launch the reduction of a unit's gradients; if no launch is recorded, all of that name."""
    reducing = [label for label in ranges if label.word == "post_backward_reduce"]
    return [label for label in reducing if ran.inside(label)] or reducing


def unit_sizes(
    manifest: Manifest | None, ranges: Sequence[Label], *, reduced: bool = False
) -> Callable[[str], int | None]:
    """A function that gives a unit's bytes from the manifest, by name; None for a unit that it does not name.

    The bytes are those that are gathered, or, if `reduced`, those of the gradients that are sent. The root holds what
    no other unit does, so its bytes follow if those of all other units are known.
    """
    named = {unit.name: unit.bytes for unit in manifest.units} if manifest else {}
    others = {_unit(label) for label in ranges} - {FSDP2_ROOT}
    if named and FSDP2_ROOT not in named and others <= named.keys():
        named[FSDP2_ROOT] = sum(named.values()) - sum(named[unit] for unit in others)
    if reduced and manifest is not None and manifest.reduce_dtype is not None:
        gathered, sent = gathered_bytes(manifest), reduced_bytes(manifest)
        named = {unit: size * sent // gathered for unit, size in named.items()} if gathered and sent else {}
    return named.get


def sized(collectives: Sequence[Launch], ranges: Sequence[Label], manifest: Manifest | None) -> list[Launch]:
    """The collectives; those that FSDP2 launched without known bytes get their units' (see `unit_sizes`)."""
    size_of = {
        "all_gather": unit_sizes(manifest, ranges),
        "post_backward_reduce": unit_sizes(manifest, ranges, reduced=True),
    }
    around = Ordered([label for label in ranges if label.word in size_of], lambda label: label.thread)
    return [
        replace(launch, bytes=size_of[label.word](_unit(label)))
        if launch.bytes is None
        and launch.kind != "all_reduce"
        and (label := around.holding(launch.thread, launch.start_ns))
        else launch
        for launch in collectives
    ]


def _unit(label: Label) -> str:
    return label.fields["unit"]


def _gather(label: Label, next_ns: float, words: Ordered[Label], passes: Passes, ran: Executions) -> Gather:
    at = label.start_ns
    collectives = ran.inside(label)
    gather = Gather(
        unit=_unit(label),
        microbatch=passes.before(at),
        phase="backward" if passes.within(at) else "forward",
        bytes=bytes_of(collectives),
        launch=label,
    )
    copied = _first(words, gather, "all_gather_copy_out", at, next_ns)
    if copied is not None:
        gather.blocked = _blocked(label, collectives, copied) if bounds_of(collectives) else ()
        gather.first_use_ns = copied.end_ns
        _uses(gather, copied, next_ns, words)
    _free(gather, next_ns, words)
    return gather


def _blocked(label: Label, collectives: Sequence[Launch], copied: Label) -> tuple[Span, ...]:
    """A synchronous call waits in the range that launches it, an asynchronous one in the range that copies out."""
    bounds = bounds_of(collectives)
    if bounds is not None and label.end_ns < bounds[1]:
        return (copied,)
    called = max((launch.end_ns for launch in collectives), default=label.end_ns)
    return Span(start_ns=called, end_ns=label.end_ns, thread=label.thread), copied


def _uses(gather: Gather, copied: Label, next_ns: float, words: Ordered[Label]) -> None:
    after = copied.start_ns
    if gather.phase == "forward":
        ends = _first(words, gather, "post_forward", after, next_ns)
        begins = _first(words, gather, "pre_backward", after, next_ns)
        gather.last_use_ns = ends.start_ns if ends else None
        if begins is None or begins.end_ns > next_ns:  # the range itself gathers again
            return
        gather.backward_first_use_ns = begins.end_ns
        after = begins.start_ns
    ends = _first(words, gather, "post_backward_accumulate", after, next_ns)
    if ends is not None:
        gather.use("backward", ends.start_ns, begins=False)


def _first(words: Ordered[Label], gather: Gather, word: str, after: int, before: float) -> Label | None:
    """The first range of the gather's unit with this word that starts between two moments."""
    label = words.first_after((gather.unit, word), after)
    return label if label and label.start_ns < before else None


def _free(gather: Gather, next_ns: float, words: Ordered[Label]) -> None:
    at = gather.launch.start_ns
    frees = [words.last_before((gather.unit, "post_backward_reshard"), next_ns)]
    if next_ns < inf:
        frees.append(words.last_before((gather.unit, "post_forward"), next_ns))
    free = max((f for f in frees if f and f.start_ns > at), key=lambda f: f.start_ns, default=None)
    if free is not None:
        gather.free_ns = free.end_ns
        gather.free_phase = "forward" if free.word == "post_forward" else "backward"
