"""How many recordings are marked as made on a busy machine: quiet ones, and ones beside processes that use the cores.

    python benchmarks/busy_figures.py --rounds 20 --out FOLDER      on a machine that does nothing else

Quiet and busy recordings take turns, over four strategies. One line for each, then how many of either kind have a step
that is marked. 20 of 20 busy ones should be, and 0 of 20 quiet ones.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from _shared import record

STRATEGIES = ("naive", "bucketed", "zero2", "zero3")
OPTIONS = ("--nproc", "2", "--batch", "16", "--bucket-cap-mb", "4", "--link", "1Gbps,2000us", "--attempts", "1")
LOOP = "while True: pass"
"""What `stress -c` does, on machines without it."""


@contextmanager
def load_cores(processes: int) -> Iterator[None]:
    """So many processes use a core each."""
    started = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def main(
    out: Annotated[Path, typer.Option(help="Where the runs go.")],
    rounds: Annotated[int, typer.Option(help="Quiet recordings, and as many busy ones.")] = 20,
    processes: Annotated[int, typer.Option(help="Beside the busy ones.")] = 4,
) -> None:
    """Record and count."""
    marked_runs = {"quiet": 0, "busy": 0}
    for number in range(rounds):
        strategy = STRATEGIES[number % len(STRATEGIES)]
        for kind, others in (("quiet", 0), ("busy", processes)):
            with load_cores(others):
                manifest = record(out / f"{kind}-{number}", "--strategy", strategy, *OPTIONS).manifest
            assert manifest is not None
            rows = manifest.raw["machine"]
            marked = sum(bool(row["busy"]) for row in rows)
            marked_runs[kind] += marked > 0
            delayed = max((row["delayed_ns"] or 0) / row["took_ns"] for row in rows)
            foreign = max((row["foreign_ns"] or 0) / (row["cores"] * row["took_ns"]) for row in rows)
            print(
                f"{kind:5} {strategy:8} {marked} of {len(rows)} steps of ranks marked; at most {delayed:.1%} of a step "
                f"delayed, {foreign:.1%} of the cores used by others",
                flush=True,
            )
    for kind, count in marked_runs.items():
        print(f"{kind}: {count} of {rounds} recordings marked")


if __name__ == "__main__":
    typer.run(main)
