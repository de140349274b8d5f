"""What the pages read, cached by path, mtime and size.

Cached objects are shared by all users: pages only read them. `st.cache_data` would hash a sample of a big
DataFrame and return a stale result; here the key is the file's stamp and the run itself is never hashed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import streamlit as st
from msgspec import field
from msgspec.structs import replace

import overlaplab
from overlaplab.dashboard import links
from overlaplab.dashboard.folder import HERE, Stamp, confined_path, describe_stamp, read_manifest, run_title, stamp
from overlaplab.dashboard.uploads import PREFIX, Uploads
from overlaplab.errors import OverlaplabError
from overlaplab.manifest import Manifest
from overlaplab.sections.run_tables import RunTables

T = TypeVar("T")

_NEVER: Any = object()
_MOST_RULES = 4
_MOST_SECTIONS = 64  # of a run: each holds the rows of a rank's step, and the charts drawn of them


class Opened(RunTables, frozen=True, kw_only=True):
    """A run of the opened folder, with the tables of all its ranks and steps."""

    name: str
    """Its name below the opened folder."""
    other: dict[str, Opened] = field(default_factory=dict)
    """The same with a user's own rule for communication, by that rule; the last ones that were asked for."""
    sections: dict[Hashable, Any] = field(default_factory=dict)
    """What pages have made of it lately, see `get_or_make`."""

    @property
    def title(self) -> str:
        """Its name in the page's head, under charts and in files' names."""
        return run_title(Path(self.run.path), self.name)

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
            self.other[communication] = recounted
            for oldest in list(self.other)[:-_MOST_RULES]:
                self.other.pop(oldest, None)
        return recounted


def uploads() -> Uploads:
    """This session's own traces."""
    if "uploads" not in st.session_state:
        st.session_state["uploads"] = Uploads()
    held_uploads: Uploads = st.session_state["uploads"]
    return held_uploads


def open_run(root: Path | None, name: str) -> Opened | OverlaplabError:
    """A run of the opened folder, or an uploaded one of this session; or what is wrong with it."""
    is_upload = name.startswith(PREFIX)
    try:
        slot = _find_slot(root, name)
        rule = links.communication_rule(links.choice(links.COMMUNICATION))
        return slot.read().with_communication(rule)
    except OverlaplabError as error:
        return OverlaplabError(uploads().without_folder(str(error))) if is_upload else error
    except OSError as error:
        return OverlaplabError(f"cannot be read: {error.strerror}", path=name, remedy="Was it moved or deleted?")
    except (RecursionError, MemoryError):
        return OverlaplabError("is too deep or too big to read", path=name, remedy="Record fewer steps.")


def is_read(root: Path | None, name: str) -> bool:
    """Whether a run stands ready, so that `open_run` returns at once."""
    try:
        return _find_slot(root, name).opened is not None
    except (OverlaplabError, OSError):
        return False


def run_manifest(name: str) -> Manifest | None:
    """A run's manifest, without its traces, of the opened folder or uploaded; None where none is readable."""
    if name.startswith(PREFIX):
        return read_manifest(uploads().folder(name), HERE)
    root: Path | None = st.session_state["folder"]
    return None if root is None else read_manifest(root, name)


def close_upload(name: str) -> None:
    """Delete an uploaded run, and what was read of it."""
    path = uploads().folder(name)
    _slot.clear(str(path), stamp(path), name, False)
    uploads().remove(name)


class _RunSlot:
    """A run's place, in which it stands once it is read; sessions share it. `keep`: its tables in the disk's cache."""

    def __init__(self, path: str, stamped: Stamp, name: str, *, keep: bool) -> None:
        self.opened: Opened | None = None
        self._path, self._stamped, self._name, self._keep = path, stamped, name, keep
        self._lock = Lock()

    def read(self) -> Opened:
        """The run; where it must be read, the page says meanwhile how much that is."""
        if self.opened is not None:
            return self.opened
        with st.spinner(f"Reading {describe_stamp(self._stamped)}", show_time=True), self._lock:
            if self.opened is None:
                self.opened = Opened(name=self._name, run=overlaplab.load_run(self._path, cache=self._keep))
            return self.opened


def _find_slot(root: Path | None, name: str) -> _RunSlot:
    is_upload = name.startswith(PREFIX)
    if root is None and not is_upload:
        raise OverlaplabError("no folder is open")
    path = confined_path(root, name) if root is not None and not is_upload else uploads().folder(name)
    return _slot(str(path), stamp(path), name, not is_upload)


@st.cache_resource(max_entries=24, show_spinner=False)
def _slot(path: str, stamped: Stamp, name: str, keep: bool) -> _RunSlot:
    return _RunSlot(path, stamped, name, keep=keep)
