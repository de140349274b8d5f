"""Another prefetch depth of torch's FSDP2 in anybody's run on GPUs: when each rank launches its all-gathers then.

docs/design/plays.md, FSDP2's prefetch on GPUs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby, pairwise
from statistics import median_low

from overlaplab.events import Run, Trace, main_stream
from overlaplab.evidence.dependencies import device_events
from overlaplab.evidence.executions import executions
from overlaplab.evidence.fsdp2 import fsdp2_gathers, fsdp2_ranges
from overlaplab.evidence.gathers import Gather
from overlaplab.evidence.labels import Label
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.simulate.gpus.edit import Moved, RankEdit, last_dependency
from overlaplab.simulate.play_errors import refusal
from overlaplab.vocabulary import FSDP2_ROOT, root_number


def prefetch_edits(run: Run, ahead: int) -> tuple[RankEdit, ...]:
    """The edit of each trace that gathers so many units ahead; none where it did. Raises `OverlaplabError`."""
    if ahead < 1:
        what = f"prefetch must be 1 or more, not {ahead}: without a list FSDP2 gathers a unit ahead by itself"
        raise refusal(run, what)
    editors = [_GatherEditor(trace) for trace in run.traces]
    if not editors or any(not editor.gathers for editor in editors):
        raise refusal(run, "no all-gathers of torch's FSDP2 are recorded")
    if any(root_number(gather.unit) is not None for editor in editors for gather in editor.gathers):
        what = "its modules are FSDP2 roots of their own, and FSDP2 gathers nothing ahead for another root"
        raise refusal(run, what, "Call fully_shard on the module that contains them")
    if any(gather.shards is None and gather.free_ns is None for editor in editors for gather in editor.gathers):
        raise refusal(run, "its units share names, and cannot be told apart")
    edits = tuple(editor.edit(ahead) for editor in editors)
    return edits if any(edit.moved for edit in edits) else ()


class _GatherEditor:
    """Makes one rank's edit."""

    def __init__(self, trace: Trace) -> None:
        self._ranges = fsdp2_ranges(trace)
        used = fsdp2_gathers(self._ranges, executions(trace)) if self._ranges else []
        self.gathers = [gather for gather in used if gather.first_use_ns is not None]
        self._events, main = device_events(trace), main_stream(trace)
        called = sorted((event.called_ns, place) for place, event in enumerate(self._events))
        self._called = [each for each in called if each[0] != UNKNOWN_NS]
        self._computed = [each for each in self._called if self._events[each[1]].stream == main]
        self._main = main
        self._copies: dict[int, list[Label]] = defaultdict(list)  # by their ends
        for label in self._ranges:
            if label.word == "all_gather_copy_out":
                self._copies[label.end_ns].append(label)
        begun = [label for label in self._ranges if label.word == "pre_backward"]
        self._roots = [label.start_ns for label in begun if label.fields["unit"] == FSDP2_ROOT]

    def edit(self, ahead: int) -> RankEdit:
        moved: list[Moved] = []
        freed: set[int] = set()
        waits: dict[int, list[int]] = defaultdict(list)
        wakes: list[int] = []
        for gathers in self._passes():
            root = self._root(gathers[0])
            anchors = [*([root] if root is not None else []), *(gather.first_use_ns or 0 for gather in gathers)]
            first = len(anchors) - len(gathers)
            launched_ns = 0  # by when those before are, of which none may be overtaken
            for number, gather in enumerate(gathers, start=first):
                places = self._launched_events(gather.launch.start_ns, gather.launch.end_ns)
                copied = self._copying_events(gather)
                if copied and places:
                    waits[copied[0]].append(places[-1])
                    if self._events[copied[0]].after == places[-1]:
                        by, late_ns = last_dependency(self._events, self._events[copied[0]])
                        wakes += [late_ns] if by == "event" else []
                at = max(number - ahead, 0)
                if not number or not places or self._is_there(anchors[at], gather.launch.start_ns):
                    launched_ns = gather.launch.end_ns
                    continue
                at_ns = max(anchors[at], launched_ns)
                moved.append(Moved(start_ns=gather.launch.start_ns, end_ns=gather.launch.end_ns, at_ns=at_ns))
                freed |= {each for each in places if self._waits_for_main(each)}
                before = at - first - (gather.phase == "forward")
                if before >= 0:
                    waits[places[0]] += self._copying_events(gathers[before])[-1:]
                for earlier, each in pairwise(places):
                    if self._events[earlier].stream != self._events[each].stream:
                        waits[each].append(earlier)
        wake_ns = median_low(wakes) if wakes else 0
        return RankEdit(moved=moved, freed=frozenset(freed), waits=waits, wake_ns=wake_ns, late_ns={"stream": wake_ns})

    def _passes(self) -> Iterator[list[Gather]]:
        """The gathers of each pass, in order of use."""
        in_order = sorted(self.gathers, key=lambda gather: gather.first_use_ns or 0)
        for _, pass_gathers in groupby(in_order, key=lambda gather: (gather.microbatch, gather.phase)):
            yield list(pass_gathers)

    def _root(self, first: Gather) -> int | None:
        """Where the root's backward pass begins, if it is still there and so gathered by none of them."""
        if first.phase == "forward" or first.unit == FSDP2_ROOT:
            return None
        begun = bisect_left(self._roots, (first.first_use_ns or 0) + 1)
        return self._roots[begun - 1] if begun else None

    def _copying_events(self, gather: Gather) -> list[int]:
        copies = self._copies.get(gather.first_use_ns or 0, [])
        return [place for label in copies for place in self._launched_events(label.start_ns, label.end_ns)]

    def _launched_events(self, start_ns: int, end_ns: int) -> list[int]:
        """The events launched meanwhile, in order."""
        first, last = (bisect_left(self._called, (at_ns, -1)) for at_ns in (start_ns, end_ns + 1))
        return [place for _, place in self._called[first:last]]

    def _is_there(self, anchor_ns: int, launch_ns: int) -> bool:
        """Whether nothing was computed between the two, so that the gather is where it should be."""
        at = bisect_left(self._computed, (anchor_ns, -1))
        return launch_ns >= anchor_ns and (at == len(self._computed) or self._computed[at][0] >= launch_ns)

    def _waits_for_main(self, place: int) -> bool:
        after = self._events[place].after
        return after is not None and self._events[after].stream == self._main
