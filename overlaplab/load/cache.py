"""A cache of tables from traces, so that opening a run again takes a fraction of the time.

An entry is one file, `<key>.trace`. The key is derived from the trace's path, size and modification time, and from the
loader's code. Entries are written to a temporary file and renamed, so that other processes see a whole entry or none. A
damaged entry counts as absent. No error here ever fails a load.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from pathlib import Path

from overlaplab.load.file.trace_file import TraceFile
from overlaplab.load.limits import Limit
from overlaplab.load.packed import unpack
from overlaplab.load.places import Located


def _digest() -> str:
    package = Path(__file__).parents[1]
    used = ("dtypes.py", "event_columns.py", "events/run.py", "events/rows.py", "vocabulary.py")
    code = [*sorted(Path(__file__).parent.rglob("*.py")), *(package / file for file in used)]
    digest = hashlib.sha256()
    for file in code:
        with contextlib.suppress(OSError):  # packed into an archive
            digest.update(file.read_bytes())
    return digest.hexdigest()


LOADER = _digest()
"""The format's version: a digest of the code that reads traces, so that a change of it invalidates all entries.

Taken at import, so that a process still running old code after an upgrade does not count as the new version.
"""
LIMIT = Limit("OVERLAPLAB_CACHE_BYTES", 5_000_000_000)
"""Most bytes of all entries; least recently used entries are evicted first."""
SMALLEST_BYTES = 1 << 14
"""Smaller files are not worth caching."""
_ABANDONED_S = 3600
"""Older temporary files are left over from killed processes."""


def is_off() -> bool:
    return os.environ.get("OVERLAPLAB_NO_CACHE", "").strip().lower() not in ("", "0", "false", "no")


class Cache:
    """The folder OVERLAPLAB_CACHE_DIR, or `overlaplab` in the platform's folder for caches."""

    def __init__(self) -> None:
        self._folder = folder()

    def keeps(self, source: Located) -> bool:
        """Whether the file is large enough, and its changes can be detected."""
        return source.version is not None and source.size >= SMALLEST_BYTES

    def get(self, source: Located) -> TraceFile | None:
        """The file's content; None if it is not cached, or may have changed."""
        entry = self._entry(source)
        if entry is None:
            return None
        try:
            content = unpack(entry.read_bytes())
        except Exception:  # absent, unreadable or damaged: read the trace instead
            return None
        with contextlib.suppress(OSError):
            os.utime(entry)  # the time of last use
        return content

    def put(self, source: Located, packed: bytes) -> None:
        """Keep the output of `packed.pack` for the file, if there is room."""
        entry = self._entry(source)
        if entry is None or len(packed) > LIMIT.value:
            return
        with contextlib.suppress(OSError):  # a full or read-only disk
            keep_whole(entry, packed)
            self._evict(entry)

    def _entry(self, source: Located) -> Path | None:
        if source.version is None or not self.keeps(source):
            return None
        path = source.path if source.remote else os.path.abspath(source.path)
        made_from = "\0".join([path, str(source.size), source.version, LOADER])
        return self._folder / f"{hashlib.sha256(made_from.encode(errors='surrogateescape')).hexdigest()}.trace"

    def _evict(self, newest: Path) -> None:
        """Delete the least recently used entries until the limit holds."""
        entries: list[tuple[float, int, str]] = []
        with os.scandir(self._folder) as files:
            for file in files:
                with contextlib.suppress(OSError):  # another process may be deleting as well
                    status = file.stat()
                    if file.name.endswith(".part") and status.st_mtime < time.time() - _ABANDONED_S:
                        os.unlink(file.path)
                    elif file.name.endswith(".trace"):
                        used = float("inf") if file.name == newest.name else status.st_mtime
                        entries.append((used, status.st_size, file.path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= LIMIT.value:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size


def keep_whole(path: Path, content: bytes) -> None:
    """Write a file of the cache, which other processes see whole or not at all. Raises `OSError`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        try:
            file.write(content)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def folder() -> Path:
    """Where entries are kept."""
    if configured := os.environ.get("OVERLAPLAB_CACHE_DIR"):
        return Path(configured)
    from platformdirs import user_cache_path

    return user_cache_path("overlaplab", appauthor=False)
