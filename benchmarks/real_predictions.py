"""Predicted steps against recorded ones with real computation: how often a recording lies in its 95 % interval.

    python benchmarks/real_predictions.py OUT

One source is recorded, twenty settings are predicted from it and written to OUT/predicted.json, then each is recorded
three times, in random order. A recording that says of itself that the machine was busy is made again. A line for each
setting; then the share of recordings in their intervals, the mean error (beyond half the range of the setting's own
recordings, too), and Kendall's τ of those pairs of caps of which every recording of one is faster than every one of the
other. Then all is predicted again from each of the recordings of the source's own setting: one source alone tells
little of how often intervals hold. Run it on an idle machine.
"""

import json
import random
from itertools import combinations, permutations
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from _shared import record, setting_options

import overlaplab
from overlaplab.findings.runs import describe_machine
from overlaplab.manifest import Link
from overlaplab.simulate.predictions.error import measured_steps
from overlaplab.simulate.predictions.predict import Prediction, predict
from overlaplab.simulate.programs.setting import Setting

MODEL = ("--batch", "16", "--steps", "5")
LINK = Link(emulated=True, bandwidth_gbps=1, latency_us=1000, world_size=2)
SLOW = Link(emulated=True, bandwidth_gbps=0.5, latency_us=1000, world_size=2)
FAR = Link(emulated=True, bandwidth_gbps=1, latency_us=5000, world_size=2)
SOURCE = Setting(strategy="bucketed", bucket_cap_mb=4, link=LINK, ranks=2)
CAPS = (1, 2, 4, 8, 25)
SETTINGS = (
    *(Setting(strategy="bucketed", bucket_cap_mb=cap, link=LINK, ranks=2) for cap in CAPS),
    *(
        Setting(strategy="bucketed", bucket_cap_mb=cap, link=link, ranks=2)
        for link in (SLOW, FAR)
        for cap in (1, 4, 25)
    ),
    *(Setting(strategy="torch-ddp", bucket_cap_mb=cap, link=LINK, ranks=2) for cap in (4, 25)),
    *(Setting(strategy=name, bucket_cap_mb=4, link=LINK, ranks=2) for name in ("zero1", "zero2")),
    *(Setting(strategy=name, link=LINK, ranks=2) for name in ("naive", "per-param", "zero3")),
    Setting(strategy="bucketed", bucket_cap_mb=4, first_bucket_mb=0.5, link=LINK, ranks=2),
    Setting(strategy="bucketed", bucket_cap_mb=4, link=LINK, ranks=2, accumulate=2),
)


def main(
    out: Path,
    repeats: Annotated[int, typer.Option(min=2, help="Recordings of each setting.")] = 3,
    targets: Annotated[int, typer.Option(min=3, help="How many settings.")] = len(SETTINGS),
    attempts: Annotated[int, typer.Option(min=1, help="Recordings at most, until the machine was free for one.")] = 4,
) -> None:
    """Record, predict, record, compare."""
    settings = SETTINGS[:targets]
    source = record_undisturbed(SOURCE, out / "source", attempts)
    predicted = [predict(source, setting) for setting in settings]
    (out / "predicted.json").write_text(json.dumps([[p.step_ns, p.interval.half_ns] for p in predicted]))
    runs: list[list[overlaplab.Run]] = [[] for _ in settings]
    order = [number for number in range(len(settings)) for _ in range(repeats)]
    random.Random(0).shuffle(order)
    for number in order:
        folder = out / f"{number}-{len(runs[number])}"
        runs[number].append(record_undisturbed(settings[number], folder, attempts))
    steps_ns = [[fmean(measured_steps(run)) for run in recordings] for recordings in runs]
    inside, errors, beyond = [], [], []
    for setting, expected, recorded in zip(settings, predicted, steps_ns, strict=True):
        mean, half_range = fmean(recorded), (max(recorded) - min(recorded)) / 2
        inside += [holds(expected, recorded_ns) for recorded_ns in recorded]
        errors.append(expected.step_ns / mean - 1)
        beyond.append(max(0.0, abs(expected.step_ns - mean) - half_range) / mean)
        each = " ".join(f"{ns / 1e6:.0f}" for ns in recorded)
        words = (
            f"{setting.strategy} {setting.bucket_cap_mb} {setting.first_bucket_mb} {setting.accumulate} {setting.link}"
        )
        half_ms = expected.interval.half_ns / 1e6
        print(f"{expected.step_ns / 1e6:7.0f} ± {half_ms:.0f} ms, recorded {each} {errors[-1]:+7.2%}  {words}")
    caps = list(zip([p.step_ns for p in predicted], steps_ns, strict=True))[: len(CAPS)]
    apart = [(a, b) for a, b in permutations(caps, 2) if max(a[1]) < min(b[1])]
    differ = fmean(2 * abs(a - b) / (a + b) for recordings in steps_ns for a, b in combinations(recordings, 2))
    tau = fmean(1 if a[0] < b[0] else -1 for a, b in apart) if apart else nan
    print(
        f"inside: {sum(inside)} of {len(inside)}; mean error {fmean(map(abs, errors)):.2%}, worst "
        f"{max(map(abs, errors)):.2%}, mean beyond the repeats {fmean(beyond):.2%}; "
        f"τ of {len(apart)} pairs of caps {tau:.2f}; recordings of one setting differ by {differ:.2%} in the mean"
    )
    again = [
        holds(expected, fmean(measured_steps(run)))
        for other in runs[settings.index(SOURCE)]
        for setting, recordings in zip(settings, runs, strict=True)
        for expected in [predict(other, setting)]
        for run in recordings
        if run is not other
    ]
    print(f"from {repeats} recordings of the source's setting: {sum(again)} of {len(again)} inside")


def holds(expected: Prediction, recorded_ns: float) -> bool:
    """Whether a recording's mean step lies in the predicted interval."""
    return abs(recorded_ns - expected.step_ns) <= expected.interval.half_ns


def record_undisturbed(setting: Setting, out: Path, attempts: int) -> overlaplab.Run:
    """A recording for which the machine was free; else the last attempt."""
    for attempt in range(attempts):
        run = record(out / str(attempt), *setting_options(setting), *MODEL)
        if run.manifest is not None and not describe_machine(run.manifest):
            break
    return run


if __name__ == "__main__":
    typer.run(main)
