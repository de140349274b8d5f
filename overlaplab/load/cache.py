"""Tables of traces that were read before, so that a second look at a run takes a fraction of the first.

An entry is one file, `<key>.trace`, named after what it was made from: the trace's path, size and modification time,
and the loader that read it. It is written beside and renamed, so that readers, in any number of processes, see a whole
one or none; one that is damaged all the same counts as absent. Nothing that goes wrong here fails a load.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from pathlib import Path

from overlaplab.load.file import TraceFile
from overlaplab.load.packed import unpack
from overlaplab.load.places import Located

__all__ = ["Cache", "folder", "is_off"]


def _digest() -> str:
    package = Path(__file__).parents[1]
    code = [*sorted(Path(__file__).parent.rglob("*.py")), package / "events" / "run.py", package / "vocabulary.py"]
    digest = hashlib.sha256()
    for file in code:
        with contextlib.suppress(OSError):  # packed into an archive
            digest.update(file.read_bytes())
    return digest.hexdigest()


LOADER = _digest()
"""The format's version: a digest of the code that reads traces, so that no change of it serves old tables.

Taken at import: a process that runs on while overlaplab is replaced must not pass for the new one.
"""
LIMIT_BYTES = 5_000_000_000
"""What the cache may grow to, unless OVERLAPLAB_CACHE_BYTES says otherwise; least recently used entries go first."""
SMALLEST_BYTES = 1 << 14
"""Smaller files are read faster than they are looked up."""
_ABANDONED_S = 3600
"""After this long a temporary file belongs to a process that was killed."""


def is_off() -> bool:
    """Whether the environment says OVERLAPLAB_NO_CACHE."""
    return os.environ.get("OVERLAPLAB_NO_CACHE", "").strip().lower() not in ("", "0", "false", "no")


class Cache:
    """The folder OVERLAPLAB_CACHE_DIR, or `overlaplab` in the platform's folder for caches."""

    def __init__(self) -> None:
        self._folder = folder()

    def keeps(self, source: Located) -> bool:
        """Whether the file is worth keeping, and tells when it changes."""
        return source.version is not None and source.size >= SMALLEST_BYTES

    def get(self, source: Located) -> TraceFile | None:
        """What the file holds; None where that is not known, or not certain any more."""
        entry = self._entry(source)
        if entry is None:
            return None
        try:
            found = unpack(entry.read_bytes())
        except Exception:  # absent, not ours to read, cut short, of another kind: then the trace itself is read
            return None
        with contextlib.suppress(OSError):
            os.utime(entry)  # the time of last use
        return found

    def put(self, source: Located, packed: bytes) -> None:
        """Keep what `packed.pack` made of the file, if there is room for it."""
        entry = self._entry(source)
        if entry is None or len(packed) > _limit():
            return
        with contextlib.suppress(OSError):  # a full or read-only disk
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, suffix=".part", delete=False) as file:
                try:
                    file.write(packed)
                    file.close()
                    os.replace(file.name, entry)
                except BaseException:
                    os.unlink(file.name)
                    raise
            self._evict(entry)

    def _entry(self, source: Located) -> Path | None:
        if source.version is None or not self.keeps(source):
            return None
        path = source.path if source.remote else os.path.abspath(source.path)
        made_from = "\0".join([path, str(source.size), source.version, LOADER])
        return self._folder / f"{hashlib.sha256(made_from.encode(errors='surrogateescape')).hexdigest()}.trace"

    def _evict(self, newest: Path) -> None:
        """Delete what was used longest ago until the limit holds."""
        kept: list[tuple[float, int, str]] = []
        with os.scandir(self._folder) as files:
            for file in files:
                with contextlib.suppress(OSError):  # another process deletes, too
                    status = file.stat()
                    if file.name.endswith(".part") and status.st_mtime < time.time() - _ABANDONED_S:
                        os.unlink(file.path)
                    elif file.name.endswith(".trace"):
                        used = float("inf") if file.name == newest.name else status.st_mtime
                        kept.append((used, status.st_size, file.path))
        total = sum(size for _, size, _ in kept)
        for _, size, path in sorted(kept):
            if total <= _limit():
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size


def folder() -> Path:
    """Where entries are kept."""
    if told := os.environ.get("OVERLAPLAB_CACHE_DIR"):
        return Path(told)
    from platformdirs import user_cache_path

    return user_cache_path("overlaplab", appauthor=False)


def _limit() -> int:
    try:
        return int(float(os.environ["OVERLAPLAB_CACHE_BYTES"]))
    except (KeyError, ValueError, OverflowError):
        return LIMIT_BYTES
