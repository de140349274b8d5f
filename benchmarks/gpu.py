"""What the engine costs and attains on one GPU, under one emulated link, in one call.

    python benchmarks/gpu.py                        all of it in --minutes (8.5), with tables at the end
    python benchmarks/gpu.py --table                the tables again, of what was measured before
    python benchmarks/gpu.py --device cpu --small   the same with a tiny model on the CPU: whether it works

One rank of an emulated group of eight trains; the peers are phantoms. The link is one on which all-reducing all
gradients alone takes 70 % of the backward pass alone; both are measured. Sides of a ratio take turns within a process;
each part has a process of its own, and one that fails or hangs keeps no other from being measured. What was measured
until time is over, or until SIGTERM, stays in --out. Needs torch and typer, and overlaplab for the bound, which is
found from runs recorded in the same call: there or, by `--table`, elsewhere.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from _gpu_table import Figures, best_cap, pick_link, share, tables

ROOT = Path(__file__).resolve().parents[1]
WORLD = 8
WARMUP = {"cuda": 12, "cpu": 2}
"""Steps before recorded ones: in its first ten on CUDA, DDP's host waits for the step before, to time it."""
RECORDED = ("bucketed", "zero3", "torch-fsdp2")

FULL: dict[str, Any] = {
    "device": "cuda", "layers": 24, "width": 1024, "heads": 16, "seq": 1024, "batch": 32, "vocab": 8192,
    "dtype": "bfloat16", "pairs": 14, "steps": 3, "caps": [1, 5, 25, 50, 100, 1000], "cap": 25,
    "link_wait": "kernel",
}  # fmt: skip
"""A model that fills an H100; see `Plan` in _gpu_parts.py."""
SMALL: dict[str, Any] = {
    "layers": 2, "width": 32, "heads": 4, "seq": 16, "batch": 2, "vocab": 64,
    "dtype": "float32", "pairs": 2, "steps": 1, "caps": [0.02, 0.05, 1], "cap": 0.05,
}  # fmt: skip

FINDS_A_GPU = "import sys, torch; sys.exit(not torch.cuda.device_count())"

app = typer.Typer(add_completion=False)


@dataclass(slots=True)
class Measuring:
    """Starts the parts, one after the other, while there is time."""

    out: Path
    plan: dict[str, Any]
    deadline: float
    """By the monotonic clock."""
    part_s: float
    """The most that one part may take."""
    keep: Callable[[], None] = lambda: None
    """Called after each part: what was measured is kept, even if this process is killed later."""

    def part(self, part: str, name: str, **plan: Any) -> Figures | None:
        """What a part finds, which it writes to `<name>.json`; None if it fails before that, or time is over."""
        result = self.out / f"{name}.json"
        order = self.out / f"{name}.plan"
        order.write_text(json.dumps(self.plan | plan))
        script = str(Path(__file__).with_name("_gpu_parts.py"))
        self._run(name, [script, part, str(order), str(result)])
        return json.loads(result.read_text()) if result.exists() else None

    def record(self, strategy: str, **options: Any) -> None:
        """Record a run of the plan's model as the engine's command does, into `<strategy>`."""
        names = ("device", "layers", "width", "heads", "seq", "batch", "vocab", "dtype", "link", "link_wait")
        chosen = (
            {name: self.plan[name] for name in names}
            | {"steps": 3, "warmup": WARMUP[self.plan["device"]], "nproc": 1}
            | options
        )
        words = [word for name, value in chosen.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        out = os.path.relpath(self.out / strategy, ROOT)
        self._run(f"recording {strategy}", ["-m", "overlaplab_engine", "--strategy", strategy, "--out", out, *words])

    def _run(self, name: str, words: list[str]) -> None:
        left = self.deadline - time.monotonic()
        if left < min(20, self.part_s / 5):  # too little for any part
            print(f"{name}: no time is left", file=sys.stderr)
            return
        rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}  # each is one by itself
        python_path = os.pathsep.join([str(ROOT), str(ROOT / "engine"), *filter(None, [os.environ.get("PYTHONPATH")])])
        # As overlaplab_engine/__main__.py, which says why.
        settings = {"KINETO_LOG_LEVEL": "99", "TORCH_CPP_LOG_LEVEL": "ERROR", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
        began = time.monotonic()
        log = self.out / f"{name.replace(' ', '-')}.log"
        process = None
        with log.open("w") as file:
            try:
                with _no_end_yet():
                    process = subprocess.Popen(
                        [sys.executable, *words],
                        cwd=ROOT,
                        env=os.environ | {"PYTHONPATH": python_path} | settings | rank,
                        stdout=file,
                        stderr=file,
                    )
                code = process.wait(min(left, self.part_s))
                fault = log.read_text().strip() if code else None
            except subprocess.TimeoutExpired:
                fault = "took too long"
            finally:
                if process is not None:
                    _stop(process)
        took = f"{time.monotonic() - began:.0f} s"
        print(f"{name}: {took}" if fault is None else f"{name}: failed after {took}\n{fault}", file=sys.stderr)
        self.keep()


@contextmanager
def _no_end_yet() -> Iterator[None]:
    """Hold SIGTERM back until this ends: a process that is just being started would be left behind."""
    came = False

    def note(number: int, _: object) -> None:
        nonlocal came
        came = True

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if came:
            signal.raise_signal(signal.SIGTERM)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that has not ended; the engine's command then ends its rank."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@app.command()
def main(
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    small: Annotated[bool, typer.Option("--small", help="A tiny model, and few measurements.")] = False,
    out: Annotated[Path, typer.Option(help="Where measurements and recorded runs are left.")] = Path("runs/gpu"),
    minutes: Annotated[float, typer.Option(help="Parts that have not ended by then are ended or left out.")] = 8.5,
    part_seconds: Annotated[float, typer.Option(help="The most that one part may take.")] = 150,
    packed: Annotated[Path | None, typer.Option(help="Where --out is packed into a few files by pack.sh.")] = None,
    plan: Annotated[
        str, typer.Option(help='Other than planned, such as {"link_wait": "host"}; see Plan in _gpu_parts.py.')
    ] = "{}",
    table: Annotated[bool, typer.Option("--table", help="Only print the tables of what lies in --out.")] = False,
) -> None:
    """Measure all, and print Markdown."""
    if not table:
        if device == "cuda" and subprocess.run([sys.executable, "-c", FINDS_A_GPU]).returncode:
            _end("torch finds no GPU here; --device cpu --small shows whether all works")
        out.mkdir(parents=True, exist_ok=True)
        for path in [*out.glob("*.json"), *out.glob("*.log")]:
            path.unlink()
        chosen = FULL | (SMALL if small else {}) | {"device": device} | json.loads(plan)
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))

        def keep() -> None:
            if packed is not None:
                subprocess.run(["sh", str(ROOT / "scripts" / "pack.sh"), str(out.resolve()), str(packed)])

        try:
            _measure(Measuring(out.resolve(), chosen, time.monotonic() + 60 * minutes, part_seconds, keep))
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            keep()
            _show(out)
    else:
        _show(out)


def _show(out: Path) -> None:
    if not any(out.glob("*.json")):
        _end(f"{out} holds no measurements")
    print(tables(out), flush=True)


def _end(why: str) -> NoReturn:
    print(f"gpu.py: {why}", file=sys.stderr)
    raise typer.Exit(2)


def _measure(measuring: Measuring) -> None:
    """All parts, what the others need first."""
    half = max(2, measuring.plan["pairs"] // 2)
    gbps, us = 200.0, 10.0
    if first := measuring.part("alone", "alone-first", link=f"{gbps:g}Gbps,{us:g}us,{WORLD}"):
        gbps, us = pick_link(first["backward"], first["buckets"], WORLD)
    measuring.plan["link"] = f"{gbps:g}Gbps,{us:g}us,{WORLD}"
    if alone := measuring.part("alone", "alone"):
        print(f"link {alone['link']}: communication alone ÷ backward alone {share(alone):.3f}", file=sys.stderr)
    cap = measuring.plan["cap"]
    if curve := measuring.part("curve", "curve", pairs=half):
        cap, _ = best_cap(curve)
    measuring.part("ddp", "ddp")
    measuring.part("fsdp2", "fsdp2")
    for strategy in RECORDED:
        measuring.record(strategy, bucket_cap_mb=cap)
    measuring.part("recording", "recording", pairs=half)
    slow = f"{gbps:g}Gbps,{5 * max(us, 2):g}us,{WORLD}"
    measuring.part("curve", "curve-slow", link=slow, pairs=half)
    measuring.part("labels", "labels")
    if cap != measuring.plan["cap"]:
        measuring.part("ddp", "ddp-best", cap=cap)


if __name__ == "__main__":
    app()
