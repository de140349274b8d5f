"""Predicted pipelines against recorded ones, on the sleeping device: each setting from the recording of each other.

    python benchmarks/pipelines.py OUT              records what OUT does not hold yet, then compares
    python benchmarks/pipelines.py OUT --several    schedules with several stages on a rank, and replicas

Four ranks with a stage on each, and ten units of 10 ms forward and 20 ms back. Each line: the mean step predicted and
recorded, and the error; at the end the mean and the worst, raw. The last line is what `overlaplab pipeline` says of
twice as many microbatches of half the size. Record on a machine with nothing else to do: about two minutes. With
`--several` the link may be late now and then, as more is posted.
"""

from collections.abc import Iterable
from itertools import permutations, product
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from _shared import record, setting_options

import overlaplab
from overlaplab.errors import OverlaplabError
from overlaplab.findings import refuse_to_predict
from overlaplab.simulate import pipeline_remedies
from overlaplab.simulate.predictions.error import measured_steps
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.programs.setting import Setting

COMMON = (
    *("--strategy", "pipeline", "--nproc", "4", "--link", "1Gbps,2000us", "--layers", "8"),
    *("--steps", "5", "--attempts", "1", "--compute", "sleep:10ms,20ms,1ms"),
)
EVEN = (2, 2, 2, 2)
SETTINGS = (
    Setting(schedule="gpipe", microbatches=4, stages=EVEN),
    Setting(schedule="gpipe", microbatches=8, stages=EVEN),
    Setting(schedule="1f1b", microbatches=4, stages=EVEN),
    Setting(schedule="1f1b", microbatches=8, stages=EVEN),
    Setting(schedule="gpipe", microbatches=8, stages=(1, 3, 3, 1)),
    Setting(schedule="1f1b", microbatches=8, stages=(1, 3, 3, 1)),
    Setting(schedule="1f1b", microbatches=16, stages=EVEN),
)


SMALL = ("--steps", "4", "--width", "64", "--heads", "4", "--seq", "16", "--vocab", "100", "--batch", "1")
SEVERAL = (
    Setting(schedule="1f1b", microbatches=8, stages=EVEN),
    Setting(schedule="interleaved-1f1b", microbatches=8, stages=(1,) * 8),
    Setting(schedule="interleaved-1f1b", microbatches=4, stages=(1,) * 8),
    Setting(schedule="zbv", microbatches=8, stages=(1,) * 8),
    Setting(schedule="zbv", microbatches=12, stages=(1,) * 8),
)
REPLICATED = (
    Setting(schedule="1f1b", microbatches=4, stages=(4, 4)),
    Setting(schedule="gpipe", microbatches=4, stages=(4, 4)),
)


def main(
    out: Path,
    several: bool = False,
    settings: Annotated[int, typer.Option(min=2, help="How many, without --several.")] = len(SETTINGS),
) -> None:
    """Record, predict, compare."""
    if several:
        runs = {setting: record_setting(setting, out / name(setting), *SMALL) for setting in SEVERAL}
        compare(runs, product(runs, repeat=2))
        mesh = ("--dp", "2", "--pp", "2")
        runs = {setting: record_setting(setting, out / f"dp-{name(setting)}", *SMALL, *mesh) for setting in REPLICATED}
        compare(runs, product(runs, repeat=2))
        return
    runs = {setting: record_undisturbed(setting, out / name(setting)) for setting in SETTINGS[:settings]}
    errors = compare(runs, permutations(runs, 2))
    print(f"mean {fmean(map(abs, errors)):.2%}, worst {max(map(abs, errors)):.2%}")
    if len(runs) < len(SETTINGS):
        return
    played = pipeline_remedies(runs[SETTINGS[3]])
    twice = played[(played["remedy"] == "microbatches") & (played["setting"] == "16")]["step_ns"].item()
    halved = record_undisturbed(SETTINGS[6], out / "halved", "--compute", "sleep:5ms,10ms,1ms", "--batch", "2")
    print_error(twice, halved, f"{name(SETTINGS[3])} → 16 halved")


def compare(runs: dict[Setting, overlaplab.Run], pairs: Iterable[tuple[Setting, ...]]) -> list[float]:
    """The errors of each pair's second setting, from the first one's recording."""
    errors = []
    for source, target in pairs:
        try:
            predicted = predict(runs[source], target).step_ns
        except OverlaplabError as error:
            print(f"{name(source)} → {name(target)}: {error}")
            continue
        errors.append(print_error(predicted, runs[target], f"{name(source)} → {name(target)}"))
    return errors


def print_error(predicted_ns: float, recorded: overlaplab.Run, what: str) -> float:
    """The error, which is printed."""
    really = fmean(measured_steps(recorded))
    error = predicted_ns / really - 1
    print(f"{predicted_ns / 1e6:8.1f} {really / 1e6:8.1f} ms {error:+7.2%}  {what}")
    return error


def name(setting: Setting) -> str:
    """A folder's name."""
    return f"{setting.schedule}-m{setting.microbatches}-{''.join(map(str, setting.stages or ()))}"


def record_undisturbed(setting: Setting, out: Path, *more: str) -> overlaplab.Run:
    """Do as `record_setting`, but stop where the machine was busy, or the link late: remove the folder, and go on."""
    run = record_setting(setting, out, *more)
    refuse_to_predict(run)
    return run


def record_setting(setting: Setting, out: Path, *more: str) -> overlaplab.Run:
    """The engine with this setting, asleep, unless it is there already."""
    return overlaplab.load_run(out) if out.exists() else record(out, *COMMON, *setting_options(setting), *more)


if __name__ == "__main__":
    typer.run(main)
