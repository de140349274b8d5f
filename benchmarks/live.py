"""What the page Live takes of a long training: reading its files, its sentences, and its charts.

    python benchmarks/live.py                               a million steps of four ranks, made here
    python benchmarks/live.py --steps 100000 --ranks 64

All is done twice: the first time, memory is touched that the process did not have yet.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from overlaplab.load.watched import CELL, IN_BURST, CellKind, load_watched
from overlaplab.sections.blocks import Chart
from overlaplab.sections.live import live_section
from overlaplab.sections.watched import WatchedTables

MS = 1_000_000


def main(
    steps: Annotated[int, typer.Option(min=1000)] = 1_000_000, ranks: Annotated[int, typer.Option(min=2)] = 4
) -> None:
    """Make a training of DDP, and read and draw it twice."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rank in range(ranks):
            _write_rank(folder, rank, ranks, steps)
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{steps:,} steps of {ranks} ranks, {size / 1e6:.0f} MB")
        for word in ("first", "again"):
            _measure(folder, word)


def _measure(folder: Path, word: str) -> None:
    begun, cpu = time.perf_counter(), time.process_time()
    tables = WatchedTables(load_watched(folder))
    read = time.perf_counter()
    assert tables.sentences
    sentences = time.perf_counter()
    _draw(tables)
    done, spent = time.perf_counter(), time.process_time() - cpu
    print(
        f"{word}: {done - begun:.2f} s ({spent:.2f} s of CPU time): files {read - begun:.2f}, sentences"
        f" {sentences - read:.2f}, charts {done - sentences:.2f}"
    )


def _draw(tables: WatchedTables) -> None:
    for block in live_section(tables).blocks:
        if isinstance(block, Chart):
            block.draw(dark=False, note=block.note).to_dict()


def _write_rank(folder: Path, rank: int, ranks: int, steps: int) -> None:
    """Rank 1 is late from six tenths on, the link is slower from eight tenths on, each 100th step has a checkpoint."""
    random = np.random.default_rng(rank)
    numbers = np.arange(steps)
    exposed = 10 * MS + 8 * MS * (numbers >= 0.6 * steps) + 15 * MS * (numbers >= 0.8 * steps)
    spans = (40 * MS + exposed + 60 * MS * (numbers % 100 == 99)) * (1 + random.normal(0, 0.02, steps))
    waited = exposed - 8 * MS * ((numbers >= 0.6 * steps) & (rank == 1))
    measured = np.flatnonzero((numbers + 37 * (numbers // 100)) % 100 < 3)
    parts = [(CellKind.STEP, numbers, spans), (CellKind.DATA, numbers, random.uniform(MS, 2 * MS, steps))]
    parts += [(CellKind.FORWARD, measured, np.full(len(measured), 10 * MS))]
    parts += [(CellKind.BACKWARD, measured, np.full(len(measured), 20 * MS))]
    parts += [(CellKind.EXPOSED_DDP, measured, waited[measured])]
    parts += [(CellKind.DDP_COMMUNICATION, measured, waited[measured] + random.uniform(0, MS / 5, len(measured)))]
    cells = np.zeros(sum(len(places) for _, places, _ in parts), CELL)
    cells["kind"] = np.repeat([kind for kind, _, _ in parts], [len(places) for _, places, _ in parts])
    cells["number"] = np.concatenate([places for _, places, _ in parts])
    cells["value"] = np.concatenate([values for _, _, values in parts])
    cells["flags"][measured] = IN_BURST
    cells = cells[np.lexsort((cells["kind"], cells["number"]))]
    (folder / f"rank{rank}.cells").write_bytes(cells.tobytes())
    header = {"format": "overlaplab-watch", "version": 1, "rank": rank, "world_size": ranks, "ddp": 1}
    header |= {"started_unix_ns": 0, "every": 100, "burst": 3}
    header |= {"groups": [{"name": "0", "ranks": list(range(ranks))}]}
    (folder / f"rank{rank}.json").write_text(json.dumps(header))


if __name__ == "__main__":
    typer.run(main)
