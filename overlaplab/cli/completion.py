"""What a shell offers to complete."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from overlaplab.folders import is_trace_name, run_folders
from overlaplab.traits import TRAITS

STRATEGIES = tuple(TRAITS)
"""What the engine's --strategy takes."""

ASKED = "_OVERLAPLAB_COMPLETE"
"""The environment variable by which a shell asks for completions."""

_MOST_COMPLETIONS = 200
_TYPED = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
"""Where bash, and where zsh, fish and PowerShell, put the line so far."""


def record_asked(environ: Mapping[str, str] = os.environ) -> dict[str, str] | None:
    """What to ask the engine where an option of `overlaplab record` is being typed, since the engine has them.

    The same environment with a line that does not name the command; None where something else is typed.
    """
    typed = {name: environ[name] for name in _TYPED if name in environ}
    words = next(iter(typed.values()), "").split(" ")
    if words[1:2] != ["record"] or len(words) < 3 or not words[-1].startswith("-"):
        return None
    changed = {name: text.replace(" record ", " ", 1) for name, text in typed.items()}
    if "COMP_CWORD" in environ:
        changed["COMP_CWORD"] = str(int(environ["COMP_CWORD"]) - 1)
    return {**environ, **changed}


def strategies_like(incomplete: str) -> list[str]:
    """The strategies that begin so."""
    return [name for name in STRATEGIES if name.startswith(incomplete)]


def runs_like(incomplete: str) -> list[str]:
    """The paths of runs and traces that begin so; in place of a folder of runs, the runs in it."""
    folder, slash, start = incomplete.rpartition("/")
    base = Path(folder + slash or ".").expanduser()
    try:
        names = sorted(entry.name for entry in base.iterdir() if entry.name.startswith(start))
        return [path for name in names for path in _completions(folder + slash + name)][:_MOST_COMPLETIONS]
    except OSError:
        return []


def _completions(path: str) -> list[str]:
    name = path.rpartition("/")[2]
    if name.startswith("."):
        return []
    if Path(path).expanduser().is_dir():
        return run_folders(path)
    return [path] if is_trace_name(name) else []
