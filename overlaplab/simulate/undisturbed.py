"""Which recorded steps settings are compared by: those that nothing disturbed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from overlaplab.costs import attained_steps
from overlaplab.events import Run, once_per_run, step_windows
from overlaplab.manifest import Manifest

__all__ = ["TIE", "as_good_as_the_best", "disturbed", "undisturbed_spans_ns", "undisturbed_steps"]

TIE = 0.01
"""Of a step: settings that differ by no more are taken for equally fast."""


class _HasSpans(Protocol):
    @property
    def spans_ns(self) -> npt.NDArray[np.int64]:
        """How long the steps take, of shape (ranks, steps)."""


Played = TypeVar("Played", bound=_HasSpans)


def as_good_as_the_best(run: Run, played: Sequence[Played]) -> list[Played]:
    """Of settings that were played those whose undisturbed steps are shortest, as far as that can be told."""
    if not played:
        return []
    steps = undisturbed_steps(run)
    took_ns = [float(each.spans_ns[:, steps].mean()) for each in played]
    return [each for each, ns in zip(played, took_ns, strict=True) if ns <= min(took_ns) * (1 + TIE)]


@once_per_run
def undisturbed_steps(run: Run) -> npt.NDArray[np.bool_]:
    """Which of the first trace's steps neither a busy machine nor a late link disturbed, and none of the traces has
    damaged; all, where none is left.
    """
    numbers = [window.step for window in step_windows(run.traces[0])]
    damaged = {step.step for trace in run.traces for step in step_windows(trace) if step.damaged}
    bad = disturbed(run.manifest) | damaged
    left = np.array([number not in bad for number in numbers], dtype=np.bool_)
    return left if left.any() else np.ones(len(numbers), dtype=np.bool_)


def undisturbed_spans_ns(run: Run) -> npt.NDArray[np.int64]:
    """How long these steps took, of shape (ranks, steps)."""
    spans = [[window.end_ns - window.start_ns for window in step_windows(trace)] for trace in run.traces]
    return np.array(spans, dtype=np.int64)[:, undisturbed_steps(run)]


def disturbed(manifest: Manifest | None) -> set[int]:
    """The numbers of the steps in which the machine was busy, or the emulated link not attained."""
    if manifest is None:
        return set()
    late = {step.step for step in attained_steps(manifest) if not step.attained}
    return late | {row.step for row in manifest.machine or () if row.busy}
