"""Find traces and folders that hold runs, by name; also used for shell completion."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

MANIFEST_NAME = "run.json"
_MAX_OTHER_BYTES = 1 << 20
"""Larger JSON is taken for a trace: what overlaplab writes besides is smaller."""
_MAX_OTHERS = 100
"""So many files are looked into, before the next is taken for a trace."""
_WATCHED_NAME = re.compile(r"rank\d{1,6}\.(json|cells)")


def is_trace_name(name: str) -> bool:
    """Whether a file of this name counts as a trace."""
    return name.endswith((".json", ".json.gz")) and not name.startswith(".") and name != MANIFEST_NAME


def is_watched_name(name: str) -> bool:
    """Whether a file of this name may be one of `overlaplab.watch`: a rank's header, or its cells."""
    return _WATCHED_NAME.fullmatch(name) is not None


def holds_watched(names: Collection[str]) -> bool:
    """Whether a watched rank's cells are among files of these names."""
    return any(name.endswith(".cells") and is_watched_name(name) for name in names)


def trace_names(names: Collection[str]) -> list[str]:
    """Those of a folder's files that count as traces; a watched rank's header, which has cells beside it, is none."""
    cells = (name for name in names if name.endswith(".cells") and is_watched_name(name))
    headers = {name.removesuffix("cells") + "json" for name in cells}
    return [name for name in names if is_trace_name(name) and name not in headers]


def run_folders(path: str | os.PathLike[str]) -> list[str]:
    """The runs that a path denotes: a folder without traces of its own stands for the runs in its subfolders.

    They come in order of name, with numbers by value: cap-1, cap-5, cap-5-2, cap-25. Any other path stands for itself,
    including a folder without runs and a remote path.
    """
    text = os.fspath(path)
    if "://" in text or _holds_run(Path(text)):
        return [text]
    try:
        inner = [folder for folder in Path(text).iterdir() if not folder.name.startswith(".") and _holds_run(folder)]
    except OSError:
        return [text]
    return [str(folder) for folder in sorted(inner, key=lambda folder: natural_key(folder.name))] or [text]


def left_out(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """What `run_folders` cannot look into within a folder of runs, broken links among it, each with the reason."""
    text = os.fspath(path)
    if "://" in text or _holds_run(Path(text)):
        return []
    try:
        inner = sorted(entry for entry in Path(text).iterdir() if not entry.name.startswith("."))
    except OSError:
        return []
    unreadable = []
    for folder in inner:
        try:
            if folder.is_symlink():
                folder.stat()
            if folder.is_dir():
                os.scandir(folder).close()
        except OSError as error:
            target = f"a link to {os.readlink(folder)}: " if folder.is_symlink() else ""
            unreadable.append((str(folder), f"{target}{error.strerror or error}"))
    return unreadable


def _holds_run(folder: Path) -> bool:
    try:
        names = [entry.name for entry in os.scandir(folder)]
    except OSError:
        return False
    return MANIFEST_NAME in names or holds_trace(folder, names)


def holds_trace(folder: Path, names: Collection[str]) -> bool:
    """Whether one of a folder's files may be a trace; a baseline, or other whole JSON without events, is none."""
    traces = trace_names(names)
    return len(traces) > _MAX_OTHERS or any(_may_be_trace(folder / name) for name in traces)


def _may_be_trace(path: Path) -> bool:
    """Whether a file may be a trace, a damaged one, too: a whole object that names no events is none. Links may."""
    try:
        if path.suffix != ".json" or path.is_symlink() or not path.is_file() or path.stat().st_size > _MAX_OTHER_BYTES:
            return True
        content = path.read_bytes().strip()
    except OSError:
        return True
    is_whole_object = content.startswith(b"{") and content.endswith(b"}")
    return not is_whole_object or b'"traceEvents"' in content


def natural_key(name: str) -> list[tuple[float, str]]:
    """A key that sorts names with their numbers by value: cap-5 before cap-25."""
    parts = re.split(r"(\d{1,15}(?:\.\d{1,15})?)", name)
    return [(float(part), "") if place % 2 else (0.0, part) for place, part in enumerate(parts)]
