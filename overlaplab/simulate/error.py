"""How far a prediction may be off: what a recording of the predicted setting would give in 95 of 100 cases.

Three parts, of which none knows of the others, so that their squares add up. Steps within a recording, and recordings
of the same setting, are two levels of a random-effects model: Kalibera and Jones, Rigorous benchmarking in reasonable
time (ISMM 2013). The third is the model's own error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, pi, sqrt
from statistics import NormalDist, fmean, stdev

__all__ = ["REPEATS_DIFFER", "Interval", "beyond", "interval", "repeats_deviation"]

REPEATS_DIFFER = 0.056
"""Mean difference between two recordings of one setting, of their step time: 24 pairs of `traces/sweep` (CPU)."""
_PRIOR_WEIGHT = 4
"""As many degrees of freedom this prior has beside a sweep's own repeats."""
_Z = NormalDist().inv_cdf(0.975)
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t for 95 %, two-sided, with 1 to 10 degrees of freedom."""
_FAR = 2.0
"""What lies further outside than this multiple is extrapolated, as in torch inductor's profile-guided estimation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Half of a 95 % interval of the mean step, in ns, in its parts."""

    steps_ns: int
    """The mean's error by the spread of the recorded steps; 0 where a single one was recorded."""
    recordings_ns: int
    """How much two recordings of one setting differ."""
    model_ns: int
    """By how much the replay of the recorded run is off."""

    @property
    def half_ns(self) -> int:
        """The parts together."""
        return round(hypot(self.steps_ns, self.recordings_ns, self.model_ns))


def interval(
    step_ns: float, recorded: Sequence[float], replayed: Sequence[float], repeats: Sequence[Sequence[float]] = ()
) -> Interval:
    """The interval around a predicted mean step of `step_ns`.

    `recorded` and `replayed`: the run's steps in ns, as recorded and as played unchanged. `repeats`: step times of
    recordings that were made beside it, each setting's together.
    """
    mean = fmean(recorded)
    spread = stdev(recorded) / sqrt(len(recorded)) * _student(len(recorded) - 1) if len(recorded) > 1 else 0.0
    off = [own - truth for own, truth in zip(replayed, recorded, strict=True)]
    model = abs(fmean(off)) + fmean(map(abs, off))
    scale = step_ns / mean
    between = _Z * sqrt(2) * repeats_deviation(repeats) * step_ns
    return Interval(steps_ns=round(spread * scale), recordings_ns=round(between), model_ns=round(model * scale))


def repeats_deviation(repeats: Sequence[Sequence[float]] = ()) -> float:
    """Relative standard deviation of one recording's step time: the prior's, and more and more that of the repeats.

    The mean difference of two normal values is 2/√π of their standard deviation.
    """
    squares, freedom = _PRIOR_WEIGHT * (REPEATS_DIFFER * sqrt(pi) / 2) ** 2, _PRIOR_WEIGHT
    for times in repeats:
        if len(times) > 1:
            squares += (len(times) - 1) * (stdev(times) / fmean(times)) ** 2
            freedom += len(times) - 1
    return sqrt(squares / freedom)


def beyond(predicted: Sequence[float], recorded: Sequence[float]) -> float | None:
    """How many times further than all recorded values a predicted one lies, on either side; None up to twice as far."""
    if not predicted or not recorded or min(*predicted, *recorded) <= 0:
        return None
    most = max(max(predicted) / max(recorded), min(recorded) / min(predicted))
    return most if most > _FAR else None


def _student(freedom: int) -> float:
    """By the table, then by the first term of its expansion around the normal distribution."""
    return _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _Z + (_Z**3 + _Z) / (4 * freedom)
