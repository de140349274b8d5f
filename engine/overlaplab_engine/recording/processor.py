"""How long the computing thread ran on a core, and how long it waited for one: instants in the trace.

On a CPU the link's threads, gloo's and other processes take cores from the computation, whose operators go on in the
trace meanwhile. Linux counts for each thread the time on a core and the time in which it could run and did not
(`/proc/thread-self/schedstat`, Documentation/scheduler/sched-stats.rst). The counts are written at every border between
passes, units, gradients and waits, so that the analyser knows what was lost in between.

Only the thread that runs the borders is counted. If torch computes with several threads per rank, the others are not.
"""

import torch

from overlaplab_engine import labels
from overlaplab_engine.alarm import core_time
from overlaplab_engine.labels import Word


def mark(unit: str | None = None, phase: str | None = None) -> None:
    """Write the thread's counts while a profiler records; what lies before belongs to the phase of the unit, if any."""
    if not torch.autograd.profiler._is_profiler_enabled or (counts := core_time()) is None:
        return
    place = {} if unit is None or phase is None else {"unit": unit, "phase": phase}
    labels.instant(labels.span(Word.PROCESSOR, **counts._asdict(), **place))
