"""Recordings of the engine under a `Setting`, for the benchmarks that compare predictions with them."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import overlaplab
from overlaplab.simulate.programs.setting import Setting

_OPTIONS = ("strategy", "bucket_cap_mb", "first_bucket_mb", "prefetch", "accumulate")


def record(setting: Setting, out: Path, more: Sequence[str]) -> overlaplab.Run:
    """The engine with this setting, on the CPU, and `more` options."""
    options = ["--device", "cpu", "--nproc", str(setting.ranks), "--link", str(setting.link), "--out", str(out), *more]
    for name in _OPTIONS:
        if (value := getattr(setting, name)) is not None:
            options += [f"--{name.replace('_', '-')}", str(value)]
    subprocess.run([sys.executable, "-m", "overlaplab", "record", *options], check=True, capture_output=True)
    return overlaplab.load_run(out)
