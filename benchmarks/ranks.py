"""Runs of many ranks: how the time per rank grows from 64 to 1,024 of them.

    python benchmarks/ranks.py                  64, 256, 1024 ranks by processes of this machine
    python benchmarks/ranks.py --cluster        by the workers of a Dask LocalCluster
    python benchmarks/ranks.py --sizes 64,128   other sizes

The ranks are made (`_kineto.py`: 20,000 events each in ten steps, 16 different ones that repeat), once, in a temporary
folder. What is measured is a process of its own: `load_ranks` without a cache, then `summary`, `exposed` and
`collectives`, with the workers started before. Seconds are of the clock and of all processes' CPU, which other work on
the machine disturbs less; peak memory is that of the process that holds the run, above what it held before.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import _kineto
import typer
from _shared import resident_bytes

EVENTS = 20_000
FOLDER = Path(tempfile.gettempdir()) / "overlaplab-benchmarks"


def main(
    sizes: Annotated[str, typer.Option(help="Numbers of ranks.")] = "64,256,1024",
    cluster: Annotated[bool, typer.Option("--cluster", help="On a Dask LocalCluster.")] = False,
    folder: Annotated[Path, typer.Option(help="Where the made traces are kept.")] = FOLDER,
    measure: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Time per rank, as a table."""
    if measure is not None:
        print(json.dumps(_measure(measure, cluster)))
        return
    print("| ranks | s | ms per rank | CPU s | CPU ms per rank | of it loading | peak MB |")
    print("|---|---|---|---|---|---|---|")
    first: dict[str, float] = {}
    for ranks in map(int, sizes.split(",")):
        figures = _process(_make(folder, ranks), cluster)
        each = {name: 1e3 * figures[name] / ranks for name in ("seconds", "cpu")}
        first = first or each
        grown = {name: each[name] / first[name] for name in each}
        shown = (f"{figures[name]:.1f} | {each[name]:.1f} ({grown[name]:.2f}×)" for name in each)
        loading, peak = f"{figures['loading']:.0%}", f"{figures['peak_bytes'] / 1e6:.0f}"
        print(f"| {' | '.join((str(ranks), *shown, loading, peak))} |", flush=True)


def _make(folder: Path, ranks: int) -> Path:
    """A folder of so many ranks."""
    here = folder / f"{ranks}x{EVENTS}"
    here.mkdir(parents=True, exist_ok=True)
    _kineto.write_ranks(here, events=EVENTS, ranks=ranks)
    return here


def _process(folder: Path, cluster: bool) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", str(folder), *(["--cluster"] if cluster else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _measure(folder: Path, cluster: bool) -> dict[str, float]:
    import overlaplab

    with _workers(cluster) as executor:
        overlaplab.load_ranks(next(iter(folder.iterdir())), cache=False, executor=executor)  # everything is imported
        before, cpu, start = resident_bytes("VmRSS"), _cpu_s(), time.perf_counter()
        Path("/proc/self/clear_refs").write_text("5")  # the highest mark is now the present one
        run = overlaplab.load_ranks(folder, cache=False, executor=executor)
        loaded = time.perf_counter() - start
        for analysis in (overlaplab.summary, overlaplab.exposed, overlaplab.collectives):
            assert len(analysis(run)) >= len(run.traces)
        seconds, cpu = time.perf_counter() - start, _cpu_s() - cpu
        peak = resident_bytes("VmHWM") - before
    return {"seconds": seconds, "cpu": cpu, "loading": loaded / seconds, "peak_bytes": peak}


@contextmanager
def _workers(cluster: bool) -> Iterator[Executor]:
    count = len(os.sched_getaffinity(0))
    if cluster:
        from distributed import Client, LocalCluster

        with (
            LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=None) as workers,  # type: ignore[no-untyped-call]
            Client(workers) as client,  # type: ignore[no-untyped-call]
        ):
            yield client.get_executor()
    else:
        from loky import ProcessPoolExecutor

        with ProcessPoolExecutor(count) as executor:
            yield executor


def _cpu_s() -> float:
    """The CPU seconds of this process and its children."""
    import psutil

    this = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (this, *this.children(recursive=True)))


if __name__ == "__main__":
    typer.run(main)
