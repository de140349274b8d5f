"""What a lane of counted events is called, by what runs on it: threads' names lie, and streams have only numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.axes import AXES, axis_of
from overlaplab.events import Trace, Work, counting_as, matching, thread_numbers
from overlaplab.evidence.recorded import recorded_collectives, recorded_of_events
from overlaplab.timeline.marks import Mark
from overlaplab.vocabulary import label_fields

_AUTOGRAD = "autograd::engine::evaluate_function"
"""What torch's engine calls around each operator's backward."""
_OF_HOOKS = ("gradient_ready", "bucket_ready", "backward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The counted events of one stream or thread."""

    rows: NDArray[np.intp]
    """Their rows in the trace."""
    main: Mark
    """What takes most of their time."""


def lane_names(trace: Trace, lanes: Sequence[Counted], *, gpu: bool) -> list[str]:
    """`stream 7 (compute)`, `stream 20 (NCCL, tp)`; on the CPU `main`, `autograd`, `link`, `gloo`, numbered if
    several.
    """
    if gpu:
        return _streams(trace, lanes)
    names = _threads(trace, lanes)
    count, seen = Counter(names), Counter[str]()
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(f"{name} {seen[name]}" if count[name] > 1 else name)
    return numbered


def _streams(trace: Trace, lanes: Sequence[Counted]) -> list[str]:
    device, stream = (trace.events[name].to_numpy(dtype=np.int64) for name in ("device", "stream"))
    several = len({int(device[lane.rows[0]]) for lane in lanes}) > 1
    communicates = counting_as(trace, Work.COMMUNICATION)
    nccl = matching(trace.events["name"], lambda name: "nccl" in name.lower() or "rccl" in name.lower())
    names = []
    for lane in lanes:
        what = {Mark.COMPUTE: "compute", Mark.MEMORY: "copies"}.get(lane.main)
        if what is None:
            communicating = lane.rows[communicates[lane.rows]]
            what = ", ".join(
                (
                    "NCCL" if 2 * nccl[communicating].sum() > len(communicating) else "communication",
                    *_axes(trace, communicating),
                )
            )
        begin = f"device {device[lane.rows[0]]} " if several else ""
        names.append(f"{begin}stream {stream[lane.rows[0]]} ({what})")
    return names


def _threads(trace: Trace, lanes: Sequence[Counted]) -> list[str]:
    thread = thread_numbers(trace.events)
    names = trace.events["name"]
    stepping = _threads_with(thread, names, lambda name: name.startswith("ProfilerStep"))
    carried = (
        ("link", _threads_with(thread, names, lambda name: name.startswith("engine::comm "))),
        ("gloo", _threads_with(thread, names, lambda name: name.startswith("gloo:"))),
    )
    hooks = _threads_with(thread, names, _is_backward)
    computing = [lane for lane in lanes if lane.main is Mark.COMPUTE]
    leads = [lane for lane in computing if int(thread[lane.rows[0]]) in stepping] or computing[:1]
    labels = []
    for lane in lanes:
        lane_thread = int(thread[lane.rows[0]])
        if any(lane is lead for lead in leads) or lane_thread in stepping:
            labels.append("main")
        elif lane.main is Mark.COMPUTE:
            labels.append("autograd" if lane_thread in hooks else "compute")
        elif lane.main is Mark.MEMORY:
            labels.append("copies")
        else:
            word = next((word for word, threads in carried if lane_thread in threads), "communication")
            labels.append(f"{word} ({axis})" if (axis := _axis(trace, lane)) else word)
    return labels


def _axis(trace: Trace, lane: Counted) -> str:
    """What the group is for whose collectives an emulated link's thread carries; empty if there is only one group."""
    carried = (label_fields(str(name)) for name in trace.events["name"].iloc[lane.rows[:1]])
    group = next((parsed[1].get("group", "") for parsed in carried if parsed), "")
    return next((axis_of(joined.description) for joined in trace.joined_groups if joined.name == group), "")


def _axes(trace: Trace, rows: NDArray[np.intp]) -> list[str]:
    """Along which axes of the mesh these events communicate, as far as their groups' descriptions tell."""
    collective_rows = recorded_of_events(trace)[rows]
    descriptions = recorded_collectives(trace)["group_description"].iloc[collective_rows[collective_rows >= 0]].unique()
    present = {axis_of(str(description)) for description in descriptions}
    return [axis for axis in AXES if axis in present]


def _threads_with(thread: NDArray[np.int64], names: pd.Series, wanted: Callable[[str], bool]) -> set[int]:
    """The threads of the events with such names."""
    return set(np.unique(thread[matching(names, wanted)]).tolist())


def _is_backward(name: str) -> bool:
    return name.startswith(_AUTOGRAD) or (label_fields(name) or ("",))[0] in _OF_HOOKS
