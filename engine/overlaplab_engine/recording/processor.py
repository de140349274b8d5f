"""How long the computing thread ran on a core, and how long it waited for one: instants in the trace.

On a CPU the link's threads, gloo's and other processes take cores from the computation, whose operators go on in the
trace meanwhile. Linux counts for each thread the time on a core and the time in which it could run and did not
(`/proc/thread-self/schedstat`, Documentation/scheduler/sched-stats.rst). The counts are written at every border between
passes, units, gradients and waits, so that the analyser knows what was lost in between.

Only the thread that runs the borders is counted. If torch computes with several threads per rank, the others are not.
"""

import os
import threading

import torch

from overlaplab_engine import labels
from overlaplab_engine.labels import Word

__all__ = ["counts", "mark", "tells"]

SCHEDSTAT = "/proc/thread-self/schedstat"

_open = threading.local()


def tells() -> bool:
    """Whether the kernel counts for this thread."""
    return counts() is not None


def mark(unit: str | None = None, phase: str | None = None) -> None:
    """Write the thread's counts while a profiler records; what lies before belongs to the phase of the unit, if any."""
    if not torch.autograd.profiler._is_profiler_enabled or (told := counts()) is None:
        return
    about = {} if unit is None or phase is None else {"unit": unit, "phase": phase}
    labels.instant(labels.span(Word.PROCESSOR, ran_ns=told[0], delayed_ns=told[1], **about))


def counts() -> tuple[int, int] | None:
    """This thread's time on a core and time waiting for one, in ns; None where the kernel does not tell."""
    if not hasattr(_open, "file"):
        try:
            _open.file = os.open(SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            _open.file = None
    if _open.file is None:
        return None
    words = os.pread(_open.file, 64, 0).split()
    return (int(words[0]), int(words[1])) if len(words) >= 2 and words[0] != b"0" else None
