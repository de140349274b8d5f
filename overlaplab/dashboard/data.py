"""What the pages read, cached by path, mtime and size.

Cached objects are shared by all users: pages only read them. `st.cache_data` would hash a sample of a big
DataFrame and return a stale result; here the key is the file's stamp and the run itself is never hashed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import streamlit as st

import overlaplab
from overlaplab.dashboard import links
from overlaplab.dashboard.folder import HERE, confined_path, read_manifest, stamp
from overlaplab.dashboard.uploads import PREFIX, Uploads
from overlaplab.errors import OverlaplabError
from overlaplab.manifest import Manifest
from overlaplab.sections.run_tables import RunTables

T = TypeVar("T")

_NEVER: Any = object()
_MOST_SECTIONS = 64  # of a run: each holds the rows of a rank's step, and the charts drawn of them


@dataclass(frozen=True, kw_only=True)
class Opened(RunTables):
    """A run of the opened folder, with the tables of all its ranks and steps."""

    name: str
    """Its name below the opened folder."""
    other: dict[str, Opened] = field(default_factory=dict)
    """The same with the user's own rule for communication, by that rule; the last one that was asked for."""
    sections: dict[Hashable, Any] = field(default_factory=dict)
    """What pages have made of it lately, see `get_or_make`."""

    def get_or_make(self, about: Hashable, make: Callable[[], T]) -> T:
        """What a page made of this run `about` something before, or else makes now.

        A section that is kept is the same object each time, so that its charts are drawn once: `widgets.show_block`.
        """
        value: T = self.sections.get(about, _NEVER)
        if value is _NEVER:
            value = self.sections[about] = make()
            for oldest in list(self.sections)[:-_MOST_SECTIONS]:
                self.sections.pop(oldest, None)
        return value

    def with_communication(self, communication: str | None) -> Opened:
        """The same, with `load_run`'s `communication`."""
        if communication is None:
            return self
        recounted = self.other.get(communication)
        if recounted is None:
            traces = tuple(replace(trace, communication=communication) for trace in self.run.traces)
            recounted = Opened(name=self.name, run=replace(self.run, traces=traces))
            self.other.clear()
            self.other[communication] = recounted
        return recounted


def uploads() -> Uploads:
    """This session's own traces."""
    if "uploads" not in st.session_state:
        st.session_state["uploads"] = Uploads()
    held_uploads: Uploads = st.session_state["uploads"]
    return held_uploads


def open_run(root: Path | None, name: str) -> Opened | OverlaplabError:
    """A run of the opened folder, or an uploaded one of this session; or what is wrong with it."""
    brought = name.startswith(PREFIX)
    try:
        if root is None and not brought:
            raise OverlaplabError("no folder is open")
        path = confined_path(root, name) if root is not None and not brought else uploads().folder(name)
        rule = links.communication_rule(links.choice(links.COMMUNICATION))
        return _load_run(str(path), stamp(path), name, not brought).with_communication(rule)
    except OverlaplabError as error:
        return OverlaplabError(uploads().without_folder(str(error))) if brought else error
    except OSError as error:
        return OverlaplabError(f"cannot be read: {error.strerror}", path=name, remedy="Was it moved or deleted?")
    except (RecursionError, MemoryError):
        return OverlaplabError("is too deep or too big to read", path=name, remedy="Record fewer steps.")


def run_manifest(name: str) -> Manifest | None:
    """A run's manifest, without its traces, of the opened folder or uploaded; None where none is readable."""
    if name.startswith(PREFIX):
        return read_manifest(uploads().folder(name), HERE)
    root: Path | None = st.session_state["folder"]
    return None if root is None else read_manifest(root, name)


def close_upload(name: str) -> None:
    """Delete an uploaded run, and what was read of it."""
    path = uploads().folder(name)
    _load_run.clear(str(path), stamp(path), name, False)
    uploads().remove(name)


@st.cache_resource(max_entries=24, show_spinner="Reading the traces")
def _load_run(path: str, stamped: tuple[tuple[str, int, int], ...], name: str, keep: bool) -> Opened:
    return Opened(name=name, run=overlaplab.load_run(path, cache=keep))
