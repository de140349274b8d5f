"""A recorded run played as it is: how far its programs are from what was recorded."""

from __future__ import annotations

import pandas as pd

from overlaplab.events import Run, step_windows
from overlaplab.simulate.gpus.streams import DevicePrograms, device_programs
from overlaplab.simulate.player import play
from overlaplab.simulate.recorded import recorded_programs

_TYPES = {"rank": "Int64", "step": "Int64", "span_ns": "int64", "replayed_ns": "int64"}


def replay_steps(run: Run) -> pd.DataFrame:
    """One row per rank and step: `span_ns`, as recorded, and `replayed_ns` (int64), as its programs play it.

    `rank` and `step` are Int64. Empty where the traces do not tell what waited for what. Raises `StuckError` where
    ranks launch collectives in different orders.
    """
    programs = device_programs(run)
    if programs is None and (recorded := recorded_programs(run)) is not None:
        programs = DevicePrograms(programs=recorded.programs, steps=tuple(range(len(recorded.programs))))
    if programs is None:
        return pd.DataFrame(columns=list(_TYPES)).astype(_TYPES)
    played = play(programs.programs)
    rows = [
        (trace.rank, window.step, window.end_ns - window.start_ns, span_ns)
        for trace, place in zip(run.traces, programs.steps, strict=True)
        for window, span_ns in zip(step_windows(trace), played.spans_ns(place), strict=True)
    ]
    return pd.DataFrame(rows, columns=list(_TYPES)).astype(_TYPES)
