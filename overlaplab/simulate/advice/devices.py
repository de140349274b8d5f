"""What settings and remedies would gain in anybody's run on GPUs, whose hosts and streams are played again.

docs/design/plays.md, Runs on GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from overlaplab.analyses.delays import without_busy_steps
from overlaplab.analyses.summary import summary
from overlaplab.analyses.worst import worst_step
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, activity, once_per_run, rule_of
from overlaplab.evidence.dependencies import longest_wait
from overlaplab.simulate.advice.edit_remedies import edit_remedies
from overlaplab.simulate.advice.tried import SettingPlayed, best_setting
from overlaplab.simulate.bound import sendable_gradients
from overlaplab.simulate.buckets.caps import CapRange, cap_ranges
from overlaplab.simulate.buckets.cutting import last_end
from overlaplab.simulate.edits.hosts import host_works
from overlaplab.simulate.fill_buckets import CAP_MB, MIB, assign
from overlaplab.simulate.gpus.buckets import gradient_sizes, is_of_one_size
from overlaplab.simulate.gpus.streams import DevicePrograms
from overlaplab.simulate.predictions.answer import DEPTHS, interval
from overlaplab.simulate.predictions.device import predict_device, require_device
from overlaplab.simulate.predictions.device_answers import device_answer, option_or_why
from overlaplab.simulate.predictions.error import gain_half_ns
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.undisturbed import mean_step_ns, recorded_spans_ns
from overlaplab.vocabulary import Rule

_MAX_CAPS = 5
"""Caps of DDP that are played."""
_MAX_STRETCHES = 20_000
"""Stretches of computation of all ranks: a play takes some 0.2 s then, and a setting up to twenty, where kernels slow
each other down. To play more would also read the traces of all ranks again."""

_MAX_STRETCHES_WITH_SETTINGS = 4_000
"""Stretches of computation where caps or prefetch depths are played for the first screen as well: some seconds."""

Times = npt.NDArray[np.int64]


@once_per_run
def device_settings(run: Run) -> tuple[SettingPlayed, ...]:
    """The caps, the smallest first, or the depths; none where the run cannot be played, or would take too long."""
    if _programs(run) is None or isinstance(what := option_or_why(run), OverlaplabError):
        return ()
    settings: list[tuple[float, tuple[int, ...]]] = [(depth, ()) for depth in DEPTHS]
    if what == "bucket_cap_mb":
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
            half_ns=gain_half_ns(step_ns, interval(run, answer)),
            caps_mb=(value,) if bucket_bytes else (),
            sizes=bucket_bytes,
            memory_bytes=0 if bucket_bytes else None,
        )
        played.append(each)
    return tuple(played)


def _favoured_caps(run: Run, sizes: Sequence[int]) -> list[CapRange[int]]:
    """Caps with which the last bucket ends first on the worst rank, the smallest first; else DDP's default."""
    if is_of_one_size(run):
        cut = assign(range(len(sizes)), dict(enumerate(sizes)), [int(CAP_MB * MIB)])
        return [CapRange(cap_mb=CAP_MB, buckets=tuple(map(tuple, cut)))]
    ranges = list(cap_ranges(range(len(sizes)), dict(enumerate(sizes))))
    window = worst_step(without_busy_steps(run, summary(run)))
    gradients = sendable_gradients(run, window)
    if gradients is None or len(gradients.bytes) != len(sizes):
        return ranges[:: max(len(ranges) // _MAX_CAPS, 1)][:_MAX_CAPS]
    filled = [[len(bucket) for bucket in each.buckets] for each in ranges]
    ends = [last_end(gradients.ready_ns, gradients.bytes, counts, gradients.takes) for counts in filled]
    order = sorted(range(len(ranges)), key=lambda place: (ends[place], len(ranges[place].buckets)))
    return [ranges[place] for place in sorted(order[:_MAX_CAPS])]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRemedy:
    """A remedy of a run, played."""

    name: str
    about: dict[str, Any]
    """Its `setting` or `what`, and `half_ns` where it has one of its own: see `remedies.gains`."""
    before_ns: Times
    """How long the steps take without it, of shape (ranks, steps)."""
    after_ns: Times


def device_remedies(run: Run) -> Iterator[PlayedRemedy]:
    """Those of `remedies` that can be played."""
    programs = _programs(run)
    if programs is None:
        return
    for name, about, edit in edit_remedies(run, host_works(programs.programs), on_devices=True):
        with suppress(OverlaplabError):  # it does not apply
            prediction = predict_device(run, Setting(edits=(edit,)))
            waits = {"what": longest_wait(run)} if name == "device_waits" else {}
            before_ns, after_ns = prediction.recorded_ns, prediction.predicted_ns
            yield PlayedRemedy(name=name, about=about | waits, before_ns=before_ns, after_ns=after_ns)
    if _stretches(run) > _MAX_STRETCHES_WITH_SETTINGS:
        return
    if (best := best_setting(run, device_settings(run))) is not None:
        yield setting_remedy(best, predict_device(run, Setting()).recorded_ns)


def setting_remedy(best: SettingPlayed, before_ns: Times) -> PlayedRemedy:
    """A setting as a remedy."""
    about = {"setting": best.value, "half_ns": best.half_ns}
    return PlayedRemedy(name=best.option, about=about, before_ns=before_ns, after_ns=best.spans_ns)


def _programs(run: Run) -> DevicePrograms | None:
    """None where they cannot be played, or would take too long."""
    if not run.traces or any(rule_of(trace) is not Rule.GPU for trace in run.traces):
        return None
    if _stretches(run) > _MAX_STRETCHES:
        return None
    try:
        return require_device(run)
    except OverlaplabError:
        return None


def _stretches(run: Run) -> int:
    return sum(len(activity(trace).compute) for trace in run.traces)
