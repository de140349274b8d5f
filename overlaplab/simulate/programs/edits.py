"""Edits by name, as `overlaplab predict --edit` takes them and as remedies are tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from overlaplab.analyses.late_rank import late_steps, latest_rank
from overlaplab.events import Run, missing_ranks
from overlaplab.manifest import Link
from overlaplab.simulate.edits import collectives, model
from overlaplab.simulate.edits.hosts import (
    balance_rank,
    even_out_work,
    host_works,
    without_host_work,
    without_pauses,
)
from overlaplab.simulate.gpus import edits as devices
from overlaplab.simulate.gpus.streams import DevicePrograms
from overlaplab.simulate.play_errors import refusal
from overlaplab.simulate.player import Move, Program, Work, find_launches
from overlaplab.simulate.programs.buckets import cut_by_arrival, cut_model
from overlaplab.simulate.programs.larger_units import join_units
from overlaplab.simulate.recorded import plain_programs
from overlaplab.simulate.transfers import takes_ns, transfers
from overlaplab.words import known_names

Programs: TypeAlias = Sequence[Program]
EditChoice: TypeAlias = tuple[str, str | None]
"""An edit's name, and its value."""
_Apply: TypeAlias = Callable[[Run, Programs, str | None, Link | None], Programs | None]
"""The programs with an edit of this value behind this link; None where it changes nothing."""


class Edit(Struct, frozen=True, kw_only=True):
    """An edit of all ranks' programs."""

    value: str = ""
    """What its value is; empty where it takes none."""
    required: bool = False
    """Whether it needs one."""
    remedy: str = ""
    """The remedy that it is without a value; empty where it is none, or `remedies` gives it a value."""
    apply: _Apply | None = None
    """None where it is of GPUs alone."""
    on_devices: Callable[[Run, DevicePrograms, str | None], Programs | None] | None = None
    """The same of runs on GPUs; None where it is not known of these."""
    into_the_next: bool = False
    """Whether it moves time from a step into the next one."""
    nothing: str = ""
    """Why it changes nothing."""


def move_into_the_next(edits: Sequence[EditChoice]) -> bool:
    """Whether any of these edits moves time from a step into the next one."""
    return any(name in EDITS and EDITS[name].into_the_next for name, _ in edits)


def apply_edits(run: Run, programs: Programs, edits: Sequence[EditChoice], link: Link | None) -> tuple[Program, ...]:
    """The programs, behind this link, with these edits. Raises `OverlaplabError` for one that does not apply."""
    for name, value in edits:
        apply = _edit(run, name, value).apply
        if apply is None:
            raise refusal(run, f"edit {name} is of runs on GPUs alone")
        programs = _require_change(run, name, apply(run, programs, value, link))
    return tuple(programs)


def apply_device_edits(run: Run, programs: DevicePrograms, edits: Sequence[EditChoice]) -> DevicePrograms:
    """The programs of a run on GPUs with these edits in this order. Raises `OverlaplabError` as `apply_edits` does."""
    for name, value in edits:
        apply = _edit(run, name, value).on_devices
        if apply is None:
            playable = ", ".join(name for name, edit in EDITS.items() if edit.on_devices)
            raise refusal(run, f"edit {name} is not played of runs on GPUs", f"Of these are played: {playable}")
        programs = replace(programs, programs=tuple(_require_change(run, name, apply(run, programs, value))))
    return programs


def _edit(run: Run, name: str, value: str | None) -> Edit:
    """The edit of a name that is asked for with this value."""
    if name not in EDITS:
        raise refusal(run, f"no edit is called {name}", known_names(name, EDITS))
    edit = EDITS[name]
    if bool(value) > bool(edit.value) or edit.required > bool(value):
        how = f"--edit {name}={edit.value}" if edit.value else f"--edit {name}, without a value"
        raise refusal(run, f"edit {name} is asked for in another way", f"As in {how}")
    return edit


def _require_change(run: Run, name: str, changed: Programs | None) -> list[Program]:
    if changed is None:
        raise refusal(run, f"edit {name} does not apply: {EDITS[name].nothing}")
    return [tuple(moves) for moves in changed]


def late_rank(run: Run) -> int | None:
    """The place of the rank that all others waited for longest; None where none was waited for."""
    late = latest_rank(late_steps(run))
    return next((place for place, trace in enumerate(run.traces) if trace.rank == late), None)


def _asked_rank(run: Run, value: str | None) -> int | None:
    """The place of the rank that an edit names, or else of the late one."""
    if value is None:
        return late_rank(run)
    ranks = [str(trace.rank) for trace in run.traces]
    if value not in ranks:
        raise refusal(run, f"rank {value} is not there", f"Ranks: {', '.join(ranks)}")
    return ranks.index(value)


def _balance(run: Run, programs: Programs, value: str | None, _link: Link | None) -> list[Program] | None:
    late = _asked_rank(run, value)
    if late is not None and late >= len(programs):
        raise refusal(run, f"rank {run.traces[late].rank} is not among the predicted ranks")
    return None if late is None or len(programs) < 2 else balance_rank(programs, late)


def _balance_on_devices(run: Run, programs: DevicePrograms, value: str | None) -> Programs | None:
    late = _asked_rank(run, value)
    if late is None or len(run.traces) < 2:
        return None
    return devices.change_lanes(programs, partial(balance_rank, late=late))


def _without_pauses(programs: Programs) -> list[list[Move]] | None:
    paused = any(move.paused_ns for program in programs for move in program if isinstance(move, Work))
    return [without_pauses(program) for program in programs] if paused else None


def _without_host_work(run: Run, programs: Programs, value: str | None) -> list[list[Move]]:
    works = host_works(programs)
    if value not in works or value is None:
        unnamed = "None has a name: torch.profiler.record_function gives one"
        remedy = known_names(value or "", works) if works else unnamed
        raise refusal(run, f"no host work between its passes is called {value}", remedy)
    return [without_host_work(program, value) for program in programs]


def _merge(run: Run, programs: Programs, _value: str | None, link: Link | None) -> list[Program] | None:
    times = None if missing_ranks(run) else transfers(run, run.traces[0], link)
    sizes = {(launch.kind, launch.bytes) for launch in find_launches(programs[0])}

    def takes(kind: str, num_bytes: int) -> int | None:
        one_size = link is None and sum(each == kind for each, _ in sizes) < 2  # tells no latency from bandwidth
        return None if times is None or one_size else takes_ns(times, kind, num_bytes)

    return collectives.merge_collectives(programs, takes)


def _without_unused(run: Run, programs: Programs, _value: str | None, link: Link | None) -> list[list[Move]] | None:
    recorded = plain_programs(run)
    if recorded is None or missing_ranks(run):
        return None
    return model.without_unused(programs, recorded.gradients, partial(takes_ns, transfers(run, run.traces[0], link)))


def _larger_units(run: Run, programs: Programs, value: str | None, link: Link | None) -> list[Program] | None:
    together = int(value) if value and value.isdecimal() else 0
    if together <= 1:
        raise refusal(run, f"{value} units cannot be one", "A number of 2 or more")
    if missing_ranks(run):
        raise refusal(run, "how long larger gathers take is not known with ranks missing")
    return join_units(run, programs, together, link)


def _halve_bytes(run: Run, programs: Programs, _value: str | None, link: Link | None) -> list[Program] | None:
    if missing_ranks(run):
        return None
    return model.halve_bytes(programs, transfers(run, run.traces[0], link).times_by_size)


def _programs_alone(edit: Callable[[Programs], Programs | None]) -> _Apply:
    """The `apply` of an edit that needs programs alone."""
    return lambda _run, programs, _value, _link: edit(programs)


EDITS = {
    "balance": Edit(value="RANK", apply=_balance, on_devices=_balance_on_devices, nothing="no rank was waited for"),
    "even-work": Edit(
        apply=_programs_alone(lambda programs: even_out_work(programs) if len(programs) > 1 else None),
        on_devices=lambda run, programs, _value: (
            devices.change_lanes(programs, even_out_work) if len(run.traces) > 1 else None
        ),
        nothing="it has one rank, or its ranks have different streams",
    ),
    "no-pause": Edit(
        remedy="no_pause",
        apply=_programs_alone(_without_pauses),
        on_devices=lambda _run, programs, _value: _without_pauses(programs.programs),
        nothing="the host pauses for no more than 1 % of a step at once",
    ),
    "without-host-work": Edit(
        value="NAME",
        required=True,
        apply=lambda run, programs, value, _link: _without_host_work(run, programs, value),
        on_devices=lambda run, programs, value: _without_host_work(run, programs.programs, value),
    ),
    "no-launch-overhead": Edit(
        remedy="launch_overhead",
        on_devices=lambda _run, programs, _value: devices.change_hosts(programs, devices.launch_at_once),
    ),
    "no-device-waits": Edit(
        remedy="device_waits",
        on_devices=lambda _run, programs, _value: devices.change_hosts(programs, devices.without_device_waits),
        nothing="the host does not wait for its device",
    ),
    "last-pass": Edit(
        remedy="last_pass",
        apply=_programs_alone(model.last_pass_only),
        on_devices=lambda run, programs, _value: devices.last_pass(run, programs),
        nothing="no step sends its gradients in several backward passes",
    ),
    "last-all-reduce": Edit(
        remedy="last_all_reduce",
        apply=lambda _run, programs, _value, _link: model.last_pass_only(programs, ("replicas",)),
        on_devices=lambda run, programs, _value: devices.last_pass(run, programs, replicas=True),
        nothing="no step all-reduces its scattered gradients in several backward passes",
    ),
    "arrival-order": Edit(
        remedy="arrival_order",
        apply=cut_by_arrival,
        nothing="its buckets are those of DDP that hold gradients in their order of arrival, or unknown",
    ),
    "model-cap": Edit(value="MODEL:MB", required=True, apply=cut_model),
    "merge": Edit(remedy="merge", apply=_merge, nothing="no such collectives follow each other between the passes"),
    "async": Edit(
        remedy="asynchronous",
        apply=_programs_alone(collectives.wait_at_step_end),
        nothing="no such collective is waited for between the passes",
    ),
    "background": Edit(
        remedy="background",
        apply=_programs_alone(collectives.wait_a_step_later),
        into_the_next=True,
        nothing="no such collective is launched after an optimizer step",
    ),
    "early": Edit(
        remedy="earlier", apply=_programs_alone(collectives.launch_early), nothing="no such collective takes long"
    ),
    "leave-out": Edit(
        remedy="leave_out",
        value="KIND",
        apply=lambda _run, programs, value, _link: collectives.left_out(programs, value),
        nothing="there is no such collective",
    ),
    "wait-at-pass-end": Edit(
        remedy="asynchronous_hook",
        apply=_programs_alone(model.wait_at_pass_end),
        nothing="no bucket is waited for within its backward pass",
    ),
    "without-unused": Edit(
        remedy="unused_parameters",
        apply=_without_unused,
        nothing="a gradient of every parameter arrives, or T of smaller buckets is unknown",
    ),
    "without-buffers": Edit(
        remedy="buffers",
        apply=_programs_alone(model.without_buffers),
        on_devices=lambda _run, programs, _value: devices.without_buffers(programs),
        nothing="DDP broadcasts no buffers",
    ),
    "whole-optimizer": Edit(
        remedy="whole_optimizer",
        apply=_programs_alone(model.update_whole),
        on_devices=lambda _run, programs, _value: devices.update_whole(programs),
        nothing="no parameters are sent within an optimizer step",
    ),
    "keep-gathered": Edit(
        remedy="keep_gathered",
        apply=_programs_alone(model.keep_gathered),
        on_devices=lambda run, programs, _value: devices.keep_gathered(run, programs),
        nothing="no unit of FSDP2 is gathered again for its backward pass",
    ),
    "larger-units": Edit(value="UNITS", required=True, apply=_larger_units, nothing="it gathers no units, or too few"),
    "half-bytes": Edit(
        remedy="half_the_bytes",
        apply=_halve_bytes,
        on_devices=lambda run, programs, _value: devices.half_the_bytes(run, programs),
        nothing="how long its collectives of other sizes take is not known",
    ),
}
"""By name; docs/predictions.md says what each changes."""
