"""Gains that edits predict against recordings without a loop's fault, through a Recorder: see `_loops.py`.

    python benchmarks/edits.py OUT [--recordings 3] [--only LOOP]
    python benchmarks/edits.py OUT --gpu      loops that `_gpu_loops.py` recorded on one GPU into OUT

Each loop is recorded with its fault and without it, in turn. A line says in how many recordings with the fault the
first advice is right, which gains it predicts, and what was gained. Then a line for each edit: the gain predicted from
each recording with the fault, and the recorded one, medians in ms per step; the loop's step; and whether they differ by
no more than a fifth of the gain or 2 % of the step. Run it on an idle machine. On a GPU it is compared with the gain of
steps that nothing records, which follows: recorded steps hold what the profiler costs a host that is not ahead of its
device.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Annotated

import typer

import overlaplab
from overlaplab.simulate import undisturbed_spans_ns
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.programs.setting import Setting


@dataclass(frozen=True, slots=True)
class FaultyLoop:
    """A training loop with a fault."""

    advice: tuple[str, ...]
    """What the first advice names; any of these is right."""
    settings: tuple[Setting, ...] = ()
    """What answers the fault, as `predict` takes it."""


def answer_by_edit(*advice: str, edit: str, value: str | None = None) -> FaultyLoop:
    """A loop whose fault this edit answers."""
    return FaultyLoop(advice, (Setting(edits=((edit, value),)),))


SAVING = ("saving",)
LOADING = ("num_workers",)
LOOPS = {
    "microbatches": answer_by_edit("no_sync", edit="last-pass"),
    "units-microbatches": answer_by_edit("set_requires_gradient_sync", edit="last-pass"),
    "units-replicas-microbatches": answer_by_edit(
        "set_requires_all_reduce", "set_requires_gradient_sync", edit="last-all-reduce"
    ),
    "metrics": answer_by_edit("async_op=True", edit="async"),
    "metrics-apart": answer_by_edit("async_op=True", "in place of", edit="merge"),
    "loader-of-one": answer_by_edit(*LOADING, edit="without-host-work", value="enumerate(DataLoader)"),
    "loader-of-all": answer_by_edit(*LOADING, edit="without-host-work", value="enumerate(DataLoader)"),
    "saving": FaultyLoop(
        SAVING, tuple(Setting(edits=(edit,)) for edit in (("without-host-work", "saving"), ("no-pause", None)))
    ),
    "late-rank": answer_by_edit("rank 1 as fast", edit="balance", value="1"),
    "late-features": answer_by_edit("at the start of the step", edit="early"),
    "large-embedding": FaultyLoop(("freezing 0.weight",), (Setting(without_parameter="0.weight"),)),
    "full-precision": answer_by_edit("half the bytes", edit="half-bytes"),
    "sync-batch-norm": answer_by_edit("doing without", edit="leave-out"),
    "lengths": answer_by_edit("equal length", edit="even-work"),
    "registration-order": answer_by_edit("find_unused_parameters=False", edit="arrival-order"),
    "one-bucket": FaultyLoop(("bucket_cap_mb",), (Setting(bucket_cap_mb=0.12),)),
    "small-buckets": FaultyLoop(("bucket_cap_mb",), (Setting(bucket_cap_mb=0.06),)),
    "two-models": FaultyLoop(("for discriminator",)),
    "blocking-hooks": FaultyLoop(("DistributedDataParallel", "async_op=True"), (Setting(bucket_cap_mb=0.09),)),
    "after-backward": FaultyLoop(("DistributedDataParallel",), (Setting(bucket_cap_mb=0.09),)),
    "few-microbatches": FaultyLoop(("8 smaller microbatches",)),
    "reduced-to-one": FaultyLoop(("DistributedDataParallel",)),
    "tiny-units": answer_by_edit("larger units", edit="larger-units", value="3"),
    "pause": answer_by_edit("what blocks the host", edit="no-pause"),
    "pause-of-one": answer_by_edit("what blocks the host", "rank 0", edit="balance", value="0"),
    "saving-of-one": answer_by_edit(*SAVING, "rank 0", edit="without-host-work", value="saving"),
    "saving-each-third": answer_by_edit(*SAVING, edit="without-host-work", value="saving"),
    "gradient-norms": answer_by_edit("in place of", "async_op=True", edit="merge"),
    "gathered-objects": answer_by_edit("all-gathers", edit="merge"),
    "broadcast-buffers": answer_by_edit("broadcast_buffers=False", edit="without-buffers"),
    "barriers": answer_by_edit("doing without the 10 barriers", edit="leave-out", value="barrier"),
    "waiting-hook": answer_by_edit("returns its all-reduce's future", edit="wait-at-pass-end"),
    "broadcast-parameters": answer_by_edit("broadcasts", edit="leave-out", value="broadcast"),
    "sharded-optimizer": answer_by_edit("a whole optimizer", edit="whole-optimizer"),
    "units-freed": answer_by_edit("reshard_after_forward=False", edit="keep-gathered"),
    "units-saving": answer_by_edit(*SAVING, edit="without-host-work", value="saving"),
    "units-metrics": answer_by_edit("in place of", "async_op=True", edit="merge"),
    "no-problem": FaultyLoop(("What is left is computation", "Nothing", "No known remedy", "No gain is certain")),
}
"""What is right was written down before anything was recorded of the loops from `small-buckets` on."""

LOOPS_ON_GPU = {
    "launches": answer_by_edit("fewer launches", edit="no-launch-overhead"),
    "saving": answer_by_edit(*SAVING, edit="without-host-work", value="saving"),
    "pause": answer_by_edit("what blocks the host", edit="no-pause"),
    "loader": answer_by_edit(*LOADING, edit="without-host-work", value="enumerate(DataLoader)"),
    "microbatches": answer_by_edit("no_sync", edit="last-pass"),
    "units-microbatches": answer_by_edit("set_requires_gradient_sync", edit="last-pass"),
    "full-precision": answer_by_edit("half the bytes", edit="half-bytes"),
    "one-bucket": FaultyLoop(("bucket_cap_mb",), (Setting(bucket_cap_mb=25),)),
    "small-buckets": FaultyLoop(("bucket_cap_mb",), (Setting(bucket_cap_mb=25),)),
    "norms": answer_by_edit("no synchronisation", edit="no-device-waits"),
}
OF_FOUR = ("units-replicas-microbatches", "few-microbatches")
"""Loops of four ranks."""
SIDES = ("-faulty-", "-mended-")


def main(
    out: Path,
    recordings: Annotated[int, typer.Option(help="Of each loop, with its fault and without.")] = 3,
    only: Annotated[str | None, typer.Option(help="A loop's name.")] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Those that `_gpu_loops.py` recorded into OUT.")] = False,
) -> None:
    """Record, predict, compare."""
    for loop, answer in (LOOPS_ON_GPU if gpu else LOOPS).items():
        if only not in (None, loop):
            continue
        if gpu:
            pairs = [
                [overlaplab.load_run(faulty.with_name(faulty.name.replace("-faulty-", side))) for side in SIDES]
                for faulty in sorted(out.glob(f"{loop}-faulty-*"))
            ]
        else:
            pairs = [[record(loop, out, number, mended) for mended in (False, True)] for number in range(recordings)]
        if not pairs:
            continue
        unrecorded = unrecorded_step_ms(out, loop) if gpu else None
        print(advice_line(loop, answer, pairs), flush=True)
        for setting in answer.settings:
            print(line(loop, setting, pairs, unrecorded), flush=True)


def unrecorded_step_ms(out: Path, loop: str) -> tuple[float, float]:
    """A step that nothing records, with the fault and without, in ms."""
    steps = json.loads((out / "steps.json").read_text())
    before, after = (median(took for run, took in steps.items() if run.startswith(loop + side)) for side in SIDES)
    return before * 1e3, after * 1e3


def record(loop: str, out: Path, number: int, mended: bool) -> overlaplab.Run:
    """One recording, which is made unless it is there already."""
    folder = out / f"{loop}-{'mended' if mended else 'faulty'}-{number}"
    if not (folder / "run.json").exists():
        ranks = "4" if loop in OF_FOUR else "2"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks, "--standalone"]
        options = ["--mended"] if mended else []
        script = str(Path(__file__).parent / "_loops.py")
        subprocess.run([*torchrun, script, loop, str(folder), *options], check=True, capture_output=True)
    return overlaplab.load_run(folder)


def advice_line(loop: str, answer: FaultyLoop, pairs: list[list[overlaplab.Run]]) -> str:
    """In how many recordings with the fault the first advice is right, the gains it predicts, and what was recorded."""
    diagnoses = [overlaplab.diagnosis(faulty) for faulty, _ in pairs]
    advice = [each.advice if each is not None else "" for each in diagnoses]
    right = sum(any(words in text for words in answer.advice) for text in advice)
    gains = ", ".join(f"{(each.gain_ns or 0) / 1e6:.1f}" for each in diagnoses if each is not None)
    before, after = recorded_steps_ms(pairs)
    return (
        f"advice right in {right} of {len(pairs)}: {loop}, predicted {gains}  recorded {before - after:.1f}"
        f"  of {before:.1f}: {' | '.join(sorted(set(advice)))}"
    )


def recorded_steps_ms(pairs: list[list[overlaplab.Run]]) -> tuple[float, float]:
    """A step with the fault and without."""
    steps = [[fmean(undisturbed_spans_ns(run).mean(axis=0)) / 1e6 for run in runs] for runs in pairs]
    before, after = (median(column) for column in zip(*steps, strict=True))
    return before, after


def line(
    loop: str, setting: Setting, pairs: list[list[overlaplab.Run]], bare: tuple[float, float] | None = None
) -> str:
    """What was predicted and recorded; `bare`: steps that nothing recorded."""
    predicted = []
    for faulty, _ in pairs:
        edited, as_is = predict(faulty, setting), predict(faulty, Setting())
        predicted.append((as_is.step_ns - edited.step_ns) / 1e6)
    before, after = recorded_steps_ms(pairs)
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
