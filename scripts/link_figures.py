"""What `make demo` attains on this machine, and how alike strategies compute: run it with nothing else to do.

python scripts/link_figures.py [TIMES]    # records the demo's five runs so often (5), in a folder that is removed

Prints for each recording whether it attained its link, which attempt was kept, and the worst step; then the computation
of `naive` divided by that of `per-param`, with and without the time in which computation waited for a core.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import overlaplab
from overlaplab.costs import attained_steps, link_attained

ROOT = Path(__file__).resolve().parents[1]
RUNS = ("naive", "per-param", "bucketed", "zero3-serial", "zero3")


def main(times: int) -> None:
    """Record and print."""
    attained = 0
    for number in range(1, times + 1):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["make", "demo", "SERVE=0", f"RUNS={folder}"], cwd=ROOT, check=True, stdout=subprocess.PIPE)
            all_good = [_report(f"{number}. {name}", Path(folder) / name) for name in RUNS]
            attained += all(all_good)
            took = {name: overlaplab.summary(overlaplab.load_run(Path(folder) / name)) for name in RUNS[:2]}
            waited = {name: table["preempted_ns"].fillna(0) for name, table in took.items()}
            before = {name: (table["compute_ns"] + waited[name]).mean() for name, table in took.items()}
            after = {name: table["compute_ns"].mean() for name, table in took.items()}
            print(
                f"{number}. compute, naive ÷ per-param: {before['naive'] / before['per-param']:.3f} with time that "
                f"waited for a core, {after['naive'] / after['per-param']:.3f} without"
            )
    print(f"{attained} of {times} demos attained their links in all {len(RUNS)} recordings")


def _report(title: str, path: Path) -> bool:
    manifest = overlaplab.load_run(path).manifest
    assert manifest is not None
    steps = attained_steps(manifest)
    good = link_attained(manifest) is True
    print(
        f"{title}: {manifest.link}, {'attained' if good else 'NOT attained'} in {sum(s.attained for s in steps)} of "
        f"{len(steps)} steps, recording {manifest.attempt} of {manifest.attempts}, worst step "
        f"{max(s.ratio for s in steps):.3f} × its model, latest {max(s.latest_ns for s in steps) / 1e6:.2f} ms",
        flush=True,
    )
    return good


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
