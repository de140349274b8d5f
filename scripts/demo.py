"""Records the demo's nine runs into a folder, and says what they show. Each part prints how long it took.

python scripts/demo.py runs/demo

[Note: one import of torch]
A recording's command and each of its ranks import torch, which takes longer than the steps that are recorded. So the
ranks are forks of this process here, each started as torchrun would start it. CUDA does not survive a fork, and other
systems than Linux fork badly: there every recording is a command of its own.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from overlaplab.ports import free_port

FORKS = sys.platform == "linux" and shutil.which("nvidia-smi") is None
if FORKS:  # what torch reads when it is imported, with the values that launchers give it
    os.environ |= {"OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

TRAIN = "--batch 8 --steps 5 --bucket-cap-mb 4"
ZERO3 = "--strategy zero3 --layers 32 --width 128 --batch 8 --steps 3"
ASLEEP = "--device cpu --steps 2 --warmup 1 --attempts 1 --compute sleep:10ms,20ms,1ms --seq 16 --vocab 100"
FAR = "--link 1Gbps,5000us"
"""Five milliseconds a message: four ranks on two cores may themselves take one."""
GRACE_S = 10
"""For so long the other ranks may go on once one has failed."""
PARTS = (
    ("all-reduce after the backward pass", "naive", 2, f"--strategy naive {TRAIN} --link auto"),
    (
        "an all-reduce per parameter, during the backward pass",
        *("per-param", 2, f"--strategy per-param {TRAIN} --link {{runs}}/naive"),
    ),
    ("buckets of gradients", "bucketed", 2, f"--strategy bucketed {TRAIN} --link {{runs}}/naive"),
    ("ZeRO-3, each layer gathered when it is needed", "zero3-serial", 2, f"{ZERO3} --prefetch 0 --link auto"),
    ("ZeRO-3, gathered one layer ahead", "zero3", 2, f"{ZERO3} --prefetch 1 --link {{runs}}/zero3-serial"),
    (
        "a ring of four sleeping ranks, hop by hop",
        *("ring", 4, f"--strategy ring --nproc 4 --layers 2 --bucket-cap-mb 1.2 {ASLEEP} {FAR}"),
    ),
    (
        "a pipeline of four sleeping ranks, 1F1B",
        *("pipeline", 4, f"--strategy pipeline --schedule 1f1b --stages 4 --layers 4 --microbatches 8 {ASLEEP} {FAR}"),
    ),
    (
        "tensor parallelism on two sleeping ranks",
        *("tensor", 2, f"--strategy tensor --tp 2 --layers 2 {ASLEEP} --link 1Gbps,1000us"),
    ),
    (
        "two pipelines of two sleeping stages, DP × PP",
        *("dp-pp", 4, f"--strategy pipeline --dp 2 --pp 2 --layers 4 --microbatches 4 {ASLEEP} {FAR}"),
    ),
)
"""What each is about, its folder, its ranks where there is no GPU, and `overlaplab record`'s options."""


@contextmanager
def part(title: str) -> Iterator[None]:
    """Say what is done within it, and how long that took."""
    print(f"== {title}", flush=True)
    began = time.monotonic()
    yield
    print(f"== took {time.monotonic() - began:.0f} s\n", flush=True)


def record(ranks: int, options: list[str]) -> None:
    """`overlaplab record OPTIONS`; SystemExit if it fails."""
    print("$ overlaplab record", *options, flush=True)
    command = [sys.executable, "-m", "overlaplab", "record", *options]
    if code := _record_in_forks(ranks, options) if FORKS else subprocess.call(command):
        sys.exit(code)


def _record_in_forks(ranks: int, options: list[str]) -> int:
    """See [Note: one import of torch]; 0, or the exit code of the first rank that failed."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    common |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    left = set()
    signal.signal(signal.SIGALRM, _too_late)
    for rank in range(ranks):
        if not (process := os.fork()):
            _rank(common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, options)
        left.add(process)
    failed = 0
    try:
        while left:
            process, status = os.wait()
            left.discard(process)
            if (code := os.waitstatus_to_exitcode(status)) and not failed:
                failed = code
                signal.alarm(GRACE_S)  # the others may still say why
        return failed
    except TimeoutError:
        return failed
    finally:
        signal.alarm(0)
        for process in left:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _too_late(*_: object) -> NoReturn:
    raise TimeoutError


def _rank(environment: dict[str, str], options: list[str]) -> NoReturn:
    """One rank, as under torchrun."""
    from overlaplab_engine.cli import main

    os.environ |= environment
    code = 1
    try:
        code = main(options)
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


def show(command: str, *runs: Path) -> None:
    """An analysis's command, and what it prints; SystemExit if it fails."""
    from overlaplab.cli import main

    sys.argv = ["overlaplab", command, *map(str, runs)]
    print("$", *sys.argv, flush=True)
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise


def demo(runs: Path) -> None:
    """Record and show."""
    print("Nine recordings, which take about a minute and a half on two cores.\n", flush=True)
    if FORKS:
        with part("import torch, once for all ranks"):
            for module in ("overlaplab_engine.worker", "torch._dynamo"):  # the first model would import the second
                import_module(module)
            gc.freeze()  # no fork need look through it for garbage
    for title, name, ranks, options in PARTS:
        with part(title):
            words = [word.format(runs=runs) for word in options.split(" ")]
            record(ranks, [*words, "--out", str(runs / name)])
    with part("what they show"):
        replicated = [runs / name for name in ("naive", "per-param", "bucketed")]
        for run in replicated:
            show("summary", run)
        show("compare", *replicated)
        show("schedule", runs / "zero3")
        show("compare", runs / "zero3-serial", runs / "zero3")
        show("pipeline", runs / "pipeline")


if __name__ == "__main__":
    demo(Path(sys.argv[1]))
