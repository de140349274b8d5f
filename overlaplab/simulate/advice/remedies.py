"""What a remedy would gain: the recorded programs, changed as the remedy would change them, and played again.

[Note: remedies]
- `balance`: the rank that was waited for most takes as long as the others (`rank` in `setting`).
- `cap`: gradients are cut into buckets of another size, in their recorded order of arrival, as
  `compute_bucket_assignment_by_size` of torch/csrc/distributed/c10d/reducer.cpp does, each is launched with its last
  gradient, and all are waited for at the end of the backward pass (`setting`: the cap in MiB).
- `first_bucket`: only the first bucket's cap changes (`setting`: that in MiB).
- `earlier`: what moves neither gradients nor parameters, and takes long, is launched at the start of the step.
- `prefetch`: each gather is launched some units earlier (`setting`: units gathered ahead).
- `no_pause`: the host does not pause.
- `half_the_bytes`: every collective sends half as much, which is as if the bandwidth were doubled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from overlaplab.analyses.exposed import Cause, exposed
from overlaplab.events import Run, step_windows
from overlaplab.evidence.fsdp2 import fsdp2_ranges_of
from overlaplab.simulate.advice.depths import best_depth
from overlaplab.simulate.buckets.search import bucket_search
from overlaplab.simulate.changes import balanced, earlier, without_pauses
from overlaplab.simulate.player import Launch, Move, Program, StuckError, Work, play
from overlaplab.simulate.recorded import Recorded, plain_programs
from overlaplab.simulate.transfers import transfers

__all__ = ["REMEDIES", "remedies"]

REMEDIES = {
    "balance": (Cause.STRAGGLER,),
    "cap": (Cause.TAIL, Cause.QUEUED, Cause.BLOCKING, Cause.LATE),
    "first_bucket": (Cause.TAIL, Cause.QUEUED),
    "earlier": (Cause.QUEUED,),
    "prefetch": (Cause.LATE,),
    "no_pause": (Cause.GAP,),
    "half_the_bytes": (Cause.LINK, Cause.TAIL, Cause.QUEUED),
}
"""The causes of exposed time that each remedy answers; remedies that cost more come later."""
_COLUMNS = {
    **dict.fromkeys(("rank", "step"), "Int64"),
    **dict.fromkeys(("remedy", "cause"), "object"),
    "setting": "float64",
    **dict.fromkeys(("gain_ns", "step_ns"), "int64"),
}


def remedies(run: Run) -> pd.DataFrame:
    """What each remedy that can be played would gain, for every rank and step: one row per cause that it answers.

    Columns: `rank`, `step` (Int64), `remedy` (see [Note: remedies]), `cause` (a `Cause`'s value), `setting` (float64:
    the number that the remedy is about, NaN for none), `gain_ns` (how much shorter the rank's step would be; negative
    if longer), `step_ns` (how long it would take; both int64). No rows where the run cannot be played, see
    `plain_programs`, nor of FSDP2, nor of remedies that change nothing.
    """
    recorded = plain_programs(run)
    if recorded is None or any(fsdp2_ranges_of(trace) for trace in run.traces):
        return _table([])
    try:
        before = play(recorded.programs)
    except StuckError:  # collectives of several groups, for instance
        return _table([])
    rows: list[dict[str, Any]] = []
    for name, setting, programs in _changed(run, recorded):
        try:
            after = play(programs)
        except StuckError:
            continue
        for number, trace in enumerate(run.traces):
            steps = zip(step_windows(trace), before.spans_ns(number), after.spans_ns(number), strict=True)
            for window, took, takes in steps:
                row = {"rank": trace.rank, "step": window.step, "remedy": name, "setting": setting}
                row |= {"gain_ns": took - takes, "step_ns": takes}
                rows += [row | {"cause": cause.value} for cause in REMEDIES[name]]
    return _table(rows)


def _table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype(_COLUMNS)


def _changed(run: Run, recorded: Recorded) -> Iterator[tuple[str, float, Sequence[Program]]]:
    """Each remedy's name, setting and programs."""
    programs = recorded.programs
    if (late := _late(run)) is not None:
        yield "balance", float(run.traces[late].rank or 0), balanced(programs, late)
    if any(move.paused_ns for program in programs for move in program if isinstance(move, Work)):
        yield "no_pause", np.nan, [without_pauses(program) for program in programs]
    yield from _cuttings(run)
    if (best := best_depth(run)) is not None:
        yield "prefetch", best.prefetch, best.programs
    if any(changed := [earlier(program) for program in programs]):
        yield "earlier", np.nan, [own or program for own, program in zip(changed, programs, strict=True)]
    if (halved := _halved(run, programs)) is not None:
        yield "half_the_bytes", 0.5, halved


def _late(run: Run) -> int | None:
    """The place of the rank that all others waited for longest."""
    rows = exposed(run).dropna(subset=["late_rank"])
    if not len(rows):
        return None
    late = rows.groupby("late_rank")["exposed_ns"].sum().idxmax()
    return next((place for place, trace in enumerate(run.traces) if trace.rank == late), None)


def _cuttings(run: Run) -> Iterator[tuple[str, float, Sequence[Program]]]:
    """The best cap, and where the run has a first bucket of its own, its best cap."""
    search, manifest = bucket_search(run), run.manifest
    if search is None or manifest is None:
        return
    if (best := search.best_cap) is not None:
        yield "cap", best.caps_mb[0], search.cut.programs(best.buckets)
    first, cap = (manifest.raw or {}).get("first_bucket_mb"), manifest.bucket_cap_mb
    if first is not None and cap is not None and (best := search.best_first_cap(cap, first)) is not None:
        yield "first_bucket", best.caps_mb[0], search.cut.programs(best.buckets)


def _halved(run: Run, programs: Sequence[Program]) -> list[Program] | None:
    link = run.manifest.link if run.manifest else None
    took = transfers(run, run.traces[0], link)
    kinds = {move.kind for program in programs for move in program if isinstance(move, Launch) and move.role}
    by_kind = {kind: by_size for kind in kinds if (by_size := took.by_size(kind)) is not None}
    if not by_kind:
        return None

    def half(move: Move) -> Move:
        if not isinstance(move, Launch) or move.kind not in by_kind or not move.role:
            return move
        takes = by_kind[move.kind]
        gained = takes(move.bytes) - takes(move.bytes // 2)
        return replace(move, transfer_ns=max(move.transfer_ns - gained, 0), bytes=move.bytes // 2)

    return [[half(move) for move in program] for program in programs]
