"""What the pages read, cached by path, mtime and size.

Cached objects are shared by all users: pages only read them. `st.cache_data` would hash a sample of a big
DataFrame and return a stale result; here the key is the file's stamp and the run itself is never hashed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import pandas as pd
import streamlit as st

import overlaplab
from overlaplab import findings
from overlaplab.analyses import Theory, idle, memory, peaks, scatters, volume, volume_theory
from overlaplab.dashboard import links
from overlaplab.dashboard.folder import confined, stamp
from overlaplab.dashboard.uploads import PREFIX, Uploads
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run
from overlaplab.timeline.timeline import Timeline, timeline_events

__all__ = ["Opened", "close_upload", "open_run", "uploads"]


@dataclass(frozen=True)
class Opened:
    """A run and its tables, each computed at the first use."""

    name: str
    """Its name below the opened folder."""
    run: Run
    other: dict[str, Opened] = field(default_factory=dict)
    """The same with the user's own rule for communication, by that rule; the last one that was asked for."""

    def counting(self, communication: str | None) -> Opened:
        """The same, with `load_run`'s `communication`."""
        if communication is None:
            return self
        found = self.other.get(communication)
        if found is None:
            traces = tuple(replace(trace, communication=communication) for trace in self.run.traces)
            found = Opened(name=self.name, run=replace(self.run, traces=traces))
            self.other.clear()
            self.other[communication] = found
        return found

    @cached_property
    def summary(self) -> pd.DataFrame:
        """`overlaplab.summary` of all ranks and steps."""
        return overlaplab.summary(self.run)

    @cached_property
    def totals(self) -> pd.DataFrame:
        """`overlaplab.totals` of all ranks."""
        return overlaplab.totals(self.run)

    @cached_property
    def exposed(self) -> pd.DataFrame:
        """`overlaplab.exposed` of all ranks and steps."""
        return overlaplab.exposed(self.run)

    @cached_property
    def idle(self) -> pd.DataFrame:
        """`overlaplab.analyses.idle` of all ranks and steps."""
        return idle(self.run)

    @cached_property
    def buckets(self) -> pd.DataFrame:
        """`overlaplab.buckets` of all ranks and steps."""
        return overlaplab.buckets(self.run)

    @cached_property
    def schedule(self) -> pd.DataFrame:
        """`overlaplab.schedule` of all ranks and steps."""
        return overlaplab.schedule(self.run)

    @cached_property
    def collectives(self) -> pd.DataFrame:
        """`overlaplab.collectives` of all ranks and steps."""
        return overlaplab.collectives(self.run)

    @cached_property
    def scatters(self) -> pd.DataFrame:
        """`overlaplab.analyses.scatters` of all ranks and steps."""
        return scatters(self.run)

    @cached_property
    def volume(self) -> pd.DataFrame:
        """`overlaplab.analyses.volume` of all ranks and steps."""
        return volume(self.run)

    @cached_property
    def theory(self) -> Theory | None:
        """`overlaplab.analyses.volume_theory`."""
        return volume_theory(self.run)

    @cached_property
    def memory(self) -> pd.DataFrame:
        """`overlaplab.analyses.memory` of all ranks."""
        return memory(self.run)

    @cached_property
    def peaks(self) -> pd.DataFrame:
        """`overlaplab.analyses.peaks` of all ranks."""
        return peaks(self.run)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of the run's figures must know."""
        return findings.run_warnings(self.run)

    @cached_property
    def timeline(self) -> Timeline:
        """The timeline's lanes and events."""
        return timeline_events(self.run)


def uploads() -> Uploads:
    """This session's own traces."""
    if "uploads" not in st.session_state:
        st.session_state["uploads"] = Uploads()
    found: Uploads = st.session_state["uploads"]
    return found


def open_run(root: Path | None, name: str) -> Opened | OverlaplabError:
    """A run of the opened folder, or an uploaded one of this session; or what is wrong with it."""
    brought = name.startswith(PREFIX)
    try:
        if root is None and not brought:
            raise OverlaplabError("no folder is open")
        path = confined(root, name) if root is not None and not brought else uploads().folder(name)
        rule = links.communication_rule(links.kept(links.COMMUNICATION))
        return _opened(str(path), stamp(path), name, not brought).counting(rule)
    except OverlaplabError as error:
        return OverlaplabError(uploads().without_folder(str(error))) if brought else error
    except OSError as error:
        return OverlaplabError(f"cannot be read: {error.strerror}", path=name, remedy="Was it moved or deleted?")
    except (RecursionError, MemoryError):
        return OverlaplabError("is too deep or too big to read", path=name, remedy="Record fewer steps.")


def close_upload(name: str) -> None:
    """Delete an uploaded run, and what was read of it."""
    path = uploads().folder(name)
    _opened.clear(str(path), stamp(path), name, False)
    uploads().remove(name)


@st.cache_resource(max_entries=24, show_spinner="Reading the traces")
def _opened(path: str, stamped: tuple[tuple[str, int, int], ...], name: str, keep: bool) -> Opened:
    return Opened(name=name, run=overlaplab.load_run(path, cache=keep))
