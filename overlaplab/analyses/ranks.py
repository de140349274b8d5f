"""Runs of many ranks: what `summary`, `exposed`, `idle` and `collectives` need of a rank, found where it is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor

from overlaplab.analyses.idle import idle_gaps
from overlaplab.events import (
    Run,
    Trace,
    activity,
    device_sign,
    early_kernels,
    found_windows,
    host_steps,
    launches_graphs,
    longest_names,
    only_ends_recorded,
    processor_counts,
    rule_of,
    said_to_communicate,
    unknown_communication,
    unmarked_iterations,
)
from overlaplab.evidence.collective_facts import earliest_starts
from overlaplab.evidence.exposed_waits import exposed_waits
from overlaplab.evidence.host_waits import host_waits
from overlaplab.evidence.host_work import has_loader_workers
from overlaplab.evidence.matching import steps_and_labels
from overlaplab.evidence.passes import labels_some_models
from overlaplab.evidence.purposes import has_sent_halves, purposes
from overlaplab.evidence.recorded import emulates_link, recorded_collectives
from overlaplab.evidence.stages import stage_labels
from overlaplab.evidence.step_kinds import step_signatures
from overlaplab.evidence.stream_waits import missing_wait_fields
from overlaplab.load.run_folder import load_run

_OF_EACH: tuple[Callable[[Trace], object], ...] = (
    *(rule_of, device_sign, launches_graphs, activity, found_windows, longest_names, processor_counts),
    *(said_to_communicate, unknown_communication, only_ends_recorded, early_kernels, unmarked_iterations, host_steps),
    *(recorded_collectives, emulates_link, steps_and_labels, earliest_starts, host_waits, purposes, has_sent_halves),
    *(idle_gaps, stage_labels, step_signatures, exposed_waits, missing_wait_fields, has_loader_workers),
    labels_some_models,
)
"""What is computed of a rank's events where they are read."""


def load_ranks(
    path: str | os.PathLike[str],
    *,
    assign_ranks: Mapping[str, int] | None = None,
    recording: int | None = None,
    communication: str | None = None,
    cache: bool = True,
    executor: Executor | None = None,
    progress: Callable[[float, int], None] | None = None,
) -> Run:
    """Load a run as `load_run` does, with more ranks than one process holds: a worker reads a rank and works it out.

    What comes back are the rank's busy times, steps and collectives, some hundred kB. From these `summary`, `totals`,
    `exposed`, `blocking`, `idle`, `collectives`, `stragglers`, `communication_by` and `clocks` give the same tables as
    of `load_run`. Any other analysis reads a rank's events again when it asks for them, in this process.
    """
    return load_run(
        path,
        assign_ranks=assign_ranks,
        recording=recording,
        communication=communication,
        cache=cache,
        executor=executor,
        progress=progress,
        of_each=_OF_EACH,
    )
