"""The opened folder: which runs it holds, and that nothing outside it is read."""

from __future__ import annotations

import os
import stat
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path, PurePath
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from overlaplab.errors import OverlaplabError
from overlaplab.folders import MANIFEST_NAME, holds_trace, holds_watched, is_watched_name, trace_names
from overlaplab.load.run_folder import load_manifest
from overlaplab.manifest import Manifest
from overlaplab.words import count, shorten, size_exact

WATCH = "watch"
"""The folder within a Recorder's, in which it keeps what it watches."""
HERE = "."
"""The name of the opened folder itself."""

_DEPTH = 3  # folders below the opened one: a sweep's runs stand in a folder of their own, and that in `runs`
_MOST = 500  # runs offered; four times as many folders are looked into


class Entry(Struct, frozen=True, kw_only=True):
    """A run, or what might be one, within the opened folder."""

    name: str
    """Its path below the opened folder, with `/`; `.` is the folder itself."""
    files: int
    """How many traces it holds."""
    manifest: bool = False
    """Whether run.json is there; the engine writes it last."""
    watched: bool = False
    """Whether it holds what `overlaplab.watch` writes."""

    @property
    def recorded(self) -> bool:
        """Whether there is a run, or what might be one; else the training was only watched."""
        return self.files > 0 or self.manifest


class Scan(NamedTuple):
    """What a look into the opened folder and those below it gives."""

    runs: list[Entry]
    """Those that `find_runs` gives."""
    refused: list[str]
    """The links to folders outside the opened one, which are not followed, by their names below it."""
    is_cut: bool
    """Whether it ended before all folders were looked into, as there are too many."""


def find_runs(root: Path) -> list[Entry]:
    """The opened folder and those below it that hold a manifest, traces or a watched training, in order of name."""
    return scan_runs(root).runs


def scan_runs(root: Path) -> Scan:
    """Look into the opened folder and those below it."""
    runs: list[Entry] = []
    refused: list[str] = []
    looked = 0
    seen: set[Path] = set()  # a link may lead back up
    queue: deque[tuple[str, int, Path | None]] = deque([(HERE, 0, None)])
    while queue and len(runs) < _MOST and looked < _MOST * 4:
        name, depth, path = queue.popleft()
        looked += 1
        try:
            folder = path or confined_path(root, name)
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
        traces, watched = trace_names(files), holds_watched(files)
        if MANIFEST_NAME in files or watched or holds_trace(folder, files):
            manifest = MANIFEST_NAME in files
            runs.append(Entry(name=name, files=len(traces), manifest=manifest, watched=watched))
        if depth < _DEPTH:
            for entry in entries:
                if _is_folder(entry) and not entry.name.startswith("."):
                    inner = entry.name if name == HERE else f"{name}/{entry.name}"
                    is_inside = not entry.is_symlink() and not inner.startswith("\\")
                    queue.append((inner, depth + 1, folder / entry.name if is_inside else None))
    return Scan(sorted(runs, key=lambda entry: (entry.name != HERE, entry.name)), sorted(refused), bool(queue))


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


def short_words(names: Iterable[str], most: int = 28) -> dict[str, str]:
    """By run its name, shortened for the side bar, and less so where it would equal another one's."""
    words = {name: run_word(name, most) for name in names}
    times = Counter(words.values())
    return {name: word if times[word] == 1 else run_word(name) for name, word in words.items()}


def run_title(root: Path | None, name: str, most: int = 60) -> str:
    """A run's name where it stands alone: for the opened folder itself that folder's name."""
    return shorten(root.resolve().name, most) if name == HERE and root is not None else run_word(name, most)


def watched_beside(name: str, entries: Iterable[Entry]) -> str | None:
    """The folder with what was watched of a run's training: its own, or its `watch`; None where neither has any."""
    watched = {entry.name for entry in entries if entry.watched}
    within = WATCH if name == HERE else f"{name}/{WATCH}"
    return next((folder for folder in (name, within) if folder in watched), None)


def recorded_name(path: str, watched: str, entries: Iterable[Entry]) -> str | None:
    """The run of the opened folder that a watch has recorded at this path, which may be another machine's.

    It lies beside the folder `watched`, or its path ends as the run's name does. None where there is none.
    """
    recorded = {entry.name for entry in entries if entry.recorded}
    parts = PurePath(path).parts
    beside = str(PurePath(watched).parent / parts[-1]) if parts else ""
    endings = ("/".join(parts[start:]) for start in range(len(parts)))
    return next((name for name in (beside, *endings) if name in recorded), None)


Stamp: TypeAlias = tuple[tuple[str, int, int], ...]
"""The name, mtime in ns and size of each of a folder's files."""


def stamp(path: Path) -> Stamp:
    """What tells whether a run has changed, and no content.

    Raises OverlaplabError where a link among the traces leads out of the run's folder.
    """
    return _stamp(path, lambda names: {MANIFEST_NAME, *trace_names(names)})


def describe_stamp(stamped: Stamp) -> str:
    """How much there is to read of a run with this `stamp`: `8 traces, 87.0 MB`."""
    traces = trace_names([name for name, _, _ in stamped])
    return f"{count(len(traces), 'trace')}, {size_exact(sum(length for name, _, length in stamped if name in traces))}"


def watched_stamp(path: Path) -> Stamp:
    """What tells whether a watched training has gone on; raises as `stamp`."""
    return _stamp(path, lambda names: set(filter(is_watched_name, names)))


def _stamp(path: Path, wanted: Callable[[list[str]], set[str]]) -> Stamp:
    files = []
    with os.scandir(path) as scanned:
        entries = list(scanned)
        names = wanted([entry.name for entry in entries])
        for entry in entries:
            if entry.name not in names or not _is_file(entry):
                continue
            if entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(path):
                raise OverlaplabError(
                    "a link leads out of the run's folder", path=entry.name, remedy="Copy the file there instead."
                )
            status = entry.stat()
            files.append((entry.name, status.st_mtime_ns, status.st_size))
    return tuple(sorted(files))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder, as far as can be told: a link may lead to itself, or where nobody may look."""
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
