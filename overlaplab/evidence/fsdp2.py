"""Gathers from FSDP2's own ranges, in any trace (torch/distributed/fsdp/_fully_shard).

FSDP2 records when it gathers, but not when it frees: `post_forward` and `post_backward_reshard` occur whether or not
they free. A unit was freed if it is gathered again. FSDP2 also leaves the root unnamed, and names the units below by
their place in it, so that units of several roots may share a name.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise, zip_longest
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from overlaplab.costs.memory import gathered_bytes, reduced_bytes
from overlaplab.events import Trace, once_per_trace
from overlaplab.evidence.executions import Executions, communication_bounds, executions
from overlaplab.evidence.gathers import Gather
from overlaplab.evidence.labels import Label, Ordered, Span, parsed_ranges
from overlaplab.evidence.launches import LaunchSpan, total_bytes
from overlaplab.manifest import Manifest
from overlaplab.vocabulary import FSDP2_ROOT, fsdp2_range, unit_of_root

_CALLBACK = "root_post_backward_callback"


@once_per_trace
def fsdp2_ranges(trace: Trace) -> tuple[Label, ...]:
    """FSDP2's own ranges in order of start, as labels with the key `unit` (see `vocabulary.fsdp2_range`).

    Names that units of several roots share begin with the root's number: `root 0`, `root 1.layers.3`. Where it cannot
    be told which root a range belongs to, all keep the name that FSDP2 gives them.
    """
    ranges = parsed_ranges(trace, fsdp2_range)
    roots = _roots_of_ranges(ranges, executions(trace)) if ranges else None
    return ranges if roots is None else _name_by_root(ranges, roots)


class BackwardPasses:
    """The backward passes of a trace. Whatever follows one belongs to the next microbatch.

    Each root that took part ends a pass with a callback of its own, one right after the other.
    """

    def __init__(self, ranges: Sequence[Label]) -> None:
        self._begin_ns = [label.start_ns for label in ranges if label.word == "pre_backward"]
        self._callback_ns: list[int] = []
        self._end_ns: list[int] = []
        last_ns = -inf  # the end of the last callback, while nothing came after it
        for label in ranges:
            if label.word != _CALLBACK:
                last_ns = last_ns if label.start_ns <= last_ns else -inf
                continue
            if last_ns == -inf:
                self._callback_ns.append(label.start_ns)
                self._end_ns.append(label.end_ns)
            self._end_ns[-1] = last_ns = label.end_ns

    def count_ended(self, at_ns: int) -> int:
        return bisect_right(self._end_ns, at_ns)

    def is_under_way(self, at_ns: int) -> bool:
        """Whether one had begun and not ended by then."""
        begun, ended = bisect_left(self._begin_ns, at_ns), self.count_ended(at_ns)
        return begun > 0 and (ended == 0 or self._begin_ns[begun - 1] >= self._end_ns[ended - 1])

    def first_callback_ns(self, at_ns: int) -> int | None:
        """Start of the first callback of the pass that is under way, or else of the next one; None after the last."""
        number = self.count_ended(at_ns)
        return self._callback_ns[number] if number < len(self._callback_ns) else None


def fsdp2_passes(ranges: Sequence[Label]) -> Iterator[Label]:
    """The labels `forward` and `backward` of FSDP2's passes, in order of time.

    A forward pass lasts from the beginning of a root, or of several one after the other, to the last range before the
    next pass; a backward pass from the first use of a unit to the end of FSDP2's callbacks. It sends gradients
    (`sync=1`) if any are reduced. A forward pass that is computed again within it is a part of it.
    """
    passes: list[tuple[str, list[Label]]] = []
    word, roots = "", set[str]()
    for label in ranges:
        if word != "backward":
            starts = label.word == "root_pre_forward" and (not word or _unit(label) in roots)
            if starts or label.word == "pre_backward":
                word, roots = "forward" if starts else "backward", set()
                passes.append((word, []))
        if word or (passes and label.word == _CALLBACK):
            passes[-1][1].append(label)
        if label.word == "root_pre_forward":
            roots.add(_unit(label))
        word = "" if label.word == _CALLBACK else word
    for word, within in passes:
        sends = any(label.word == "post_backward_reduce" for label in within)
        fields = {"sync": str(int(sends))} if word == "backward" else {}
        yield Label.make(within[0], word, fields, within[0].start_ns, max(label.end_ns for label in within))


def fsdp2_gathers(ranges: Sequence[Label], ran: Executions) -> list[Gather]:
    """The gathers in a trace's FSDP2 ranges (`fsdp2_ranges`), in order of launch.

    There is one for each `all_gather` that launched a collective; if no launch is recorded, one for each `all_gather`.
    `microbatch` is the number of backward passes that ended before, from the trace's start. Once a backward pass has
    begun, gathers are for it. The use begins after `all_gather_copy_out`. The unit is freed at the end of the last
    `post_forward` or `post_backward_reshard` before it is gathered again; if it is never gathered again, at the end of
    the last `post_backward_reshard`. If the next gather is among fewer ranks than others of the unit, the unit was
    resharded to these ranks. Where the ranges of a name contradict one unit, when it is freed is unknown.
    """
    gathered = [label for label in ranges if label.word == "all_gather"]
    launching = [label for label in gathered if ran.launches_inside(label)]
    passes = BackwardPasses(ranges)
    words = Ordered(ranges, lambda label: (_unit(label), label.word))
    gathers: list[Gather] = []
    next_ns: dict[str, float] = {}
    for label in reversed(launching or gathered):
        unit = _unit(label)
        gathers.append(_gather(label, next_ns.get(unit, inf), words, passes, ran))
        next_ns[unit] = label.start_ns
    gathers.reverse()
    by_unit: dict[str, list[Gather]] = {}
    for gather in gathers:
        by_unit.setdefault(gather.unit, []).append(gather)
    for of_unit in by_unit.values():
        _note_resharding(of_unit, ran)
        for gather in _contradicting_gathers(of_unit, words, passes):
            gather.backward_first_use_ns = gather.backward_last_use_ns = None
            gather.free_ns = gather.free_phase = gather.shards = None
    return gathers


def fsdp2_scatters(ranges: Sequence[Label], ran: Executions) -> list[Label]:
    """The ranges that launch the reduction of a unit's gradients; if no launch is recorded, all of that name."""
    reducing = [label for label in ranges if label.word == "post_backward_reduce"]
    return [label for label in reducing if ran.launches_inside(label)] or reducing


def unit_sizes(
    manifest: Manifest | None, ranges: Sequence[Label], *, reduced: bool = False
) -> Callable[[str], int | None]:
    """A function that gives a unit's bytes from the manifest, by name; None for a unit that it does not name.

    The bytes are those that are gathered, or, if `reduced`, those of the gradients that are sent. The root holds what
    no other unit does, so its bytes follow if those of all other units are known.
    """
    bytes_of_unit = {unit.name: unit.bytes for unit in manifest.units} if manifest else {}
    others = {_unit(label) for label in ranges} - {FSDP2_ROOT}
    if bytes_of_unit and FSDP2_ROOT not in bytes_of_unit and others <= bytes_of_unit.keys():
        bytes_of_unit[FSDP2_ROOT] = sum(bytes_of_unit.values()) - sum(bytes_of_unit[unit] for unit in others)
    if reduced and manifest is not None and manifest.reduce_dtype is not None:
        gathered, sent = gathered_bytes(manifest), reduced_bytes(manifest)
        bytes_of_unit = (
            {unit: size * sent // gathered for unit, size in bytes_of_unit.items()} if gathered and sent else {}
        )
    return bytes_of_unit.get


def fill_sizes(
    collectives: Sequence[LaunchSpan], ranges: Sequence[Label], manifest: Manifest | None
) -> list[LaunchSpan]:
    """The collectives; those that FSDP2 launched without known bytes get their units' (see `unit_sizes`)."""
    gathered, reduced = unit_sizes(manifest, ranges), unit_sizes(manifest, ranges, reduced=True)
    size_of = {"all_gather": gathered, "post_backward_reduce": reduced}
    around = Ordered([label for label in ranges if label.word in size_of], lambda label: label.thread)
    return [
        replace(launch, bytes=size_of[label.word](_unit(label)))
        if launch.bytes is None
        and launch.kind != "all_reduce"
        and (label := around.range_around(launch.thread, launch.start_ns))
        else launch
        for launch in collectives
    ]


def _unit(label: Label) -> str:
    return label.fields["unit"]


def _note_resharding(gathers: Sequence[Gather], ran: Executions) -> None:
    """Note among how many ranks a unit was resharded after its forward (`reshard_after_forward=N`): those of its next
    gather.

    torch keeps each rank's N-th part until the next gather has copied it (`to_sharded_post_forward` in
    torch/distributed/fsdp/_fully_shard/_fsdp_param.py).
    """
    sizes = [ran.gathering_ranks(gather.launch) for gather in gathers]
    most = max((size for size in sizes if size is not None), default=None)
    for (gather, following), size in zip(pairwise(gathers), sizes[1:], strict=True):
        if gather.free_phase == "forward" and (size is None or size != most):
            gather.shards, gather.regathered = size, following.launch


def _contradicting_gathers(gathers: Sequence[Gather], words: Ordered[Label], passes: BackwardPasses) -> list[Gather]:
    """Those gathers under one name that cannot all be of one unit which FSDP2 frees where its ranges say so.

    A unit is not gathered again before a range that may free it. If it is gathered for several forward passes, they
    free it, and so it is gathered for the backward pass, too.
    """
    if len({gather.bytes for gather in gathers if gather.bytes is not None}) > 1:
        return list(gathers)
    contradicting = [gather for gather in gathers[:-1] if gather.free_ns is None]
    runs = [list(run) for _, run in groupby(gathers, key=lambda gather: (gather.microbatch, gather.phase))]
    for run, following in zip_longest(runs, runs[1:]):
        first = run[0]
        if first.phase == "backward" or len(run) == 1 or (following and following[0].microbatch == first.microbatch):
            continue
        begins = words.first_after((first.unit, "pre_backward"), run[-1].launch.start_ns)
        if begins is not None and passes.count_ended(begins.start_ns) == first.microbatch:
            contradicting += run
    return contradicting


def _gather(label: Label, next_ns: float, words: Ordered[Label], passes: BackwardPasses, ran: Executions) -> Gather:
    at = label.start_ns
    collectives = ran.launches_inside(label)
    gather = Gather(
        unit=_unit(label),
        microbatch=passes.count_ended(at),
        phase="backward" if passes.is_under_way(at) else "forward",
        bytes=total_bytes(collectives),
        launch=label,
    )
    copied = _first(words, gather, "all_gather_copy_out", at, next_ns)
    if copied is not None:
        gather.blocked = _blocking_ranges(label, collectives, copied) if communication_bounds(collectives) else ()
        gather.first_use_ns = copied.end_ns
        _note_uses(gather, copied, next_ns, words)
    _note_free(gather, next_ns, words)
    return gather


def _blocking_ranges(label: Label, collectives: Sequence[LaunchSpan], copied: Label) -> tuple[Span, ...]:
    """A synchronous call waits in the range that launches it, an asynchronous one in the range that copies out."""
    bounds = communication_bounds(collectives)
    if bounds is not None and label.end_ns < bounds[1]:
        return (copied,)
    called = max((launch.end_ns for launch in collectives), default=label.end_ns)
    return Span(start_ns=called, end_ns=label.end_ns, thread=label.thread), copied


def _note_uses(gather: Gather, copied: Label, next_ns: float, words: Ordered[Label]) -> None:
    """Note first and last uses of the gathered unit, until the next gather."""
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


def _note_free(gather: Gather, next_ns: float, words: Ordered[Label]) -> None:
    at = gather.launch.start_ns
    frees = [words.last_before((gather.unit, "post_backward_reshard"), next_ns)]
    if next_ns < inf:
        frees.append(words.last_before((gather.unit, "post_forward"), next_ns))
    free = max((f for f in frees if f and f.start_ns > at), key=lambda f: f.start_ns, default=None)
    if free is not None:
        gather.free_ns = free.end_ns
        gather.free_phase = "forward" if free.word == "post_forward" else "backward"


class _ForwardPass(Struct):
    """One forward pass of a root: the units that it used, and the bytes of those that were gathered."""

    units: set[str] = set()
    sizes: dict[str, int] = {}

    def may_share_root(self, other: _ForwardPass) -> bool:
        """Whether both may be of one root."""
        sizes = other.sizes
        return self.units == other.units and all(sizes.get(unit, size) == size for unit, size in self.sizes.items())


class _RootTurn(Struct):
    """Forward passes of roots, and the backward pass that followed them."""

    passes: list[_ForwardPass] = []
    callbacks: int = 0
    """How many roots took part in the backward pass."""


def _name_by_root(ranges: Sequence[Label], roots: Sequence[int | None]) -> tuple[Label, ...]:
    """The ranges, with the roots' numbers in names that several share."""
    roots_of_unit: dict[str, set[int]] = {}
    for label, root in zip(ranges, roots, strict=True):
        if root is not None:
            roots_of_unit.setdefault(_unit(label), set()).add(root)
    return tuple(
        label
        if root is None or len(roots_of_unit[_unit(label)]) == 1
        else replace(label, fields=label.fields | {"unit": unit_of_root(_unit(label), root)})
        for label, root in zip(ranges, roots, strict=True)
    )


def _roots_of_ranges(ranges: Sequence[Label], ran: Executions) -> list[int | None] | None:
    """The number of the root that each range of a unit belongs to, in order of first use; None for other ranges.

    None where there is one root, as far as the ranges show, or where some cannot be told apart. torch names no root,
    but each forward pass of one begins with `root_pre_forward`, and each root that took part in a backward pass ends
    it with a callback. A backward pass comes to the forward passes in reverse order.
    """
    use_of = _uses_of_gathers(ranges)
    turns, pass_of_range = _turns(ranges, use_of, ran)
    root_of_pass = _roots_of_passes(turns)
    if root_of_pass is None:
        return None
    roots: list[int | None] = [None] * len(ranges)
    passes_of_unit: dict[str, list[int]] = {}  # the forward passes that used a unit, as often as they did
    remaining: dict[str, int] = {}  # how many of these the backward pass has not come to
    root_of_unit: dict[str, int] = {}  # in its last backward pass
    begun_roots: list[int] = []  # in the order in which their backward passes began
    reached_pass = callbacks = 0
    last_callback = Span(start_ns=0, end_ns=-1, thread=-1)
    for number, label in enumerate(ranges):
        unit, forward_number = _unit(label), pass_of_range[number]
        if forward_number is not None:
            roots[number] = root_of_pass[forward_number]
            if label.word == "post_forward":
                passes_of_unit.setdefault(unit, []).append(forward_number)
        elif label.word == "pre_backward":
            if callbacks or not begun_roots:
                begun_roots, callbacks, reached_pass, remaining = [], 0, len(root_of_pass), {}
            uses = passes_of_unit.get(unit, [])
            remaining[unit] = min(remaining.get(unit, len(uses)), bisect_right(uses, reached_pass)) - 1
            if remaining[unit] < 0:
                return None
            reached_pass = uses[remaining[unit]]
            roots[number] = root_of_unit[unit] = root_of_pass[reached_pass]
            begun_roots = list(dict.fromkeys((*begun_roots, root_of_unit[unit])))
        elif label.word == _CALLBACK:
            callbacks, last_callback = callbacks + 1, label
            if callbacks > len(begun_roots):
                return None
        elif label.word.startswith("post_backward"):
            in_callback = label.start_ns <= last_callback.end_ns and label.thread == last_callback.thread
            roots[number] = begun_roots[callbacks - 1] if in_callback else root_of_unit.get(unit)
            if roots[number] is None:
                return None
    for number, use in enumerate(use_of):
        if use is not None:
            roots[number] = roots[use]
    return roots


def _uses_of_gathers(ranges: Sequence[Label]) -> list[int | None]:
    """For each range of a gather the place of the `pre_forward` or `pre_backward` of its unit, around it or after."""
    uses: list[int | None] = [None] * len(ranges)
    following: dict[str, int] = {}
    for number in range(len(ranges) - 1, -1, -1):
        if ranges[number].word in ("pre_forward", "pre_backward"):
            following[_unit(ranges[number])] = number
        elif ranges[number].word.startswith("all_gather"):
            uses[number] = following.get(_unit(ranges[number]))
    around: dict[str, int] = {}
    for number, label in enumerate(ranges):
        if label.word in ("pre_forward", "pre_backward"):
            around[_unit(label)] = number
        elif label.word.startswith("all_gather"):
            use = around.get(_unit(label))
            if use is not None and ranges[use].end_ns >= label.end_ns and ranges[use].thread == label.thread:
                uses[number] = use
    return uses


def _turns(
    ranges: Sequence[Label], use_of: Sequence[int | None], ran: Executions
) -> tuple[list[_RootTurn], list[int | None]]:
    """The turns, and for each range of a forward pass that pass's number over all turns."""
    turns: list[_RootTurn] = [_RootTurn()]
    passes: list[_ForwardPass] = []
    pass_of_range: list[int | None] = [None] * len(ranges)
    backward = False
    for number, label in enumerate(ranges):
        if label.word == _CALLBACK:
            turns[-1].callbacks += 1
            backward = False
        elif label.word == "pre_backward":
            if turns[-1].callbacks:
                turns.append(_RootTurn())
            backward = True
        elif label.word == "root_pre_forward" and not backward:
            if turns[-1].callbacks:
                turns.append(_RootTurn())
            passes.append(_ForwardPass())
            turns[-1].passes.append(passes[-1])
        elif label.word in ("pre_forward", "post_forward") and passes and not backward:
            passes[-1].units.add(_unit(label))
            pass_of_range[number] = len(passes) - 1
    for label, use in zip(ranges, use_of, strict=True):
        forward_number = None if use is None or label.word != "all_gather" else pass_of_range[use]
        if forward_number is not None and (size := total_bytes(ran.launches_inside(label))) is not None:
            passes[forward_number].sizes[_unit(label)] = size
    return turns, pass_of_range


def _roots_of_passes(turns: Sequence[_RootTurn]) -> list[int] | None:
    """Each forward pass's root; None where all may be of one, or where they cannot be told apart."""
    sizes: dict[str, int] = {}
    several = any(turn.callbacks > 1 for turn in turns)
    for forward_pass in _flat_passes(turns):  # a name with two sizes is two units'
        several |= any(sizes.setdefault(unit, size) != size for unit, size in forward_pass.sizes.items())
    return (_roots_by_order(turns) or _roots_by_kind(turns)) if several else None


def _flat_passes(turns: Sequence[_RootTurn]) -> Iterator[_ForwardPass]:
    return (forward_pass for turn in turns for forward_pass in turn.passes)


def _roots_by_order(turns: Sequence[_RootTurn]) -> list[int] | None:
    """The passes' roots if each root has one forward pass in every turn, all in the same order; else None.

    The first turn may lack the passes before the recording began, and the last one those after its end.
    """
    count = max(turn.callbacks for turn in turns)
    kinds: list[_ForwardPass | None] = [None] * count
    roots = []
    for turn in turns:
        missing = count - len(turn.passes)
        if turn.callbacks not in (0, count) or missing < 0 or (missing and turn.callbacks and turn is not turns[0]):
            return None
        # a turn without callbacks is the last one, cut off at its end
        for root, forward_pass in enumerate(turn.passes, missing if turn.callbacks else 0):
            if (kind := kinds[root]) is not None and not forward_pass.may_share_root(kind):
                return None
            kinds[root] = _merge_passes(kinds[root], forward_pass)
            roots.append(root)
    return roots


def _roots_by_kind(turns: Sequence[_RootTurn]) -> list[int] | None:
    """The passes' roots if these differ in units or sizes; None if that is unclear, or more roots took part."""
    kinds: list[_ForwardPass] = []
    roots = []
    for forward_pass in _flat_passes(turns):
        fitting = [root for root, kind in enumerate(kinds) if forward_pass.may_share_root(kind)]
        if len(fitting) > 1:
            return None
        if not fitting:
            fitting, kinds = [len(kinds)], [*kinds, _ForwardPass()]
        kinds[fitting[0]] = _merge_passes(kinds[fitting[0]], forward_pass)
        roots += fitting
    return None if any(turn.callbacks > len(kinds) for turn in turns) else roots


def _merge_passes(kind: _ForwardPass | None, forward_pass: _ForwardPass) -> _ForwardPass:
    return _ForwardPass(forward_pass.units, {**(kind.sizes if kind else {}), **forward_pass.sizes})
