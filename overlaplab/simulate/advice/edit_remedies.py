"""Remedies that are edits of the ranks' programs, each with the value that it is tried with."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

from overlaplab.analyses.late_rank import computes_longer, is_chronic, late_steps
from overlaplab.events import Run, step_windows
from overlaplab.evidence.fsdp2 import fsdp2_ranges
from overlaplab.simulate.edits.collectives import BARRIER, after_the_update, name_collectives, other_collectives
from overlaplab.simulate.edits.model import unused_parameters
from overlaplab.simulate.player import Program
from overlaplab.simulate.programs.edits import EDITS, EditChoice, late_rank
from overlaplab.simulate.recorded import editable_programs


def edit_remedies(
    run: Run, works: Iterable[str], *, on_devices: bool
) -> Iterator[tuple[str, dict[str, Any], EditChoice]]:
    """Each remedy that is an edit: its name, its `setting` or `what`, and the edit; `works`: what hosts do by name."""
    if (late_place := late_rank(run)) is not None:
        rank = run.traces[late_place].rank or 0
        if is_chronic(late_steps(run), len(step_windows(run.traces[0]))):
            yield "balance", {"setting": float(rank)}, ("balance", str(rank))
            if computes_longer(run, rank):  # either may be the reason
                yield "even_work", {"setting": float(rank)}, ("even-work", None)
        else:
            yield "even_work", {}, ("even-work", None)
    for name in works:
        yield "host_work", {"what": name}, ("without-host-work", name)
    if not on_devices:
        yield "barriers", {}, ("leave-out", BARRIER)
    about: dict[str, dict[str, Any]] = {"half_the_bytes": {"setting": 0.5}, "launch_overhead": {"half_ns": None}}
    if not on_devices and (recorded := editable_programs(run)) is not None:
        about["unused_parameters"] = {"what": ", ".join(unused_parameters(recorded.programs) or ())}
        about |= {name: {"what": what} for name, what in _other_collectives(recorded.programs)}
    # Remedies that the run's strategy has no option for.
    without_option = set() if all(fsdp2_ranges(trace) for trace in run.traces) else {"keep_gathered"}
    if run.manifest is not None and run.manifest.strategy is not None and not run.manifest.by_recorder:
        without_option.add("asynchronous_hook")  # the engine has other strategies for that
    for name, edit in EDITS.items():
        if edit.remedy and edit.remedy not in without_option and (edit.on_devices if on_devices else edit.apply):
            yield edit.remedy, about.get(edit.remedy, {}), (name, None)


def edit_of_action(remedy: str, setting: float | None, what: str | None) -> EditChoice | None:
    """The edit that a row of `simulate.gains` plays; None of remedies that are another cap, depth or strategy."""
    match remedy:
        case "balance":
            return "balance", f"{setting:g}"
        case "even_work":
            return "even-work", None
        case "barriers":
            return "leave-out", BARRIER
        case "host_work":
            return "without-host-work", what
        case "larger_units":
            return "larger-units", f"{setting:g}"
        case "cap" if what is not None:
            return "model-cap", f"{what}:{setting:g}"
    return next(((name, None) for name, edit in EDITS.items() if edit.remedy == remedy), None)


def _other_collectives(programs: Sequence[Program]) -> Iterator[tuple[str, str]]:
    """For each remedy of collectives of neither gradients nor parameters the names of those that it is about."""
    every, between, after = set[Hashable](), set[Hashable](), set[Hashable]()
    for program in programs:
        every.update(launch.key for launch in other_collectives(program))
        between.update(launch.key for launch in other_collectives(program, between_passes=True))
        after |= after_the_update(program)
    about = {"asynchronous": between, "merge": between, "background": after, "leave_out": every}
    yield from ((name, name_collectives(programs, keys)) for name, keys in about.items())
