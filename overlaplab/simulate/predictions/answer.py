"""What a reader asks of a run, and what a play of it answers: one form for runs on CPUs and on GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from msgspec import Struct
from numpy.typing import NDArray

from overlaplab.costs import Algorithm
from overlaplab.events import Run
from overlaplab.intervals import Intervals, clip, intersect, subtract, union
from overlaplab.manifest import Manifest
from overlaplab.simulate.further import Skew
from overlaplab.simulate.player import Launch, Played, Program
from overlaplab.simulate.predictions.error import Interval, extrapolations, prediction_interval
from overlaplab.simulate.programs.edits import move_into_the_next
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.undisturbed import mean_step_after_ns

DEPTHS = (1, 2, 3, 4)
"""Units gathered ahead that are tried."""
_MAX_STRETCHES = 10_000
"""A rank's pauses that are shorter than its step divided by this are drawn as work."""


class Question(Struct, frozen=True, kw_only=True):
    """A setting, and how collectives and further ranks are modelled."""

    setting: Setting
    algorithm: Algorithm = "ring"
    skew: Skew = "recorded"
    """What ranks do that were not recorded: see `draw_ranks`."""


class Answer(Struct, frozen=True, kw_only=True):
    """A setting that was played."""

    spans_ns: NDArray[np.int64]
    """How long each step takes, of shape (ranks, steps)."""
    mean_ns: float
    """See `undisturbed.mean_step_ns`."""
    replayed_ns: Sequence[float]
    """Each step of the recorded run, played as it is: the mean over the ranks."""
    transfers_ns: int
    """How much the mean step may be off because T of other sizes is."""
    times_as_far: dict[str, float]
    """See `error.extrapolations`."""
    median_span_ns: int
    lanes: pd.DataFrame
    """The median step: see `lane_table`."""

    @property
    def step_ns(self) -> int:
        return round(self.mean_ns)


def interval(run: Run, played: Answer | SettingPrediction, caps: pd.DataFrame | None = None) -> Interval:
    """Around the mean step; `caps` has rows of `recorded_caps`, if any."""
    return prediction_interval(run, played.mean_ns, played.replayed_ns, caps, played.times_as_far, played.transfers_ns)


class SettingPrediction(Struct, frozen=True, kw_only=True):
    """A recorded run and a setting of it, both played; steps in ns, of shape (ranks, steps)."""

    run: Run
    manifest: Manifest
    """Its run.json, or what its traces tell in place of it."""
    setting: Setting
    programs: tuple[Sequence[Program], Sequence[Program]]
    """All ranks', as recorded and as predicted."""
    recorded_ns: NDArray[np.int64]
    """What the recorded programs give."""
    predicted_ns: NDArray[np.int64]
    transfers_ns: int
    """How much the mean step may be off because T of other sizes is."""
    played: Played
    """The predicted programs."""

    def lanes(self, rank: int, step: int) -> pd.DataFrame:
        """What a rank and the link did in a step, by its place: see `lane_table`."""
        raise NotImplementedError

    @property
    def mean_ns(self) -> float:
        into_the_next = move_into_the_next(self.setting.edits)
        return mean_step_after_ns(self.run, self.predicted_ns, into_the_next=into_the_next)

    @property
    def replayed_ns(self) -> list[float]:
        steps: list[float] = self.recorded_ns.mean(axis=0).tolist()
        return steps

    @property
    def times_as_far(self) -> dict[str, float]:
        """What of the setting lies far outside of the recording: see `extrapolations`."""
        return extrapolations(self.manifest, self.setting, *map(chain.from_iterable, self.programs))

    def answer(self) -> Answer:
        """With the lanes of its median step, which take as long to make as a rank's events."""
        rank, step, span_ns = median_step(self.predicted_ns)
        return Answer(
            spans_ns=self.predicted_ns,
            mean_ns=self.mean_ns,
            replayed_ns=self.replayed_ns,
            transfers_ns=self.transfers_ns,
            times_as_far=self.times_as_far,
            median_span_ns=span_ns,
            lanes=self.lanes(rank, step),
        )


def median_step(spans_ns: NDArray[np.int64]) -> tuple[int, int, int]:
    """Rank, step and length of the median of all ranks' steps, the lower of two; takes times, (ranks, steps)."""
    place = int(np.argsort(spans_ns.T, axis=None, kind="stable")[(spans_ns.size - 1) // 2])
    step, rank = divmod(place, spans_ns.shape[0])
    return rank, step, int(spans_ns[rank, step])


def lane_word(launch: Launch) -> str:
    """What a launch is called on the link's lane."""
    return f"{launch.role} {launch.kind if launch.what is None else launch.what}".strip()


def lane_table(
    works: Intervals, carried: Iterable[tuple[str, int, int]], begin_ns: int, end_ns: int, *, joined: bool = False
) -> pd.DataFrame:
    """What one rank and the link did in a step: rows of stretches, in ns from the step's start.

    Columns: `lane` (`rank`: it works; `link`: a collective is on it), `what` (the bucket, unit or kind), `exposed`
    (bool: the rank does not work meanwhile), `start_ns`, `end_ns` (int64). `carried`: each collective's `what`, start
    and end. Where the rank's work is `joined`, pauses too short to be seen count as work.
    """
    works = clip(works, begin_ns, end_ns)
    if joined:
        works = _join_near(works, (end_ns - begin_ns) // _MAX_STRETCHES)
    rows: list[tuple[Any, ...]] = [("rank", "", False, *each) for each in works.tolist()]
    for what, start, stop in carried:
        if stop <= begin_ns or start >= end_ns:
            continue  # another step's
        on_link = clip(union([start], [stop]), begin_ns, end_ns)
        for exposed, stretches in ((False, intersect(on_link, works)), (True, subtract(on_link, works))):
            rows += [("link", what, exposed, *each) for each in stretches.tolist()]
    table = pd.DataFrame(rows, columns=["lane", "what", "exposed", "start_ns", "end_ns"])
    table[["start_ns", "end_ns"]] -= begin_ns
    return table.astype({"exposed": "bool", "start_ns": "int64", "end_ns": "int64"})


def _join_near(stretches: Intervals, grain_ns: int) -> Intervals:
    """Stretches in order, without gaps shorter than this."""
    is_apart = stretches[1:, 0] - stretches[:-1, 1] >= grain_ns
    begins, ends = np.append(True, is_apart), np.append(is_apart, True)
    return np.column_stack((stretches[begins[: len(stretches)], 0], stretches[ends[: len(stretches)], 1]))
