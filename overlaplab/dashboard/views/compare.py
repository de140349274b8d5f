"""The Compare page: several runs' step time, and what it is made of."""

from __future__ import annotations

import re
from pathlib import Path, PurePath

import pandas as pd
import streamlit as st

import overlaplab
from overlaplab import findings
from overlaplab.analyses import is_sweep, rows_of, sweep_links
from overlaplab.dashboard.data import Opened, open_run
from overlaplab.dashboard.folder import HERE, stamp
from overlaplab.dashboard.spots import show_spot
from overlaplab.dashboard.widgets import (
    error_line,
    lead,
    page_head,
    show_block,
    show_blocks,
    show_section,
    what_to_do,
)
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run
from overlaplab.folders import by_value
from overlaplab.sections.comparison import costs_section, step_times_section, sweep_section
from overlaplab.words import shorten

_MOST = 12  # runs compared unless the user chooses more
_MOST_OF_SWEEP = 24  # as many as stay open (`data.open_run`): seven caps, three times each
_RECORDING = re.compile(r"cap-[0-9.]+(?:-([0-9]{1,9}))?$")


def page() -> None:
    """Draw the page."""
    page_head("Compare", "Several runs side by side: how long their steps take, and what of that is communication.")
    good, bad = _open_all(_choose(st.session_state["names"]))
    if bad:
        st.warning("Left out, because they cannot be read:")
        for name, error in bad:
            error_line(error, name)
    if not good:
        st.info("Choose runs to compare: their step times appear here side by side.")
        return
    if is_sweep([opened.run for opened in good]):
        _sweep(good)
    else:
        _runs(good)


def _choose(names: list[str]) -> list[str]:
    """The runs to compare: at first those of the folder that the run on the left lies in, and new ones as they come."""
    folder = str(PurePath(st.session_state["run"]).parent)
    own = sorted((name for name in names if str(PurePath(name).parent) == folder), key=by_value)
    known: tuple[str, list[str], list[str]] | None = st.session_state.get("compared_known")
    if known is None or known[0] != folder:
        wanted = _first(own)
    else:
        chosen: list[str] = st.session_state.get("compared", known[2])  # the control's, or what it said before
        untouched = chosen == _first(known[1])
        wanted = _first(own) if untouched else [name for name in chosen if name in names]
    if st.session_state.get("compared") != wanted:
        st.session_state["compared"] = wanted
    found = st.multiselect(
        "Runs",
        sorted(names, key=by_value),
        format_func=lambda name: "(this folder)" if name == HERE else shorten(name, 60),
        key="compared",
        help="At first the runs of one folder: choose one of its runs on the left.",
    )
    st.session_state["compared_known"] = (folder, own, found)
    return found


def _first(names: list[str]) -> list[str]:
    """As many as are compared unless the user chooses more; of a sweep each cap before any is there a second time."""
    found = [_RECORDING.search(name) for name in names]
    most = _MOST_OF_SWEEP if all(found) else _MOST
    rounds = [int(match[1] or 1) if match else 1 for match in found]
    taken = sorted(range(len(names)), key=lambda place: (rounds[place], place))[:most]
    return [names[place] for place in sorted(taken)]


@st.cache_resource(max_entries=8, show_spinner="Comparing the recordings")
def _tables(
    stamps: tuple[tuple[str, tuple[tuple[str, int, int], ...]], ...], communication: str | None, _runs: list[Run]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`sweep` and `sweep_links` of these runs, kept as long as their files and the rule are the same."""
    return overlaplab.sweep(_runs), sweep_links(_runs)


def _sweep(good: list[Opened]) -> None:
    """The charts of a sweep over bucket_cap_mb side by side, and what to do."""
    runs = [opened.run for opened in good]
    stamps = tuple((run.path, stamp(Path(run.path))) for run in runs)
    table, links = _tables(stamps, runs[0].traces[0].communication, runs)
    note, manifest = _note(good), runs[0].manifest
    section = sweep_section(table, links, note)
    strategy = manifest.strategy if manifest else None
    lead(section.lead, findings.sweep_subject(strategy, len(runs[0].traces), len(runs), note))
    *charts, rows = section.blocks
    for column, chart in zip(st.columns(2), charts, strict=True):
        with column:
            show_block(chart)
    row = show_block(rows, choose=True)
    if row is not None:
        _go_to(good, links[links["bucket_cap_mb"].eq(row["bucket_cap_mb"])])
    what_to_do(section.advice)


def _go_to(good: list[Opened], own: pd.DataFrame) -> None:
    """Turn to the timeline at the step that stands for a cap."""
    if own.empty:
        st.text("This cap's step has no communication to show.")
        return
    first = dict(own.iloc[0])
    opened = next(opened for opened in good if opened.run.path == first["path"])
    step = rows_of(opened.summary, first).iloc[0]
    show_spot(opened, step["start_ns"], step["start_ns"] + step["span_ns"], first["rank"], room=0, least_ns=0)


def _runs(good: list[Opened]) -> None:
    """Runs that differ in anything: step times, and costs against theory."""
    table = overlaplab.compare([opened.run for opened in good])
    settings = [findings.describe_settings(opened.run.manifest) for opened in good]
    section = step_times_section(table, _note(good), settings)
    show_blocks(section.blocks)
    costs = costs_section(table, _note(good))
    if costs is not None:
        show_section(costs)
    what_to_do([*section.advice, *(costs.advice if costs else ())])


def _open_all(names: list[str]) -> tuple[list[Opened], list[tuple[str, OverlaplabError]]]:
    """Those runs that can be compared, and what is wrong with the others."""
    good: list[Opened] = []
    bad: list[tuple[str, OverlaplabError]] = []
    for name in names:
        opened = open_run(st.session_state["folder"], name)
        if isinstance(opened, OverlaplabError):
            bad.append((name, opened))
        elif opened.summary.empty:
            bad.append((name, OverlaplabError("nothing in this run counts as compute or communication")))
        else:
            good.append(opened)
    return good, bad


def _note(runs: list[Opened]) -> str | None:
    """The emulated links among the runs."""
    return findings.links_note([opened.run.manifest for opened in runs])


page()
