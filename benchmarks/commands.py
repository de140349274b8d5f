"""What commands cost beside another checkout: CPU seconds of a fresh process, user and system, the two sides in turn.

    python benchmarks/commands.py ../before                       every command, three pairs
    python benchmarks/commands.py ../before --only summary,report --pairs 7 --run traces/zero3

Each command's first run on either side fills the caches (traces, byte code, the report's libraries) and does not count.
Prints one line per command: ours ÷ theirs, and the medians of both. CPU time includes that of child processes.
"""

import os
import resource
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from _shared import line, take_turns

ROOT = Path(__file__).parents[1]
OTHER_RUN = ROOT / "traces/naive"
COMMANDS = ("summary", "exposed", "buckets", "schedule", "collectives", "compare", "doctor", "report")


def main(
    other: Annotated[Path, typer.Argument(help="The other checkout.")],
    run: Annotated[Path, typer.Option(help="The run that commands are asked about.")] = ROOT / "traces/bucketed",
    only: Annotated[str, typer.Option(help="Commands, separated by commas.")] = ",".join(COMMANDS),
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of processes per command.")] = 3,
) -> None:
    """CPU seconds of each command, ours ÷ theirs."""
    with tempfile.TemporaryDirectory() as folder:
        for name in only.split(","):
            arguments = _arguments(name, run.resolve(), Path(folder) / "report.html")
            sides = [partial(cpu_s, checkout, arguments, Path(folder)) for checkout in (ROOT, other.resolve())]
            ours, theirs = take_turns(sides, pairs, warmup=1)
            print(line(name, ours, theirs, unit="s", scale=1), flush=True)


def _arguments(name: str, run: Path, page: Path) -> list[str]:
    inputs = {"doctor": [], "compare": [str(OTHER_RUN), str(run)]}.get(name, [str(run)])
    return [name, *inputs, *(["--out", str(page)] if name == "report" else [])]


def cpu_s(checkout: Path, arguments: list[str], folder: Path) -> float:
    """CPU seconds of a fresh process of the checkout's command line, which must succeed."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {
        "PYTHONPATH": f"{checkout}:{checkout / 'engine'}",
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "OVERLAPLAB_CACHE_DIR": str(folder / "cache"),
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "overlaplab", *arguments]
    subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    typer.run(main)
