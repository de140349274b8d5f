"""Where did my communication time go, and what would hide it?

Load a run with `load_run`; every analysis takes it and returns a pandas table; `overlaplab.charts` draws the tables.
`Recorder` records a training loop, `watch` watches all of it, and `trace_handler` is for a profiler of your own; they
come from the package `overlaplab_engine` and need torch.

Each name is imported when it is first asked for (PEP 562): the command line's help and shell completion would
otherwise wait for pandas, and everybody for torch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlaplab_engine import Recorder as Recorder
    from overlaplab_engine import trace_handler as trace_handler
    from overlaplab_engine import watch as watch

    from overlaplab.analyses import (
        blocking,
        buckets,
        collectives,
        communication_by,
        compare,
        exposed,
        load_ranks,
        memory,
        pipeline,
        pipeline_ranks,
        pipeline_steps,
        pipeline_waits,
        scalars,
        schedule,
        step_scalars,
        stragglers,
        summary,
        sweep,
        totals,
        volume,
    )
    from overlaplab.errors import OverlaplabError
    from overlaplab.events import Run
    from overlaplab.evidence.clocks import clocks
    from overlaplab.findings import link_note, run_warnings, sweep_advice, sweep_finding, sweep_notes
    from overlaplab.findings.requirements import InconclusiveError, RequirementError, require
    from overlaplab.load.run_folder import load_run, load_sweep
    from overlaplab.load.watched import load_watched
    from overlaplab.sections.run_tables import diagnosis, step_timeline
    from overlaplab.selection import Selection
else:

    def __getattr__(name: str) -> object:
        if name in _FROM_ENGINE:
            return importlib.import_module("overlaplab.bridge").from_engine(name)
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES.get(name, "overlaplab.analyses")), name)


# Without those of the engine: `from overlaplab import *` needs no torch.
__all__ = [
    "InconclusiveError",
    "OverlaplabError",
    "RequirementError",
    "Run",
    "Selection",
    "blocking",
    "buckets",
    "clocks",
    "collectives",
    "communication_by",
    "compare",
    "diagnosis",
    "exposed",
    "link_note",
    "load_ranks",
    "load_run",
    "load_sweep",
    "load_watched",
    "memory",
    "pipeline",
    "pipeline_ranks",
    "pipeline_steps",
    "pipeline_waits",
    "require",
    "run_warnings",
    "scalars",
    "schedule",
    "step_scalars",
    "step_timeline",
    "stragglers",
    "summary",
    "sweep",
    "sweep_advice",
    "sweep_finding",
    "sweep_notes",
    "totals",
    "volume",
]

_FROM_ENGINE = ("Recorder", "trace_handler", "watch")
_HOMES = {
    "InconclusiveError": "overlaplab.findings.requirements",
    "OverlaplabError": "overlaplab.errors",
    "RequirementError": "overlaplab.findings.requirements",
    "Run": "overlaplab.events",
    "Selection": "overlaplab.selection",
    "clocks": "overlaplab.evidence.clocks",
    "diagnosis": "overlaplab.sections.run_tables",
    "link_note": "overlaplab.findings",
    "load_run": "overlaplab.load.run_folder",
    "load_sweep": "overlaplab.load.run_folder",
    "load_watched": "overlaplab.load.watched",
    "require": "overlaplab.findings.requirements",
    "run_warnings": "overlaplab.findings",
    "step_timeline": "overlaplab.sections.run_tables",
    "sweep_advice": "overlaplab.findings",
    "sweep_finding": "overlaplab.findings",
    "sweep_notes": "overlaplab.findings",
}
"""The modules of names that are not from `overlaplab.analyses`."""


def __dir__() -> list[str]:
    """What users may call, without what this module imports for itself."""
    return sorted({*__all__, *_FROM_ENGINE, *(name for name in globals() if name.startswith("__"))})
