"""Files that are whole or not there: written under a temporary name, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from overlaplab.errors import OverlaplabError
from overlaplab.events import Run


def refuse_target(path: Path, runs: list[Run]) -> None:
    """Raise `OverlaplabError` where `path` cannot be written: a folder, one of the runs' own files, or in no folder."""
    if path.is_dir():
        raise OverlaplabError("is a folder", path=path, remedy=f"Name a file, such as {path / 'report.html'}.")
    if not path.parent.is_dir():
        raise OverlaplabError("no such folder", path=path.parent, remedy="Make it first, or name another one.")
    if path.exists() and not path.is_file():
        raise OverlaplabError("is no plain file", path=path, remedy="Name a new file.")
    for run in runs:
        trace_files = [Path(trace.path) for trace in run.traces]
        if any(path.resolve() in (file.resolve(), file.resolve().with_name("run.json")) for file in trace_files):
            raise OverlaplabError("is a file of the run itself", path=path, remedy="Name a new file.")


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which becomes `path` when the block ends well and vanishes when it does not.

    Raises `OverlaplabError` where it cannot be written.
    """
    part = path.with_name(f".{path.name[:100]}.{os.getpid()}.part")
    try:
        with part.open("xb") as file:
            yield file
        part.replace(path)
    except OSError as error:
        raise OverlaplabError(f"cannot be written ({error.strerror or error})", path=path) from None
    finally:
        with suppress(OSError):
            part.unlink()
