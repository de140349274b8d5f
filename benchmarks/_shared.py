"""What benchmarks share that needs no torch: sides that take turns, the line that is printed, recordings."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # benchmarks of the engine run where it is not installed
    import overlaplab
    from overlaplab.simulate.programs.setting import Setting

Figure = TypeVar("Figure")
_NAMES = ("strategy", "link", "bucket_cap_mb", "first_bucket_mb", "prefetch", "accumulate", "schedule", "microbatches")


def take_turns(sides: Sequence[Callable[[], Figure]], rounds: int, *, warmup: int = 0) -> list[list[Figure]]:
    """What each side finds in each round; the first `warmup` rounds do not count, and no side always goes first."""
    figures: list[list[Figure]] = [[] for _ in sides]
    for number in range(warmup + rounds):
        for place in range(len(sides)) if number % 2 else reversed(range(len(sides))):
            figures[place].append(sides[place]())
    return [values[warmup:] for values in figures]


def line(what: str, ours: Sequence[float], theirs: Sequence[float], *, unit: str = "ms", scale: float = 1e3) -> str:
    """Median and quartiles of `ours ÷ theirs`, pair by pair; values times `scale` are in the unit."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return (
        f"{what}: {middle:.3f} ({low:.3f} to {high:.3f}, {len(ratios)} pairs; "
        f"medians {statistics.median(ours) * scale:.1f} and {statistics.median(theirs) * scale:.1f} {unit})"
    )


def resident_bytes(key: str) -> int:
    """The memory of this process by Linux's account: `VmRSS` now, `VmHWM` at most (see proc(5))."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:"))


def setting_options(setting: Setting) -> list[str]:
    """The options with which the engine records a setting."""
    values = {name: getattr(setting, name) for name in _NAMES}
    values |= {"nproc": setting.ranks, "stages": setting.stages and ",".join(map(str, setting.stages))}
    chosen = {name: str(value) for name, value in values.items() if value is not None}
    return [word for name, value in chosen.items() for word in (f"--{name.replace('_', '-')}", value)]


def record(out: Path, *options: str) -> overlaplab.Run:
    """The engine with these options, on the CPU."""
    import overlaplab

    command = [sys.executable, "-m", "overlaplab", "record", "--device", "cpu", "--out", str(out), *options]
    subprocess.run(command, check=True, capture_output=True)
    return overlaplab.load_run(out)


def recorded_ms(run: overlaplab.Run) -> float:
    """The median step of all ranks."""
    from overlaplab.events import step_windows

    return statistics.median(step.end_ns - step.start_ns for trace in run.traces for step in step_windows(trace)) / 1e6
