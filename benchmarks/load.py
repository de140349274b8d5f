"""Loading a trace, beside Holistic Trace Analysis (HTA), as ratios; the two sides of each take turns.

    python benchmarks/load.py          a trace of 100 MB: time and memory to `summary`, the overlap alone, reopening
    python benchmarks/load.py --big    a run of 8 ranks of a million events: time and memory to `summary`
    python benchmarks/load.py --one-file --events 2150000    one trace of 500 MB, decoded by one process or several
    python benchmarks/load.py --big --without-hta --big-events 4250000 --rounds 1    8 ranks of a gigabyte of text each

The traces are made here (`_kineto.py`), once, in a temporary folder. Every measurement is a process of its own
(`_sides.py`) that does the same with a small trace first, and reads the clock then. Both sides go from gzipped files to
the breakdown and the overlap: ours to the table of `overlaplab summary`, HTA's to its `get_temporal_breakdown` and
`get_comm_comp_overlap`, without rounding to µs (it is quicker without) and without processes where there is one file;
that both find the same overlap is checked. Peak memory is resident
memory above what the process held before, as Linux counts both (see proc(5)); with --big, what all processes of a side
hold together (proportional set size, every 50 ms). With --one-file the time is that of a fresh process from its start,
without the small trace, and memory is that of all processes. Run it on an idle machine.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import _kineto
import psutil
import typer
from _shared import line, take_turns

SHOWN = ("pandas", "numpy", "msgspec", "isal", "HolisticTraceAnalysis")
JOB_RANKS = 8
"""The ranks of the job that the traces tell of, be there fewer of them."""
SMALL_EVENTS = 4_000
"""HTA fails on pandas 3 where correlations fit into a smaller type than events' numbers, as in still smaller traces."""
SAMPLE_S = 0.05
MEASURED = {"time": ("seconds", "s", 1.0), "CPU time": ("cpu", "s", 1.0), "peak memory": ("peak_bytes", "MB", 1e-6)}
"""What is measured: its key in what `_sides.py` tells, and the unit in which it is printed."""
FOLDER = Path(tempfile.gettempdir()) / "overlaplab-benchmarks"


def main(
    rounds: Annotated[int, typer.Option(help="Pairs of measurements.")] = 7,
    events: Annotated[int, typer.Option(help="Events of the one trace.")] = 430_000,
    big: Annotated[bool, typer.Option("--big", help="Several ranks instead: minutes, gigabytes.")] = False,
    one_file: Annotated[bool, typer.Option("--one-file", help="By one process ÷ by several.")] = False,
    processors: Annotated[int, typer.Option(help="How many --one-file may use.")] = len(os.sched_getaffinity(0)),
    without_hta: Annotated[bool, typer.Option("--without-hta", help="With --big: ours alone.")] = False,
    ranks: Annotated[int, typer.Option(help="Ranks with --big.")] = 8,
    big_events: Annotated[int, typer.Option(help="Events per rank with --big.")] = 1_000_000,
    folder: Annotated[Path, typer.Option(help="Where the made traces are kept.")] = FOLDER,
) -> None:
    """Loading, beside HTA."""
    versions = ", ".join(f"{name} {_version(name)}" for name in SHOWN)
    print(f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, {versions}")
    (small,), _ = _make(folder, SMALL_EVENTS, 1)
    files, size = _make(folder, big_events, ranks) if big else _make(folder, events, 1)
    packed = sum(file.stat().st_size for file in files)
    print(f"{len(files)} of {files[0].name} …: {size / 1e6:.1f} MB, gzipped {packed / 1e6:.1f} MB", flush=True)
    if one_file:
        _compare_processes(files[0], size, rounds, processors)
        return
    if big and without_hta:
        _ours_alone([small, *files], size, rounds)
        return
    _compare_loading([small, *files], size, rounds, together=big)
    if not big:
        _compare_overlap(files[0], rounds)
        _compare_openings([small, *files], rounds)


def _version(name: str) -> str:
    with suppress(PackageNotFoundError):
        return version(name)
    return "(absent)"


def _make(folder: Path, events: int, ranks: int) -> tuple[list[Path], int]:
    """The traces of that size and their uncompressed bytes in all; made where they are not there yet."""
    here = folder / f"{ranks}x{events}"
    here.mkdir(parents=True, exist_ok=True)
    files = [here / f"rank{rank}.pt.trace.json.gz" for rank in range(ranks)]
    size = folder / f"{ranks}x{events}.bytes"
    if not size.exists():
        job = max(ranks, JOB_RANKS)
        sizes = [_kineto.write(file, events=events, rank=rank, ranks=job) for rank, file in enumerate(files)]
        size.write_text(str(sum(sizes)))
    return files, int(size.read_text())


def _compare_loading(files: list[Path], size: int, rounds: int, *, together: bool) -> None:
    """Time and peak memory from the files, but the first, to the overlap."""
    sides = [partial(_process, side, *map(str, files), together=together) for side in ("ours", "hta")]
    ours, hta = take_turns(sides, rounds)
    for mine, its in zip(ours[0]["overlaps"], hta[0]["overlaps"], strict=True):
        assert abs(mine - its) < 0.006, f"overlaps differ: {mine} and {its}"
    for what in MEASURED:
        _print_ratio(what, "HTA ÷ ours", hta, ours)
    print(line("causes of exposed time, after loading ÷ loading", _column(ours, "exposed"), _column(ours, "seconds")))
    if not together:
        _print_ratio("peak memory", "ours ÷ uncompressed size", ours, [{"peak_bytes": size}] * rounds)


def _compare_processes(file: Path, size: int, rounds: int, processors: int) -> None:
    """One file by one process and by several, each from the start of a fresh process."""

    def load(count: int) -> dict[str, Any]:
        start = time.perf_counter()
        figures = _process("one", str(count), str(file), together=True)
        return figures | {"seconds": time.perf_counter() - start}

    alone, several = take_turns([partial(load, count) for count in (1, processors)], rounds)
    for what in MEASURED:
        _print_ratio(what, f"one process ÷ {processors} processors", alone, several)
    _print_ratio("peak memory", "of all processes ÷ text", several, [{"peak_bytes": size}] * rounds)


def _ours_alone(files: list[Path], size: int, rounds: int) -> None:
    """Time, CPU time and peak memory of all processes, from the files, but the first, to the overlap."""
    for _ in range(rounds):
        figures = _process("ours", *map(str, files), together=True)
        cpu = figures["cpu"]
        times = f"{figures['seconds']:.1f} s, CPU {cpu:.1f} s, {1e9 * cpu / size:.2f} s per GB"
        print(f"{size / 1e9:.1f} GB of text: {times}; peak {figures['peak_bytes'] / 1e6:.0f} MB", flush=True)


def _compare_overlap(file: Path, rounds: int) -> None:
    """The overlap alone, of loaded tables."""
    seconds = _process("alone", str(rounds), str(file))
    print(line("overlap of loaded tables, HTA ÷ ours", seconds["hta"], seconds["ours"]))


def _compare_openings(files: list[Path], rounds: int) -> None:
    """The second opening, from the cache, and the first, which fills it."""
    first, second = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            for times in (first, second):
                times.append(_process("open", *map(str, files), OVERLAPLAB_CACHE_DIR=cache)["seconds"])
    print(line("second opening ÷ first", second, first))


def _process(side: str, *arguments: str, together: bool = False, **environment: str) -> dict[str, Any]:
    """What `_sides.py` found; `together`: with the memory of all its processes."""
    command = [sys.executable, str(Path(__file__).with_name("_sides.py")), side, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | environment) as process:
        peak = 0
        while together and process.poll() is None:
            peak = max(peak, _held_bytes(psutil.Process(process.pid)))
            time.sleep(SAMPLE_S)
        assert process.stdout is not None
        output = process.stdout.read().splitlines()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {process.returncode}")
    figures: dict[str, Any] = json.loads(output[-1])
    return figures | ({"peak_bytes": peak} if together else {})


def _held_bytes(process: psutil.Process) -> int:
    """What a process and its children hold, what they share counted once."""
    held = 0
    for member in [process, *process.children(recursive=True)]:
        with suppress(psutil.Error):  # it ended meanwhile
            held += member.memory_full_info().pss
    return held


def _print_ratio(what: str, ratio: str, above: list[dict[str, Any]], below: list[dict[str, Any]]) -> None:
    key, unit, scale = MEASURED[what]
    print(line(f"{what}, {ratio}", _column(above, key), _column(below, key), unit=unit, scale=scale))


def _column(figures: list[dict[str, Any]], key: str) -> list[float]:
    return [row[key] for row in figures]


if __name__ == "__main__":
    typer.run(main)
