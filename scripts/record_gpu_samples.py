"""Records the GPU sample runs anew: one rank of an emulated group of eight on one GPU, its peers phantoms.

    python scripts/record_gpu_samples.py                     into traces/GPU, such as traces/h100, with the GPU idle
    python scripts/record_gpu_samples.py DIR --device cpu    the same with a tiny model on the CPU: whether it works

One process records as many runs as it can, since CUDA and its profiler take longer to start than a run. After a run
that fails or hangs, a fresh process goes on with the next. What was recorded stays, and is packed after each run
(pack.sh), also if this script is stopped or killed. Needs torch, typer and rich; nothing need be installed of this
repository.
"""

import argparse
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
MOST_BYTES = 3_000_000
"""The files of a run stay below."""
STARTING_S = 90.0
"""How long a process may take until its first run begins: on a cold machine torch alone takes half a minute."""

LINK = "100Gbps,10us,8"
MODEL = "--width 1024 --heads 16 --seq 512 --batch 96 --vocab 8000 --warmup 12"
"""The GPU takes longer over a step than the host over its launches. In its first ten steps DDP's host waits for the
step before, to time it: so none of those are recorded."""
TINY = "--width 8 --heads 2 --seq 4 --batch 1 --vocab 20 --warmup 2"

_ORDERS = {"": (1, 5, 25, 100), "-2": (100, 25, 5, 1), "-3": (25, 1, 100, 5), "-4": (5, 100, 1, 25)}
"""The caps of four recordings: fewer tell no two caps apart. What drifts meanwhile falls on all caps alike."""
RUNS = {
    "naive": "--strategy naive --layers 8",
    "per-param": "--strategy per-param --layers 8",
    **{f"bucketed-cap-{cap}": f"--strategy bucketed --layers 8 --bucket-cap-mb {cap}" for cap in (5, 25, 100)},
    "torch-ddp": "--strategy torch-ddp --layers 8 --bucket-cap-mb 25",
    "zero1": "--strategy zero1 --layers 32 --bucket-cap-mb 25",
    "zero2": "--strategy zero2 --layers 32 --bucket-cap-mb 25",
    "zero3": "--strategy zero3 --layers 32",
    "torch-fsdp2": "--strategy torch-fsdp2 --layers 32",
    **{  # as `overlaplab sweep` names them
        f"sweep/cap-{cap}{repeat}": f"--strategy bucketed --layers 4 --bucket-cap-mb {cap}"
        for repeat, caps in _ORDERS.items()
        for cap in caps
    },
}


def folder_name(gpu: str) -> str:
    """NVIDIA H100 80GB HBM3 → h100, NVIDIA A100-SXM4-80GB → a100, NVIDIA GeForce RTX 4090 → geforce-rtx-4090."""
    name = re.sub(r"^nvidia +", "", gpu.lower())
    name = re.sub(r"^(?:tesla +)?([a-z]{1,2}\d+[a-z]?)(?:[ -].*)?$", r"\1", name)
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


@dataclass(slots=True)
class Recording:
    """What is recorded, and until when."""

    out: Path
    packed: Path | None
    options: str
    """Those of all runs."""
    deadline: float
    """By the monotonic clock."""
    run_s: float
    """The most that one run may take."""
    sizes: dict[str, int] = field(default_factory=dict)
    """The bytes of each run that was recorded."""

    def record(self, names: list[str], steps: int) -> None:
        """Record those runs."""
        left = list(names)
        while left and time.monotonic() < self.deadline:
            begun = list(self._in_one_process(left, steps))
            left = left[len(begun) :] if begun else []  # if none begins, none will

    def missing_runs(self) -> list[str]:
        """The names of the runs that are not recorded, or too large."""
        return [name for name in RUNS if self.sizes.get(name, MOST_BYTES) >= MOST_BYTES]

    def _in_one_process(self, names: list[str], steps: int) -> Iterator[str]:
        """Record in one process, as far as it gets; the names of the runs that it begins."""
        orders = [
            [str(self.out / name), *RUNS[name].split(), *self.options.split(), "--steps", str(steps)] for name in names
        ]
        python_path = os.pathsep.join([str(ROOT / "engine"), *filter(None, [os.environ.get("PYTHONPATH")])])
        process = subprocess.Popen(
            [sys.executable, __file__, "--child", json.dumps(orders)],
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": python_path},
        )
        assert process.stdout is not None
        try:
            allowed_s, began = STARTING_S + self.run_s, time.monotonic()
            for name in names:
                until = min(time.monotonic() + allowed_s, self.deadline)
                if not _line_comes(process, until):  # that it begins, in a folder without an older run
                    return
                yield name
                self.sizes.pop(name, None)
                ended = _line_comes(process, until)
                took_s = time.monotonic() - began
                # A trace without run.json would look like a run.
                if not ended and not (self.out / name / "run.json").exists():
                    shutil.rmtree(self.out / name, ignore_errors=True)
                self.pack()
                if not ended:
                    return
                self.sizes[name] = sum(path.stat().st_size for path in (self.out / name).iterdir())
                print(f"{name}: {steps} steps, {self.sizes[name]} bytes, {took_s:.0f} s", flush=True)
                allowed_s, began = self.run_s, time.monotonic()
        finally:
            _end(process)

    def pack(self) -> None:
        """Pack what is there."""
        if self.packed is not None and self.out.exists():
            subprocess.run(["sh", str(ROOT / "scripts" / "pack.sh"), str(self.out), str(self.packed)])


def _line_comes(process: subprocess.Popen[bytes], until: float) -> bool:
    """Whether the process says something more, until that moment."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], max(until - time.monotonic(), 0))
    return bool(ready and process.stdout.readline())


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:  # it waits for the GPU
            process.kill()
            process.wait()


def child(orders: list[list[str]]) -> NoReturn:
    """In the process that records: a line when a run begins and one when it ends, until one fails."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    # As overlaplab_engine/__main__.py, which says why.
    os.environ |= {"KINETO_LOG_LEVEL": "99", "TORCH_CPP_LOG_LEVEL": "ERROR", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    import gc

    import torch
    from overlaplab_engine import cli, worker
    from overlaplab_engine.train import record

    worker.work = lambda config, argv: record(config, argv)  # type: ignore[assignment]  # which would end the process
    for out, *options in orders:
        shutil.rmtree(out, ignore_errors=True)
        print("begins", flush=True)
        code = cli.main(["--out", os.path.relpath(out, ROOT), *options])
        if code:
            sys.exit(code)
        gc.collect()
        torch.cuda.empty_cache()
        print("ends", flush=True)
    worker.finish()


def main() -> int:
    """Record all; the exit code is 0 if every run was recorded and is small enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, help="a folder; what it holds is replaced run by run")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--link-wait", choices=["kernel", "host"], default="kernel")
    parser.add_argument("--packed", type=Path, help="a folder that gets what was recorded in a few files")
    parser.add_argument("--seconds", type=float, default=500.0, help="what has not ended by then is ended")
    parser.add_argument("--run-seconds", type=float, default=90.0, help="the most that one run may take")
    arguments = parser.parse_args()
    out: Path | None = arguments.out
    if arguments.device == "cuda":
        line = [sys.executable, "-c", "import torch; print(torch.cuda.get_device_name())"]
        answer = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if answer.returncode:
            print("torch finds no GPU here; DIR --device cpu shows whether all works", file=sys.stderr)
            return 2
        out = out or ROOT / "traces" / folder_name(answer.stdout.strip())
    elif out is None:
        parser.error("--device cpu needs a directory of its own")
    model = MODEL if arguments.device == "cuda" else TINY
    common = f"--device {arguments.device} --nproc 1 --link {LINK} --dtype bfloat16 {model}"
    if arguments.link_wait != "kernel":
        common += f" --link-wait {arguments.link_wait}"
    deadline = time.monotonic() + arguments.seconds
    recording = Recording(out.resolve(), arguments.packed, common, deadline, arguments.run_seconds)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        recording.record(list(RUNS), steps=3)
        recording.record([name for name in recording.missing_runs() if name in recording.sizes], steps=2)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        recording.pack()
    if failed := recording.missing_runs():
        print(f"failed: {' '.join(failed)}", file=sys.stderr)
        return 1
    print("now: scripts/golden.py, and the table of traces/README.md")
    return 0


def _interrupt(number: int, frame: object) -> None:
    print("stopped; what was recorded until then stays", file=sys.stderr)
    sys.exit(128 + number)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(json.loads(sys.argv[2]))
    sys.exit(main())
