"""Predicted pipelines against recorded ones, on the sleeping device: each setting from the recording of each other.

    python benchmarks/pipelines.py OUT              records what OUT does not hold yet, then compares
    python benchmarks/pipelines.py OUT --several    schedules with several stages on a rank, and replicas

Four ranks with a stage on each, and ten units of 10 ms forward and 20 ms back. Each line: the mean step predicted and
recorded, and the error; at the end the mean and the worst, raw. The last line is what `overlaplab pipeline` says of
twice as many microbatches of half the size. Record on a machine with nothing else to do: about two minutes. With
`--several` the link may be late now and then, as more is posted.
"""

import subprocess
import sys
from itertools import permutations, product
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

import overlaplab
from overlaplab.errors import OverlaplabError
from overlaplab.findings import refuse_to_predict
from overlaplab.simulate import pipeline_remedies
from overlaplab.simulate.predictions.error import measured_steps
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.programs.setting import Setting

COMMON = (
    *("--strategy", "pipeline", "--device", "cpu", "--nproc", "4", "--link", "1Gbps,2000us", "--layers", "8"),
    *("--steps", "5", "--attempts", "1"),
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
        _compare({setting: record(setting, out / name(setting), *SMALL) for setting in SEVERAL})
        mesh = ("--dp", "2", "--pp", "2")
        _compare({setting: record(setting, out / f"dp-{name(setting)}", *SMALL, *mesh) for setting in REPLICATED})
        return
    runs = {setting: recording(setting, out / name(setting)) for setting in SETTINGS[:settings]}
    errors = []
    for source, target in permutations(runs, 2):
        predicted, really = predict(runs[source], target).step_ns, fmean(measured_steps(runs[target]))
        errors.append(predicted / really - 1)
        print(f"{predicted / 1e6:8.1f} {really / 1e6:8.1f} ms {errors[-1]:+7.2%}  {name(source)} → {name(target)}")
    print(f"mean {fmean(map(abs, errors)):.2%}, worst {max(map(abs, errors)):.2%}")
    if len(runs) < len(SETTINGS):
        return
    played = pipeline_remedies(runs[SETTINGS[3]])
    twice = played[(played["remedy"] == "microbatches") & (played["setting"] == "16")]["step_ns"].item()
    halved = recording(SETTINGS[6], out / "halved", "5ms,10ms,1ms", "--batch", "2")
    really = fmean(measured_steps(halved))
    print(f"{twice / 1e6:8.1f} {really / 1e6:8.1f} ms {twice / really - 1:+7.2%}  {name(SETTINGS[3])} → 16 halved")


def _compare(runs: dict[Setting, overlaplab.Run]) -> None:
    """Each from each, itself included."""
    for source, target in product(runs, repeat=2):
        try:
            predicted = predict(runs[source], target).step_ns
        except OverlaplabError as error:
            print(f"{name(source)} → {name(target)}: {error}")
            continue
        really = fmean(measured_steps(runs[target]))
        line = f"{predicted / 1e6:8.1f} {really / 1e6:8.1f} ms {predicted / really - 1:+7.2%}"
        print(f"{line}  {name(source)} → {name(target)}")


def name(setting: Setting) -> str:
    """A folder's name."""
    return f"{setting.schedule}-m{setting.microbatches}-{''.join(map(str, setting.stages or ()))}"


def recording(setting: Setting, out: Path, sleep: str = "10ms,20ms,1ms", *more: str) -> overlaplab.Run:
    """Record likewise; stops where the machine was busy, or the link late: remove the folder, and go on."""
    run = record(setting, out, "--compute", f"sleep:{sleep}", *more)
    refuse_to_predict(run)
    return run


def record(setting: Setting, out: Path, *more: str) -> overlaplab.Run:
    """The engine with this setting, asleep, unless it is there already."""
    stages = ",".join(map(str, setting.stages or ()))
    options = ["--schedule", str(setting.schedule), "--microbatches", str(setting.microbatches), "--stages", stages]
    command = [sys.executable, "-m", "overlaplab", "record", *COMMON, *options]
    command += ["--compute", "sleep:10ms,20ms,1ms", *more]
    if not out.exists():
        subprocess.run([*command, "--out", str(out)], check=True, capture_output=True)
    return overlaplab.load_run(out)


if __name__ == "__main__":
    typer.run(main)
