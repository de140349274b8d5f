"""How far a prediction may be off: what a recording of the predicted setting would give in 95 of 100 cases.

docs/design/plays.md, A prediction's error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import hypot, log2, pi, sqrt
from statistics import NormalDist, fmean, stdev

import pandas as pd
from msgspec import Struct
from msgspec.structs import replace

from overlaplab.analyses.across_runs.settings import same_but_cap
from overlaplab.costs import students_t
from overlaplab.events import Run
from overlaplab.manifest import Manifest
from overlaplab.simulate.player import Move, find_launches
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.transfers import times_beyond
from overlaplab.simulate.undisturbed import undisturbed_spans_ns, undisturbed_steps

REPEATS_DIFFER = 0.027
"""Mean difference between two recordings of one setting, of their step time: 120 pairs with steps of half a second, on
an idle CPU (`benchmarks/real_predictions.py`). The shorter steps of `traces/sweep` differ by 5.6 %, as they tell."""
DIFFERENCES_MISS = 0.033
"""By how much the predicted difference between two caps misses that of their recordings' means, as a share of the step:
root mean square over the 12 ordered pairs of caps in `traces/sweep`. It contains the error of these means."""
EXTRAPOLATION_MISSES = 0.014
"""Share of a predicted step for each doubling of what was recorded that it lies outside: mean error of 3, 4 and 8 ranks
that were predicted from two (`benchmarks/predictions.py`)."""
_PRIOR_DEGREES = 4
"""The degrees of freedom with which `REPEATS_DIFFER` counts as a prior, beside those of a sweep's own repeats."""
_Z = NormalDist().inv_cdf(0.975)


class Interval(Struct, frozen=True, kw_only=True):
    """Half of a 95 % interval of the mean step, in ns, in its parts."""

    steps_ns: int
    """The mean's error by the spread of the recorded steps; 0 where a single undisturbed one is left."""
    recordings_ns: int
    """How much two recordings of one setting differ."""
    model_ns: int
    """By how much the replay of the recorded run is off."""
    transfers_ns: int = 0
    """How much it may be off because T of other sizes, a line through recorded transfers, is."""
    extrapolation_ns: int = 0
    """How much it may be off because sizes, speeds or ranks lie far outside of what was recorded."""

    @property
    def half_ns(self) -> int:
        """The parts together."""
        return round(hypot(self.steps_ns, self.recordings_ns, self.model_ns, self.transfers_ns, self.extrapolation_ns))


def interval(
    step_ns: float, recorded: Sequence[float], replayed: Sequence[float], repeats: Sequence[Sequence[float]] = ()
) -> Interval:
    """The interval around a predicted mean step of `step_ns`.

    `recorded` and `replayed`: the run's steps in ns, as recorded and as played unchanged. `repeats`: step times of
    recordings that were made beside it, each setting's together.
    """
    mean = fmean(recorded)
    spread = stdev(recorded) / sqrt(len(recorded)) * students_t(len(recorded) - 1) if len(recorded) > 1 else 0.0
    off = [replayed_ns - truth for replayed_ns, truth in zip(replayed, recorded, strict=True)]
    model = abs(fmean(off)) + fmean(map(abs, off))
    scale = step_ns / mean
    between = _Z * sqrt(2) * repeats_deviation(repeats) * step_ns
    return Interval(steps_ns=round(spread * scale), recordings_ns=round(between), model_ns=round(model * scale))


def prediction_interval(
    run: Run,
    step_ns: float,
    replayed: Sequence[float],
    caps: pd.DataFrame | None = None,
    far: Mapping[str, float] = {},
    transfers_ns: int = 0,
) -> Interval:
    """The interval around a mean step that was predicted from the run.

    `replayed`: the recorded run's steps, played unchanged, all of them. `caps`: rows of `recorded_caps`, if any. `far`:
    what is extrapolated, see `extrapolations`. `transfers_ns`: that part of the interval.
    """
    by_cap = () if caps is None else caps.groupby("bucket_cap_mb", dropna=False)["step_ns"]
    repeats = [rows.tolist() for _, rows in by_cap]
    left = [replayed_ns for replayed_ns, is_left in zip(replayed, undisturbed_steps(run), strict=True) if is_left]
    beyond_ns = round(_Z * EXTRAPOLATION_MISSES * sum(map(log2, far.values())) * step_ns)
    sure = interval(step_ns, measured_steps(run), left, repeats)
    return replace(sure, transfers_ns=transfers_ns, extrapolation_ns=beyond_ns)


def gain_half_ns(measured_ns: float, step_ns: float, sure: Interval) -> int:
    """Half of the 95 % interval of the difference between two settings that were predicted from one recording.

    They share the recording, and with it its steps and by how much it differs from another. So of `sure`, the interval
    of one of them, which takes `step_ns`, what the model, T of other sizes and an extrapolation are off counts alone,
    and what such differences miss: a share of the recorded mean step, so that it is the same for all settings that are
    not extrapolated. `advise`, `predict` and What if tell this one.
    """
    model_ns = sure.model_ns * measured_ns / step_ns if step_ns else 0.0  # it is a share of the predicted step
    off = (model_ns, sure.transfers_ns, sure.extrapolation_ns, _Z * DIFFERENCES_MISS * measured_ns)
    return round(hypot(*off))


def measured_steps(run: Run) -> list[float]:
    """How long each step took that nothing disturbed, the mean over the ranks, in ns."""
    steps: list[float] = undisturbed_spans_ns(run).mean(axis=0).tolist()
    return steps


def recorded_caps(manifest: Manifest, others: Iterable[Manifest]) -> pd.DataFrame:
    """The mean step, by run.json alone, of those of `others` that differ from `manifest` in nothing but the cap.

    Columns: `bucket_cap_mb` (NaN where it is not told), `step_ns` (both float64). Predicted runs are left out. What
    else differs between loops of one's own run.json does not say: of those it is only what a sweep recorded. There are
    none of runs on GPUs, of which older run.json have the host's time, which is ahead of the device.
    """
    if manifest.device not in (None, "cpu"):
        others = ()
    elif manifest.by_recorder and manifest.swept is None:
        others = (manifest,)
    rows = [
        (other.bucket_cap_mb, fmean(took))
        for other in others
        if same_but_cap(manifest, other)
        and (took := [row.took_ns for row in other.link_steps or other.machine or () if row.took_ns])
    ]
    return pd.DataFrame(rows, columns=["bucket_cap_mb", "step_ns"]).astype("float64")


def repeats_deviation(repeats: Sequence[Sequence[float]] = ()) -> float:
    """Relative standard deviation of one recording's step time: the prior's, and more and more that of the repeats.

    The mean difference of two normal values is 2/√π of their standard deviation.
    """
    squares, freedom = _PRIOR_DEGREES * (REPEATS_DIFFER * sqrt(pi) / 2) ** 2, _PRIOR_DEGREES
    for times in repeats:
        if len(times) > 1:
            squares += (len(times) - 1) * (stdev(times) / fmean(times)) ** 2
            freedom += len(times) - 1
    return sqrt(squares / freedom)


def extrapolations(
    manifest: Manifest, setting: Setting, recorded: Iterable[Move], predicted: Iterable[Move]
) -> dict[str, float]:
    """What of a setting lies far outside of the recording, and how many times as far (see `times_beyond`).

    Keys are `bytes` (the sizes of messages, but for a recorded link, whose formula is of any size), `bandwidth`,
    `latency` and `ranks`; moves are of ranks that launch all.
    """
    times_as_far: dict[str, float | None] = {}
    if not manifest.link:
        measured = manifest.calibration.collectives if manifest.calibration else ()
        sizes, predicted_sizes = ([launch.bytes for launch in find_launches(moves)] for moves in (recorded, predicted))
        sizes += [row.bytes for row in measured]
        times_as_far["bytes"] = times_beyond([*filter(None, predicted_sizes)], [*filter(None, sizes)])
    if setting.link and manifest.link:
        times_as_far["bandwidth"] = times_beyond([setting.link.bandwidth_gbps], [manifest.link.bandwidth_gbps])
        times_as_far["latency"] = times_beyond([setting.link.latency_us], [manifest.link.latency_us])
    if setting.ranks:
        times_as_far["ranks"] = times_beyond([setting.ranks], [manifest.world_size])
    return {name: round(times, 2) for name, times in times_as_far.items() if times is not None}
