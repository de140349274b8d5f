"""Arrows of an exported trace: from a launch to what it launched, from forward to backward, and from rank to rank of a
collective.

An arrow has an end in each slice that it joins (`s` the first, `f` the last, `t` between), all with one id; the slice
is the one around the end's time on its thread.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from overlaplab.events import Trace
from overlaplab.timeline.marks import Timeline

Ends = dict[int, list[str]]
"""By row of a trace's events: the ends there as the first members of a JSON object, without time and place."""
_COLUMNS = (("flow_launch", "ac2g"), ("flow_backward", "fwdbwd"))


def arrows_of_events(trace: Trace, ids: Iterator[int]) -> Ends:
    """The trace's own arrows; each gets one of `ids`, since ranks number theirs alike."""
    ends: Ends = {}
    for column, category in _COLUMNS:
        numbers = trace.events[column].to_numpy()
        rows = np.flatnonzero(numbers >= 0)
        table = pd.DataFrame({"row": rows, "number": numbers[rows]})
        for _, joined in table.groupby("number", sort=False)["row"]:
            _join([(int(row), ends) for row in joined], category, ids)
    return ends


def arrows_of_collectives(timeline: Timeline, traces: int, ids: Iterator[int]) -> list[Ends]:
    """Per trace of the run: for each collective an arrow through its first event on each rank, in order of start."""
    ends: list[Ends] = [{} for _ in range(traces)]
    events = timeline.events
    with_event = events[(events["collective"] >= 0) & (events["event"] >= 0)].sort_values("start_ns", kind="stable")
    firsts = with_event.drop_duplicates(["collective", "trace"])
    for _, rows in firsts.groupby("collective", sort=False):
        joined = zip(rows["event"].tolist(), rows["trace"].tolist(), strict=True)
        _join([(row, ends[place]) for row, place in joined], "collective", ids)
    return ends


def _join(places: list[tuple[int, Ends]], category: str, ids: Iterator[int]) -> None:
    """Add an end at each of these rows, in order of time; one alone has nothing to point to."""
    if len(places) < 2:
        return
    number, last = next(ids), len(places) - 1
    for place, (row, ends) in enumerate(places):
        phase = "s" if place == 0 else "f" if place == last else "t"
        bound = ',"bp":"e"' if phase == "f" else ""
        ends.setdefault(row, []).append(f'"ph":"{phase}","id":{number},"cat":"{category}","name":"{category}"{bound}')
