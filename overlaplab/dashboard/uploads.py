"""Traces that a user brings along: they lie in a folder of that user's own, which is deleted with the session."""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from streamlit.runtime.uploaded_file_manager import UploadedFile

from overlaplab.errors import OverlaplabError
from overlaplab.folders import MANIFEST_NAME, is_trace_name
from overlaplab.load.file.inflate import Source
from overlaplab.words import shorten

PREFIX = "/uploaded "
"""How uploaded runs' names begin: no run below a folder has such a name."""
MOST_FILES = 64
MOST_MB = 200
"""One upload's limit in decimal MB, all files together; Streamlit refuses any one file above the same limit."""
MOST_INFLATED = 4 << 30
"""Bytes that one upload may inflate to: real traces inflate to 26 times, which 200 MB seldom reach."""
_MOST_RUNS = 8


class Uploads:
    """One session's uploaded runs: name → folder. Its files go when it does, or the process ends."""

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="overlaplab-upload-"))
        self._folders: dict[str, Path] = {}
        self._count = 0
        self._delete = weakref.finalize(self, shutil.rmtree, self._root, ignore_errors=True)

    @property
    def names(self) -> list[str]:
        """The runs' names, in order of upload."""
        return list(self._folders)

    def folder(self, name: str) -> Path:
        """Where an uploaded run lies; raises OverlaplabError for any other name."""
        if name not in self._folders:
            raise OverlaplabError("this is not one of the uploaded runs", remedy="Choose one from the list.")
        return self._folders[name]

    def add(self, files: Sequence[UploadedFile]) -> str:
        """Keep files as a run, one per rank, and return its name.

        Raises OverlaplabError for too many or too large ones, and those that are no traces by their names.
        """
        _check(files)
        if len(self._folders) >= _MOST_RUNS:
            raise OverlaplabError(f"{_MOST_RUNS} uploads are open already", remedy="Close one first.")
        self._count += 1
        name = f"{PREFIX}{self._count}"
        folder = self._root / name.removeprefix("/")
        folder.mkdir()
        self._folders[name] = folder
        try:
            inflated = 0
            for file in files:
                path = folder / _file_name(file.name)
                with path.open("xb") as copy:
                    shutil.copyfileobj(file, copy)
                inflated += _inflated_bytes(path, MOST_INFLATED - inflated)
        except OSError as error:
            self.remove(name)
            raise OverlaplabError(f"cannot be kept: {error.strerror}", remedy="Is the disk full?") from None
        except OverlaplabError:
            self.remove(name)
            raise
        return name

    def without_folder(self, text: str) -> str:
        """An error's text without the folder's path, which says nothing to its reader."""
        return re.sub(rf"{re.escape(str(self._root))}(/uploaded [0-9]+)?/?", "", text)

    def remove(self, name: str) -> None:
        """Delete a run's files."""
        shutil.rmtree(self.folder(name), ignore_errors=True)
        del self._folders[name]

    def clear(self) -> None:
        """Delete all runs' files."""
        for name in self.names:
            self.remove(name)


def _check(files: Sequence[UploadedFile]) -> None:
    if len(files) > MOST_FILES:
        raise OverlaplabError(
            f"{len(files)} files are more than {MOST_FILES}", remedy="Open their folder: overlaplab app FOLDER."
        )
    if sum(file.size for file in files) > MOST_MB * 1_000_000:
        raise OverlaplabError(
            f"the files have more than {MOST_MB} MB together", remedy="Open their folder: overlaplab app FOLDER."
        )
    names = [_file_name(file.name) for file in files]
    for name in names:
        if not (is_trace_name(name) or name == MANIFEST_NAME):
            raise OverlaplabError(
                "is not named like a trace", path=shorten(name), remedy="Traces are named *.json or *.json.gz."
            )
        if names.count(name) > 1:
            raise OverlaplabError("is there twice", path=shorten(name), remedy="Give each rank's file its own name.")
    if all(name == MANIFEST_NAME for name in names):
        raise OverlaplabError("there is no trace among the files", remedy="Add one file per rank.")


def _file_name(name: str) -> str:
    """A file's name without folders or characters that do not print, and of no more than 100 characters."""
    return shorten(name.replace("\\", "/").rpartition("/")[2], 100).strip()


def _inflated_bytes(path: Path, most: int) -> int:
    """How many bytes a file inflates to, read in chunks; raises OverlaplabError above `most`, and for gzip bombs."""
    total = 0
    with path.open("rb") as file:
        opened: BinaryIO = file
        for chunk in Source(shorten(path.name), opened):
            total += len(chunk)
            if total > most:
                raise OverlaplabError(
                    f"the upload inflates to more than {MOST_INFLATED >> 30} GiB",
                    path=shorten(path.name),
                    remedy="Open its folder: overlaplab app FOLDER.",
                )
    return total
