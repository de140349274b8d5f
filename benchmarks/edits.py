"""Gains that edits predict against recordings without a loop's fault, through a Recorder: see `_loops.py`.

    python benchmarks/edits.py OUT [--recordings 3] [--only LOOP]
    python benchmarks/edits.py OUT --gpu      loops that `_gpu_loops.py` recorded on one GPU into OUT

Each loop is recorded with its fault and without it, in turn. A line for each edit: the gain predicted from each
recording with the fault, and the recorded one, medians in ms per step; the loop's step; and whether they differ by no
more than a fifth of the gain or 2 % of the step. Run it on an idle machine. On a GPU it is compared with the gain of
steps that nothing records, which follows: recorded steps hold what the profiler costs a host that is not ahead of its
device.
"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean, median
from typing import Annotated

import typer

import overlaplab
from overlaplab.simulate import undisturbed_spans_ns
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.programs.setting import Setting

LOOPS = {
    "microbatches": [Setting(edits=(("last-pass", None),))],
    "units-microbatches": [Setting(edits=(("last-pass", None),))],
    "metrics": [Setting(edits=(("async", None),))],
    "metrics-apart": [Setting(edits=(("merge", None),))],
    "loader-of-one": [Setting(edits=(("without-host-work", "enumerate(DataLoader)"),))],
    "loader-of-all": [Setting(edits=(("without-host-work", "enumerate(DataLoader)"),))],
    "saving": [Setting(edits=(("without-host-work", "saving"),)), Setting(edits=(("no-pause", None),))],
    "late-rank": [Setting(edits=(("balance", "1"),))],
    "late-features": [Setting(edits=(("early", None),))],
    "large-embedding": [Setting(without_parameter="0.weight")],
    "full-precision": [Setting(edits=(("half-bytes", None),))],
    "sync-batch-norm": [Setting(edits=(("leave-out", None),))],
    "lengths": [Setting(edits=(("even-work", None),))],
    "registration-order": [Setting(edits=(("arrival-order", None),))],
    "one-bucket": [Setting(bucket_cap_mb=0.12)],
}

LOOPS_ON_GPU = {
    "launches": [Setting(edits=(("no-launch-overhead", None),))],
    "saving": [Setting(edits=(("without-host-work", "saving"),))],
    "pause": [Setting(edits=(("no-pause", None),))],
    "loader": [Setting(edits=(("without-host-work", "enumerate(DataLoader)"),))],
    "microbatches": [Setting(edits=(("last-pass", None),))],
    "units-microbatches": [Setting(edits=(("last-pass", None),))],
    "full-precision": [Setting(edits=(("half-bytes", None),))],
    "one-bucket": [Setting(bucket_cap_mb=25)],
    "small-buckets": [Setting(bucket_cap_mb=25)],
    "norms": [Setting(edits=(("no-device-waits", None),))],
}
SIDES = ("-faulty-", "-mended-")


def main(
    out: Path,
    recordings: Annotated[int, typer.Option(help="Of each loop, with its fault and without.")] = 3,
    only: Annotated[str | None, typer.Option(help="A loop's name.")] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Those that `_gpu_loops.py` recorded into OUT.")] = False,
) -> None:
    """Record, predict, compare."""
    for loop, settings in (LOOPS_ON_GPU if gpu else LOOPS).items():
        if only not in (None, loop):
            continue
        if gpu:
            pairs = [
                [overlaplab.load_run(faulty.with_name(faulty.name.replace("-faulty-", side))) for side in SIDES]
                for faulty in sorted(out.glob(f"{loop}-faulty-*"))
            ]
        else:
            pairs = [[record(loop, out, number, mended) for mended in (False, True)] for number in range(recordings)]
        for setting in settings if pairs else ():
            print(line(loop, setting, pairs, unrecorded_step_ms(out, loop) if gpu else None), flush=True)


def unrecorded_step_ms(out: Path, loop: str) -> tuple[float, float]:
    """A step that nothing records, with the fault and without, in ms."""
    steps = json.loads((out / "steps.json").read_text())
    before, after = (median(took for run, took in steps.items() if run.startswith(loop + side)) for side in SIDES)
    return before * 1e3, after * 1e3


def record(loop: str, out: Path, number: int, mended: bool) -> overlaplab.Run:
    """One recording."""
    folder = out / f"{loop}-{'mended' if mended else 'faulty'}-{number}"
    if not (folder / "run.json").exists():
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
        options = ["--mended"] if mended else []
        script = str(Path(__file__).parent / "_loops.py")
        subprocess.run([*torchrun, script, loop, str(folder), *options], check=True, capture_output=True)
    return overlaplab.load_run(folder)


def line(
    loop: str, setting: Setting, pairs: list[list[overlaplab.Run]], bare: tuple[float, float] | None = None
) -> str:
    """What was predicted and recorded; `bare`: steps that nothing recorded."""
    predicted = []
    for faulty, _ in pairs:
        edited, as_is = predict(faulty, setting), predict(faulty, Setting())
        predicted.append((as_is.step_ns - edited.step_ns) / 1e6)
    steps = [[fmean(undisturbed_spans_ns(run).mean(axis=0)) / 1e6 for run in runs] for runs in pairs]
    before, after = (median(column) for column in zip(*steps, strict=True))
    gain, recorded = median(predicted), before - after
    real, step = (recorded, before) if bare is None else (bare[0] - bare[1], bare[0])
    close = abs(gain - real) <= max(0.2 * abs(real), 0.02 * step)
    name = setting.edits[0][0] if setting.edits else "without-parameter" if setting.without_parameter else "cap"
    spread = f"{min(predicted):.1f} to {max(predicted):.1f}"
    return (
        f"{'ok ' if close else 'OFF'} {loop:16} {name:18} predicted {gain:6.1f} ({spread})  recorded {recorded:6.1f}"
        f"  of {before:.1f}" + ("" if bare is None else f"  unrecorded {real:6.1f} of {step:.1f}")
    )


if __name__ == "__main__":
    typer.run(main)
