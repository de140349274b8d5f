"""What `make demo` attains on this machine, and how alike strategies compute: run it with nothing else to do.

python benchmarks/link_figures.py [TIMES]    # runs the demo so often (5), in a folder that is removed

Prints for five of its recordings whether each attained its link, which attempt was kept, and the worst step; then the
computation of `naive` divided by that of `per-param` in their median steps, with and without the time in which it
waited for a core. At the end, the same of all steps together, since the machine's speed differs from recording to
recording.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

import overlaplab
from overlaplab.costs import attained_steps, link_attained

ROOT = Path(__file__).resolve().parents[1]
RUNS = ("naive", "per-param", "bucketed", "zero3-serial", "zero3")


def main(times: int) -> None:
    """Record and print."""
    attained = 0
    steps: dict[str, list[pd.DataFrame]] = {name: [] for name in RUNS[:2]}
    for number in range(1, times + 1):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["make", "demo", "SERVE=0", f"RUNS={folder}"], cwd=ROOT, check=True, stdout=subprocess.PIPE)
            all_good = [_report(f"{number}. {name}", Path(folder) / name) for name in RUNS]
            attained += all(all_good)
            for name, tables in steps.items():
                tables.append(overlaplab.summary(overlaplab.load_run(Path(folder) / name)))
            print(f"{number}. {_computation({name: tables[-1] for name, tables in steps.items()})}")
    print(f"all: {_computation({name: pd.concat(tables) for name, tables in steps.items()})}")
    print(f"{attained} of {times} demos attained their links in all {len(RUNS)} recordings")


def _computation(steps: dict[str, pd.DataFrame]) -> str:
    after = {name: table["compute_ns"].median() for name, table in steps.items()}
    before = {name: (table["compute_ns"] + table["preempted_ns"].fillna(0)).median() for name, table in steps.items()}
    return (
        f"compute, naive ÷ per-param: {before['naive'] / before['per-param']:.3f} with time that waited for a core, "
        f"{after['naive'] / after['per-param']:.3f} without"
    )


def _report(title: str, path: Path) -> bool:
    manifest = overlaplab.load_run(path).manifest
    assert manifest is not None
    steps = attained_steps(manifest)
    good = link_attained(manifest) is True
    print(
        f"{title}: {manifest.link}, {'attained' if good else 'NOT attained'} in {sum(s.attained for s in steps)} of "
        f"{len(steps)} steps, recording {manifest.raw['attempt']} of {manifest.attempts}, worst step "
        f"{max(s.ratio for s in steps):.3f} × its model, latest {max(s.latest_ns for s in steps) / 1e6:.2f} ms",
        flush=True,
    )
    return good


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
