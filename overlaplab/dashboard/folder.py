"""The opened folder: which runs it holds, and that nothing outside it is read."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from overlaplab.errors import OverlaplabError
from overlaplab.folders import MANIFEST_NAME, is_trace_name
from overlaplab.load import load_manifest
from overlaplab.manifest import Manifest
from overlaplab.words import shorten

HERE = "."
"""The name of the opened folder itself."""

_DEPTH = 3  # folders below the opened one: a sweep's runs stand in a folder of their own, and that in `runs`
_MOST = 500  # runs offered, and folders looked into


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A run, or what might be one, within the opened folder."""

    name: str
    """Its path below the opened folder, with `/`; `.` is the folder itself."""
    files: int
    """How many traces it holds."""
    manifest: bool = False
    """Whether run.json is there; the engine writes it last."""


def find_runs(root: Path) -> list[Entry]:
    """The opened folder and the folders below it that hold a manifest or traces, in order of name."""
    return scan_runs(root)[0]


def scan_runs(root: Path) -> tuple[list[Entry], list[str]]:
    """`find_runs`, and the links to folders outside the opened one, which are not followed, by their names below it."""
    runs: list[Entry] = []
    refused: list[str] = []
    looked = 0
    seen: set[Path] = set()  # a link may lead back up
    queue: list[tuple[str, int]] = [(HERE, 0)]
    while queue and len(runs) < _MOST and looked < _MOST * 4:
        name, depth = queue.pop(0)
        looked += 1
        try:
            folder = confined_path(root, name)
        except (OSError, OverlaplabError):
            refused.append(name)
            continue
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue  # gone in the meantime, or not ours to read
        if folder in seen:
            continue
        seen.add(folder)
        files = [entry.name for entry in entries if _is_file(entry)]
        traces = [file for file in files if is_trace_name(file)]
        if traces or MANIFEST_NAME in files:
            runs.append(Entry(name=name, files=len(traces), manifest=MANIFEST_NAME in files))
        if depth < _DEPTH:
            below = [entry.name for entry in entries if _is_folder(entry) and not entry.name.startswith(".")]
            queue += [(inner if name == HERE else f"{name}/{inner}", depth + 1) for inner in below]
    return sorted(runs, key=lambda entry: (entry.name != HERE, entry.name)), sorted(refused)


def confined_path(root: Path, name: str) -> Path:
    """The path of a run by its name below the opened folder.

    Raises OverlaplabError for a name that leads out of the folder: absolute, with `..` or a NUL, or through a symlink.
    """
    parts = name.split("/")
    if "\0" in name or name.startswith(("/", "\\")) or ".." in parts or "" in parts or Path(name).is_absolute():
        raise OverlaplabError("this is not a run of the opened folder", remedy="Choose one from the list.")
    base = root.resolve()
    path = (base / name).resolve()
    if path != base and not path.is_relative_to(base):
        raise OverlaplabError("this run lies outside the opened folder", remedy="Open its own folder instead.")
    return path


def read_manifest(root: Path, name: str) -> Manifest | None:
    """A run's manifest, without its traces; None where nothing readable is there."""
    try:
        file = confined_path(root, name) / MANIFEST_NAME
        if not file.is_file() or file.is_symlink():
            return None
        status = file.stat()
        return _manifest(file, status.st_mtime_ns, status.st_size)
    except (OSError, OverlaplabError):
        return None


@lru_cache(maxsize=256)
def _manifest(file: Path, mtime_ns: int, size: int) -> Manifest | None:
    return load_manifest(str(file.parent))


def run_word(name: str, most: int = 60) -> str:
    """What a run of the opened folder, or an uploaded one, is called on screens."""
    return "(this folder)" if name == HERE else shorten(name.removeprefix("/"), most)


def stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    """What tells whether a run has changed: the name, mtime in ns and size of each of its files, and no content.

    Raises OverlaplabError where a link among the traces leads out of the run's folder.
    """
    files = []
    with os.scandir(path) as entries:
        for entry in entries:
            if not (is_trace_name(entry.name) or entry.name == MANIFEST_NAME) or not _is_file(entry):
                continue
            if entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(path):
                raise OverlaplabError(
                    "a link leads out of the run's folder", path=entry.name, remedy="Copy the file there instead."
                )
            status = entry.stat()
            files.append((entry.name, status.st_mtime_ns, status.st_size))
    return tuple(sorted(files))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it can be told to be one: a link may lead nowhere but to itself, or where nobody may look."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Whether it is a plain file: to open a FIFO would block for ever."""
    try:
        return stat.S_ISREG(entry.stat().st_mode)
    except OSError:
        return False
