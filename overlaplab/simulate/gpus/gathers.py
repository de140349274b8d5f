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
    """One edit for each trace, which gathers so many units ahead; empty if all did so. Raises `OverlaplabError`."""
    if ahead < 1:
        what = f"prefetch must be 1 or more, not {ahead}: without a list FSDP2 gathers a unit ahead by itself"
        raise refusal(run, what)
    editors = [_GatherEditor(trace) for trace in run.traces]
    if not editors or any(not editor.gathers for editor in editors):
        raise refusal(run, "no all-gathers of torch's FSDP2 are recorded")
    if any(root_number(gather.unit) is not None for editor in editors for gather in editor.gathers):
        what = "its modules are FSDP2 roots of their own, and FSDP2 gathers nothing ahead for another root"
        raise refusal(run, what, "Call fully_shard on the module that contains them")
    if any(gather.is_contradictory for editor in editors for gather in editor.gathers):
        raise refusal(run, "its units share names, and cannot be told apart")
    edits = tuple(editor.edit(ahead) for editor in editors)
    return edits if any(edit.moved for edit in edits) else ()


class _GatherEditor:
    """Makes one rank's edit."""

    def __init__(self, trace: Trace) -> None:
        self._ranges = fsdp2_ranges(trace)
        every = fsdp2_gathers(self._ranges, executions(trace)) if self._ranges else []
        self.gathers = [gather for gather in every if gather.first_use_ns is not None]
        self._events, self._main = device_events(trace), main_stream(trace)
        launches = sorted((event.called_ns, place) for place, event in enumerate(self._events))
        self._launches = [(called_ns, place) for called_ns, place in launches if called_ns != UNKNOWN_NS]
        """When the host launched each event, and the event's place, in order."""
        self._compute_launches_ns = [at_ns for at_ns, place in self._launches if self._is_of_main(place)]
        self._copy_outs: dict[int, list[Label]] = defaultdict(list)
        """By their ends, which are the gathers' first uses."""
        for label in self._ranges:
            if label.word == "all_gather_copy_out":
                self._copy_outs[label.end_ns].append(label)
        begun = [label for label in self._ranges if label.word == "pre_backward"]
        self._root_begins_ns = [label.start_ns for label in begun if label.fields["unit"] == FSDP2_ROOT]

    def edit(self, ahead: int) -> RankEdit:
        """A gather is launched where the copying out `ahead` units earlier ends, but after the gathers before it.

        The first gather of a pass stays where it was.
        """
        moved: list[Moved] = []
        freed: set[int] = set()
        waits: dict[int, list[int]] = defaultdict(list)
        wakes_ns: list[int] = []
        for gathers in self._passes():
            root_ns = self._kept_root_ns(gathers[0])
            anchors_ns = [*([] if root_ns is None else [root_ns]), *(gather.first_use_ns or 0 for gather in gathers)]
            offset = len(anchors_ns) - len(gathers)  # 1 where the root is the first anchor
            earliest_ns = 0  # no gather overtakes those before it
            for number, gather in enumerate(gathers, start=offset):
                events = self._launched_events(gather.launch.start_ns, gather.launch.end_ns)
                copies = self._copying_events(gather)
                if copies and events:
                    waits[copies[0]].append(events[-1])
                    wakes_ns += self._wakes_ns(copies[0], events[-1])
                anchor = max(number - ahead, 0)
                if not number or not events or self._stays(anchors_ns[anchor], gather.launch.start_ns):
                    earliest_ns = gather.launch.end_ns
                    continue
                at_ns = max(anchors_ns[anchor], earliest_ns)
                moved.append(Moved(start_ns=gather.launch.start_ns, end_ns=gather.launch.end_ns, at_ns=at_ns))
                # These events waited for the computation before their old place; `waits` has what they wait for now.
                freed |= {event for event in events if self._waits_for_main(event)}
                # It is gathered into the memory of a unit that must be copied out: the anchor's, or the one before it.
                copied_out = anchor - offset - (gather.phase == "forward")
                if copied_out >= 0:
                    waits[events[0]] += self._copying_events(gathers[copied_out])[-1:]
                for before, after in pairwise(events):  # the copying in and the collective lie on two streams
                    if self._events[before].stream != self._events[after].stream:
                        waits[after].append(before)
        wake_ns = median_low(wakes_ns) if wakes_ns else 0
        return RankEdit(moved=moved, freed=frozenset(freed), waits=waits, wake_ns=wake_ns, late_ns={"stream": wake_ns})

    def _passes(self) -> Iterator[list[Gather]]:
        """The gathers of each pass, in order of use."""
        in_order = sorted(self.gathers, key=lambda gather: gather.first_use_ns or 0)
        for _, pass_gathers in groupby(in_order, key=lambda gather: (gather.microbatch, gather.phase)):
            yield list(pass_gathers)

    def _kept_root_ns(self, first: Gather) -> int | None:
        """When the root's backward pass began, if the root stayed gathered, so that no gather of the pass is its."""
        if first.phase == "forward" or first.unit == FSDP2_ROOT:
            return None
        begun = bisect_left(self._root_begins_ns, (first.first_use_ns or 0) + 1)
        return self._root_begins_ns[begun - 1] if begun else None

    def _copying_events(self, gather: Gather) -> list[int]:
        copies = self._copy_outs.get(gather.first_use_ns or 0, [])
        return [place for label in copies for place in self._launched_events(label.start_ns, label.end_ns)]

    def _launched_events(self, start_ns: int, end_ns: int) -> list[int]:
        """The places of the events launched meanwhile, in order."""
        first, last = (bisect_left(self._launches, (at_ns, -1)) for at_ns in (start_ns, end_ns + 1))
        return [place for _, place in self._launches[first:last]]

    def _wakes_ns(self, copy: int, gathered: int) -> list[int]:
        """How long after the gather that it waited for last a copy began; empty where it waited for another event."""
        if self._events[copy].after != gathered:
            return []
        by, late_ns = last_dependency(self._events, self._events[copy])
        return [late_ns] if by == "event" else []

    def _stays(self, anchor_ns: int, launch_ns: int) -> bool:
        """Whether nothing was computed between the two, so that the gather is where it should be."""
        place = bisect_left(self._compute_launches_ns, anchor_ns)
        computed = place < len(self._compute_launches_ns) and self._compute_launches_ns[place] < launch_ns
        return launch_ns >= anchor_ns and not computed

    def _is_of_main(self, place: int) -> bool:
        return self._events[place].stream == self._main

    def _waits_for_main(self, place: int) -> bool:
        after = self._events[place].after
        return after is not None and self._is_of_main(after)
