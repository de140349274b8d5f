"""What a shell offers to complete."""

from __future__ import annotations

from pathlib import Path

from overlaplab.folders import is_trace_name, run_folders
from overlaplab.traits import TRAITS

__all__ = ["STRATEGIES", "runs_like", "strategies_like"]

STRATEGIES = tuple(TRAITS)
"""What the engine's --strategy takes."""

_MOST = 200


def strategies_like(incomplete: str) -> list[str]:
    """The strategies that begin so."""
    return [name for name in STRATEGIES if name.startswith(incomplete)]


def runs_like(incomplete: str) -> list[str]:
    """The paths of runs and traces that begin so; in place of a folder of runs, the runs in it."""
    folder, slash, start = incomplete.rpartition("/")
    base = Path(folder + slash or ".").expanduser()
    try:
        names = sorted(entry.name for entry in base.iterdir() if entry.name.startswith(start))
        return [path for name in names for path in _meant(folder + slash + name)][:_MOST]
    except OSError:
        return []


def _meant(path: str) -> list[str]:
    name = path.rpartition("/")[2]
    if name.startswith("."):
        return []
    if Path(path).expanduser().is_dir():
        return run_folders(path)
    return [path] if is_trace_name(name) else []
