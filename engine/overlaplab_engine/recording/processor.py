"""How long the computing thread ran on a core, and how long it waited for one: instants in the trace.

On a CPU the link's threads, gloo's and other processes take cores from the computation, whose operators go on in the
trace meanwhile. Linux counts for each thread the time on a core and the time in which it could run and did not
(`/proc/thread-self/schedstat`, Documentation/scheduler/sched-stats.rst). The counts are written at every border between
passes, units, gradients and waits, so that the analyser knows what was lost in between.

Only the thread that runs the borders is counted. If torch computes with several threads per rank, the others are not.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from overlaplab_engine import labels
from overlaplab_engine.labels import Word
from overlaplab_engine.models.units import Unit

__all__ = ["mark", "mark_units", "tells"]

SCHEDSTAT = "/proc/thread-self/schedstat"

_open = threading.local()


def tells() -> bool:
    """Whether the kernel counts for this thread."""
    return _counts() is not None


def mark(unit: str | None = None, phase: str | None = None) -> None:
    """Write the thread's counts while a profiler records; what lies before belongs to the phase of the unit, if any."""
    if not torch.autograd.profiler._is_profiler_enabled or (counts := _counts()) is None:
        return
    about = {} if unit is None or phase is None else {"unit": unit, "phase": phase}
    labels.instant(labels.span(Word.PROCESSOR, ran_ns=counts[0], delayed_ns=counts[1], **about))


def mark_units(units: Sequence[Unit]) -> Mapping[str, str]:
    """Mark where the units' forward passes begin and end; returns each parameter's unit."""
    for unit in units:
        for module in unit.modules:
            module.register_forward_pre_hook(_before)
            module.register_forward_hook(partial(_after, unit.name))
    return {name: unit.name for unit in units for name in unit.parameters}


def _before(module: nn.Module, inputs: Any) -> None:
    mark()


def _after(unit: str, module: nn.Module, inputs: Any, output: Any) -> None:
    mark(unit, "forward")


def _counts() -> tuple[int, int] | None:
    """Time on a core and time waiting for one, in ns; None where the kernel does not tell."""
    if not hasattr(_open, "file"):
        try:
            _open.file = os.open(SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            _open.file = None
    if _open.file is None:
        return None
    words = os.pread(_open.file, 64, 0).split()
    return (int(words[0]), int(words[1])) if len(words) >= 2 and words[0] != b"0" else None
