"""Settings that are tried: prefetch depths, caps of reduce-scattered buckets, larger units of FSDP2; and of anybody's
run on GPUs, whose hosts and streams are played again, caps or depths (docs/design/plays.md, Runs on GPUs).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import hypot
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from overlaplab.analyses.delays import without_busy_steps
from overlaplab.analyses.summary import summary
from overlaplab.analyses.worst import worst_step
from overlaplab.costs.memory import prefetched_bytes
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, activity, is_on_gpus, once_per_run
from overlaplab.manifest import strategy_traits
from overlaplab.simulate.bound import sendable_gradients
from overlaplab.simulate.buckets.cutting import last_end
from overlaplab.simulate.fill_buckets import CAP_MB, MIB, CapRange, Name, assign, cap_ranges
from overlaplab.simulate.gpus.buckets import gradient_sizes, is_of_one_size
from overlaplab.simulate.gpus.streams import DevicePrograms, device_programs
from overlaplab.simulate.player import Program, StuckError, find_launches, play
from overlaplab.simulate.predictions.answer import DEPTHS, interval
from overlaplab.simulate.predictions.device import require_device
from overlaplab.simulate.predictions.device_answers import device_answer, option_or_why
from overlaplab.simulate.predictions.error import gain_half_ns, prediction_interval
from overlaplab.simulate.programs import all_programs, made_programs
from overlaplab.simulate.programs.larger_units import join_units
from overlaplab.simulate.programs.options import strategy_options
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.programs.uncertainty import units_apart_ns
from overlaplab.simulate.recorded import editable_programs, plain_programs, recorded_programs
from overlaplab.simulate.undisturbed import TIE, mean_step_ns, recorded_spans_ns

_MAX_FURTHER_UNITS = 4
"""Units further ahead than recorded: each is held in full, so few have the memory for more."""
_MAX_CAPS = 8
"""Caps that are tried: programs of zero1 and zero2 are made anew for each."""
_MAX_DEVICE_CAPS = 5
"""Caps of DDP that are tried on GPUs."""
_UNITS_TOGETHER = (2, 4, 8)
"""Numbers of units that are tried as one."""
_MAX_STRETCHES = 20_000
"""Stretches of computation of all ranks on GPUs: a play takes some 0.2 s then, and a setting up to twenty, where
kernels slow each other down. To play more would also read the traces of all ranks again."""


class SettingPlayed(Struct, frozen=True, kw_only=True):
    """What a setting would have given."""

    option: Literal["cap", "prefetch", "larger_units"]
    value: float
    """The cap in MiB, the units gathered ahead, or those as one."""
    spans_ns: npt.NDArray[np.int64]
    """How long the steps take, of shape (ranks, steps)."""
    half_ns: int | None
    """By how much a recorded gain may differ."""
    caps_mb: tuple[float, ...] = ()
    """The caps, with the first bucket's own, where it has one."""
    sizes: tuple[int, ...] = ()
    """The bytes of each bucket's gradients, in order of launch; none of other options."""
    memory_bytes: int | None = 0
    """What each rank holds more at most; None where unknown."""


def best_setting(run: Run, played: Sequence[SettingPlayed]) -> SettingPlayed | None:
    """The one with the fewest buckets, units ahead or units as one, of those as good as the shortest."""
    took_ns = [mean_step_ns(run, each.spans_ns) for each in played]
    good = [each for each, ns in zip(played, took_ns, strict=True) if ns <= min(took_ns) * (1 + TIE)]
    return min(good, key=lambda each: (len(each.sizes), each.value), default=None)


@once_per_run
def played_gain_half_ns(run: Run) -> int | None:
    """Half of the 95 % interval of a gain that was played, see `gain_half_ns`; None where nothing can be played."""
    try:
        played = replayed_spans_ns(run)
    except StuckError:
        return None
    if not played.size:
        return None
    step_ns = mean_step_ns(run, recorded_spans_ns(run))
    return gain_half_ns(step_ns, step_ns, prediction_interval(run, step_ns, played.mean(axis=0).tolist()))


def replayed_spans_ns(run: Run) -> npt.NDArray[np.int64]:
    """How long all steps take as the recorded programs play them, of shape (ranks, steps).

    Empty where the traces do not tell what waited for what. Raises `StuckError` where ranks launch collectives in
    different orders.
    """
    if (device := device_programs(run)) is not None:
        return device.spans_ns(play(device.programs))
    recorded = recorded_programs(run)
    return np.empty((0, 0), dtype=np.int64) if recorded is None else play(recorded.programs).all_spans_ns()


@once_per_run
def depths_played(run: Run) -> tuple[SettingPlayed, ...]:
    """Each prefetch depth beyond the recorded one, the smallest first, until nothing more changes."""
    recorded, traits, manifest = plain_programs(run), strategy_traits(run.manifest), run.manifest
    if recorded is None or traits is None or traits.gathers != "units":
        return ()
    if manifest is None or manifest.prefetch is None:
        return ()
    played: list[SettingPlayed] = []
    programs: Sequence[Program] = recorded.programs
    for further in range(1, _MAX_FURTHER_UNITS + 1):
        try:
            deeper = made_programs(run, Setting(prefetch=manifest.prefetch + further))
            spans_ns = play(deeper).all_spans_ns()
        except (OverlaplabError, StuckError):
            break
        if all(list(moves) == list(before) for moves, before in zip(deeper, programs, strict=True)):
            break
        each = SettingPlayed(
            option="prefetch",
            value=manifest.prefetch + further,
            spans_ns=spans_ns,
            half_ns=played_gain_half_ns(run),
            memory_bytes=prefetched_bytes(manifest, further),
        )
        played.append(each)
        programs = deeper
    return tuple(played)


@once_per_run
def scattered_caps(run: Run) -> tuple[SettingPlayed, ...]:
    """The caps that were tried of reduce-scatters, or of all-reduces by hand, the smallest first.

    Empty without a link, since T of other sizes is not known then.
    """
    recorded, traits, manifest = editable_programs(run), strategy_traits(run.manifest), run.manifest
    if recorded is None or traits is None or not traits.buckets:
        return ()
    if traits.gradients != "reduce_scatter" and traits.hops is None:
        return ()
    if manifest is None or manifest.link is None:
        return ()
    sizes = {name: size for name, (size, _) in recorded.gradients.items()}
    buckets = [launch.parameters for launch in find_launches(recorded.programs[0], "bucket")]
    order = list(dict.fromkeys(name for parameters in buckets for name in parameters))
    if set(order) != set(sizes):
        return ()
    played: list[SettingPlayed] = []
    tried = _spread(list(cap_ranges(order, sizes)), _MAX_CAPS)
    for each in tried:
        setting = Setting(bucket_cap_mb=each.cap_mb)
        with suppress(OverlaplabError, StuckError):
            spans_ns = play(all_programs(run, setting)).all_spans_ns()
            caps = strategy_options(run, manifest, setting).caps
            cap_played = SettingPlayed(
                option="cap",
                value=each.cap_mb,
                spans_ns=spans_ns,
                half_ns=played_gain_half_ns(run),
                caps_mb=tuple(cap / MIB for cap in caps),
                sizes=tuple(sum(sizes[name] for name in names) for names in assign(order, sizes, caps)),
            )
            played.append(cap_played)
    return tuple(played) if len(played) == len(tried) else ()  # else perhaps only the recorded cap could be played


def _spread(ranges: Sequence[CapRange[Name]], most: int) -> list[CapRange[Name]]:
    """At most so many, smallest and largest cap among them, evenly by the logarithm of their number of buckets."""
    if len(ranges) <= most:
        return list(ranges)
    counts = np.log([len(each.buckets) for each in ranges])
    wanted = np.linspace(counts[0], counts[-1], most)
    places = {int(np.abs(counts - count).argmin()) for count in wanted}
    return [ranges[place] for place in sorted(places)]


@once_per_run
def units_played(run: Run) -> tuple[SettingPlayed, ...]:
    """Two, four and eight units as one, as far as there are enough; none without FSDP2.

    Where all recorded collectives are of one size, T of more bytes is unknown: steps are played with the middle of what
    it could be, and the gain may be off by `units_apart_ns`.
    """
    recorded, link = plain_programs(run), run.manifest.link if run.manifest else None
    if recorded is None:
        return ()
    played: list[SettingPlayed] = []
    for together in _UNITS_TOGETHER:
        joined = join_units(run, recorded.programs, together, link)
        if joined is None:
            break
        try:
            spans_ns = play(joined).all_spans_ns()
        except StuckError:
            break
        doubt_ns = played_gain_half_ns(run)
        half_ns = None if doubt_ns is None else round(hypot(doubt_ns, units_apart_ns(run, together, link)))
        played.append(SettingPlayed(option="larger_units", value=together, spans_ns=spans_ns, half_ns=half_ns))
    return tuple(played)


@once_per_run
def device_settings(run: Run) -> tuple[SettingPlayed, ...]:
    """The caps of a run on GPUs, the smallest first, or the depths; none where it cannot be played, or for too long."""
    if playable_programs(run) is None or isinstance(option := option_or_why(run), OverlaplabError):
        return ()
    settings: list[tuple[float, tuple[int, ...]]] = [(depth, ()) for depth in DEPTHS]
    if option == "bucket_cap_mb":
        sizes = gradient_sizes(run)
        caps = _favoured_caps(run, sizes)
        settings = [(cap.cap_mb, tuple(sum(sizes[each] for each in names) for names in cap.buckets)) for cap in caps]
    played: list[SettingPlayed] = []
    for value, bucket_bytes in settings:
        try:
            answer = device_answer(run, Setting(bucket_cap_mb=value) if bucket_bytes else Setting(prefetch=int(value)))
        except OverlaplabError:
            continue
        step_ns = mean_step_ns(run, recorded_spans_ns(run))
        each = SettingPlayed(
            option="cap" if bucket_bytes else "prefetch",
            value=value,
            spans_ns=answer.spans_ns,
            half_ns=gain_half_ns(step_ns, answer.mean_ns, interval(run, answer)),
            caps_mb=(value,) if bucket_bytes else (),
            sizes=bucket_bytes,
            memory_bytes=0 if bucket_bytes else None,
        )
        played.append(each)
    return tuple(played)


def _favoured_caps(run: Run, sizes: Sequence[int]) -> list[CapRange[int]]:
    """The caps with which the last bucket ends first on the worst rank, the smallest first; where that is unknown caps
    from all ranges, and DDP's default alone where T is known of one size alone.
    """
    if is_of_one_size(run):
        cut = assign(range(len(sizes)), dict(enumerate(sizes)), [int(CAP_MB * MIB)])
        return [CapRange(cap_mb=CAP_MB, buckets=tuple(map(tuple, cut)))]
    ranges = list(cap_ranges(range(len(sizes)), dict(enumerate(sizes))))
    window = worst_step(without_busy_steps(run, summary(run)))
    gradients = sendable_gradients(run, window)
    if gradients is None or len(gradients.bytes) != len(sizes):
        return _spread(ranges, _MAX_DEVICE_CAPS)
    filled = [[len(bucket) for bucket in each.buckets] for each in ranges]
    ends = [last_end(gradients.ready_ns, gradients.bytes, counts, gradients.takes) for counts in filled]
    order = sorted(range(len(ranges)), key=lambda place: (ends[place], len(ranges[place].buckets)))
    return [ranges[place] for place in sorted(order[:_MAX_DEVICE_CAPS])]


def playable_programs(run: Run) -> DevicePrograms | None:
    """The programs of a run on GPUs; None where they cannot be played, or would take too long."""
    if not is_on_gpus(run) or count_stretches(run) > _MAX_STRETCHES:
        return None
    try:
        return require_device(run)
    except OverlaplabError:
        return None


def count_stretches(run: Run) -> int:
    """How many stretches of computation all ranks have."""
    return sum(len(activity(trace).compute) for trace in run.traces)
