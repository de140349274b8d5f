"""Watched trainings as `overlaplab.watch` writes them, of given times."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from overlaplab.load.watched import CELL, STALLED, CellKind

Cells = list[tuple[int, int, int, int, int]]

MS = 1_000_000


def write_watched(folder: Path, *ranks: Cells, **header: Any) -> Path:
    """A training whose ranks have written these cells: (kind, flags, group, number, value)."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, cells in enumerate(ranks):
        whole = {
            "format": "overlaplab-watch",
            "version": 1,
            "rank": rank,
            "world_size": len(ranks),
            "started_unix_ns": 0,
            "every": 100,
            "burst": 3,
            "groups": [{"name": "0", "ranks": list(range(len(ranks)))}],
            "ended": True,
        }
        (folder / f"rank{rank}.json").write_text(json.dumps(whole | header))
        (folder / f"rank{rank}.cells").write_bytes(np.array(cells, CELL).tobytes())
    return folder


def step(number: int, span_ns: int, measured: Mapping[CellKind, int] | None = None, flags: int = 0) -> Cells:
    """The cells of a step; with `measured` times it is one of a burst. An all-reduce is the group's first."""
    cells = [(int(CellKind.STEP), flags | (measured is not None), 0, number, span_ns)]
    for kind, value in (measured or {}).items():
        cells.append((int(kind), 0, 0, 0 if kind == CellKind.ALL_REDUCE else number, value))
    return cells


def training(folder: Path, steps: int, *ranks: Callable[[int], tuple[int, Mapping[CellKind, int]]]) -> Path:
    """A training of so many steps; for each rank a function gives a step's time and, for bursts, what else there is."""
    cells: list[Cells] = []
    for rank in ranks:
        cells.append([])
        for number in range(steps):
            span_ns, measured = rank(number)
            cells[-1] += step(number, span_ns, measured if number % 100 in (40, 41, 42) else None)
    return write_watched(folder, *cells)


def hanging(folder: Path) -> Path:
    """After three steps rank 1 hangs, and rank 0 waits for it in the group's collective 7."""
    ranks = [
        [
            *(cell for number in range(3) for cell in step(number, 40 * MS)),
            *(
                cell
                for since in (seconds - 5, seconds)
                for cell in (
                    (int(CellKind.LOOK), STALLED, 0, 3, since * 1000 * MS),
                    (int(CellKind.ENQUEUED), 0, 0, 3, enqueued),
                    (int(CellKind.COMPLETED), 0, 0, 3, 6),
                )
            ),
        ]
        for enqueued, seconds in ((7, 17), (6, 19))
    ]
    return write_watched(folder, *ranks, ended=False)


def eventful(folder: Path, steps: int = 2000, seed: int = 0) -> Path:
    """Rank 1 is late by 8 ms from step 1200 on, a link slows down at 1600, and every 100th step has a checkpoint."""
    noise = np.random.default_rng(seed).normal(0, 0.02, (2, steps))
    exposed = [10 * MS + (8 * MS) * (n >= 1200) + (15 * MS) * (n >= 1600) for n in range(steps)]

    def of_rank(rank: int) -> Callable[[int], tuple[int, Mapping[CellKind, int]]]:
        def times(number: int) -> tuple[int, Mapping[CellKind, int]]:
            span_ns = round((40 * MS + exposed[number] + 60 * MS * (number % 100 == 99)) * (1 + noise[rank, number]))
            own = exposed[number] - (8 * MS if rank == 1 and number >= 1200 else 0)
            return span_ns, {
                CellKind.FORWARD: 10 * MS,
                CellKind.BACKWARD: 20 * MS,
                CellKind.EXPOSED_GRADIENTS: own,
                CellKind.ALL_REDUCE: own + round(MS * 0.1 * noise[rank, number]),
            }

        return times

    return training(folder, steps, of_rank(0), of_rank(1))


def with_recording(folder: Path, path: str, number: int = 1203) -> Path:
    """The training, whose headers name a recording that it has started at this step."""
    for file in folder.glob("rank*.json"):
        header = json.loads(file.read_text())
        header["recordings"] = [{"step": number, "path": path, "reason": "exposed 33.0 ms, usually 18.0 ms"}]
        file.write_text(json.dumps(header))
    return folder
