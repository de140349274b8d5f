"""A watched training as the page Live shows it: read again when its files have changed, and drawn from few rows."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from threading import Lock

import pandas as pd
import streamlit as st
from msgspec import Struct

from overlaplab import findings
from overlaplab.dashboard.folder import Stamp, confined_path, watched_stamp
from overlaplab.errors import OverlaplabError
from overlaplab.load.watched import load_watched
from overlaplab.sections.blocks import Section
from overlaplab.sections.live import live_section
from overlaplab.sections.watched import WatchedTables

_REST = 5
"""Between two readings lies at least so many times as long as the last one took: of very long trainings, seconds."""


def look_s(default: float) -> float | None:
    """Seconds between looks at files: OVERLAPLAB_WATCH_S, or else so many; None for never."""
    setting = os.environ.get("OVERLAPLAB_WATCH_S", "")
    seconds = float(setting) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", setting) else default
    return seconds or None


class Live(Struct, frozen=True, kw_only=True):
    """What is shown of a watched training; holds none of its steps."""

    about: str
    sentences: tuple[str, ...]
    notes: tuple[str, ...]
    section: Section
    recordings: pd.DataFrame
    """The table of `findings.watched_recordings`."""
    written_ns: int
    """When its files were last written, in ns since 1970."""


class LiveFolder:
    """A folder that is watched into; sessions share what was read of it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._stamp: Stamp | None = None
        self._live: Live | None = None
        self._due = 0.0

    def read(self, path: Path) -> Live:
        """What is there now, or was a moment ago. Raises OverlaplabError."""
        with self._lock:
            stamped = watched_stamp(path)
            if self._live is None or (stamped != self._stamp and time.monotonic() >= self._due):
                begun = time.monotonic()
                self._live = _read(path, stamped)
                self._stamp = stamped
                self._due = time.monotonic() + _REST * (time.monotonic() - begun)
            return self._live


def read_live(root: Path, name: str) -> Live | OverlaplabError:
    """The watched training in this folder below the opened one; or what is wrong with it."""
    try:
        path = confined_path(root, name)
        return _folder(str(path)).read(path)
    except OverlaplabError as error:
        return error
    except OSError as error:
        return OverlaplabError(f"cannot be read: {error.strerror}", path=name, remedy="Was it moved or deleted?")


@st.cache_resource(max_entries=16, show_spinner=False)
def _folder(path: str) -> LiveFolder:
    return LiveFolder()


def _read(path: Path, stamped: Stamp) -> Live:
    tables = WatchedTables(load_watched(path))
    return Live(
        about=findings.watched_about(tables.watched, tables.ranks),
        sentences=tuple(tables.sentences),
        notes=tuple(tables.notes),
        section=live_section(tables),
        recordings=findings.watched_recordings(tables.watched),
        written_ns=max((mtime_ns for _, mtime_ns, _ in stamped), default=0),
    )
