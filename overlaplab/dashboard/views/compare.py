"""The Compare page: several runs' step time, and what it is made of."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pandas as pd
import streamlit as st

import overlaplab
from overlaplab import findings
from overlaplab.analyses import is_sweep, largest_batches, rows_of, sweep_links
from overlaplab.dashboard import links
from overlaplab.dashboard.beside import runs_beside
from overlaplab.dashboard.data import Opened, open_run, run_manifest
from overlaplab.dashboard.folder import Stamp, run_word, stamp
from overlaplab.dashboard.head import error_line, page_head
from overlaplab.dashboard.spots import show_spot
from overlaplab.dashboard.widgets import show_advice, show_block, show_blocks, show_lead, show_section
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run
from overlaplab.folders import natural_key
from overlaplab.sections.blocks import Section
from overlaplab.sections.comparison import batches_section, costs_section, step_times_section, sweep_section
from overlaplab.words import capitalise, count


def page() -> None:
    page_head("Compare", "Several runs side by side: how long their steps take, and how much of that is communication.")
    by_name = _open_all(_choose(st.session_state["names"]))
    with _say_comparing(len(by_name)):
        good, bad = _sort_out(by_name)
    if bad:
        st.warning("Left out, because they cannot be compared:")
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
    """The runs to compare: at first the run on the left and those that did the same work, and new ones as they come.

    What the reader chooses, or a link says, stays until a run that is not among it is chosen on the left.
    """
    run: str = st.session_state["run"]
    beside, why = runs_beside(run, {name: run_manifest(name) for name in names})
    linked_names = [name for name in (links.choice(links.RUNS) or "").split(",") if name]
    before, begun_with = st.session_state.get("compared_of", (run, beside))
    now: list[str] = st.session_state.get("compared", linked_names or begun_with)
    left = run != before and run not in now
    if not links.is_fresh(links.RUNS):
        if left or now == begun_with:
            links.settle(links.RUNS, None, plain=False)
            st.session_state["compared"], linked_names = beside, []
        else:  # without those that are gone
            linked_names = [name for name in linked_names if name in names]
            st.session_state["compared"] = [name for name in now if name in names]
    links.start(links.RUNS, "compared", linked_names or None, beside, names)
    compared = st.multiselect(
        "Runs",
        sorted(names, key=natural_key),
        format_func=run_word,
        key="compared",
        on_change=links.control_used,
        help="At first the run on the left and those that did the same work: model, input, ranks, machine, link.",
    )
    linked = compared != beside and compared and not any("," in name for name in compared)
    links.settle(links.RUNS, ",".join(compared) if linked else None, plain=False)
    st.session_state["compared_of"] = (run, beside)
    if why is not None and compared == beside:
        with st.container(key="why_alone", border=True):
            st.text(why)
    return compared


# The runs' paths and what tells whether their files have changed.
Stamps = tuple[tuple[str, Stamp], ...]


@st.cache_resource(max_entries=8, show_spinner=False)
def _make_sweep(
    stamps: Stamps, communication: str | None, note: str | None, _runs: list[Run]
) -> tuple[Section, pd.DataFrame]:
    """The section of a sweep, and its `sweep_links`, kept as long as the runs' files and the rule are the same."""
    stretches = sweep_links(_runs)
    return sweep_section(overlaplab.sweep(_runs), stretches, note), stretches


@st.cache_resource(max_entries=32, show_spinner=False)
def _make_sections(stamps: Stamps, communication: str | None, note: str | None, _runs: list[Run]) -> list[Section]:
    """Step times, and costs against theory where they are known; kept as `_make_sweep`."""
    table = overlaplab.compare(_runs)
    settings = [findings.describe_settings(run.manifest) for run in _runs]
    batches = batches_section(largest_batches(_runs))
    sections = [step_times_section(table, note, settings), batches, costs_section(table, note)]
    return [section for section in sections if section is not None]


def _cache_arguments(good: list[Opened]) -> tuple[Stamps, str | None, str | None, list[Run]]:
    """The arguments of `_make_sweep` and `_make_sections`: what their results are cached by, and the runs."""
    runs = [opened.run for opened in good]
    stamps = tuple((run.path, stamp(Path(run.path))) for run in runs)
    return stamps, runs[0].traces[0].communication, _note(good), runs


def _sweep(good: list[Opened]) -> None:
    """The charts of a sweep over bucket_cap_mb side by side, and what to do."""
    with _say_comparing(len(good)):
        section, stretches = _make_sweep(*_cache_arguments(good))
    first = good[0].run
    strategy = first.manifest.strategy if first.manifest else None
    show_lead(section.lead, findings.sweep_subject(strategy, len(first.traces), len(good), _note(good)))
    *charts, rows = section.blocks
    with st.container(key="side_by_side"):  # one above the other where there is no room, see main.py
        for column, chart in zip(st.columns(2, vertical_alignment="bottom"), charts, strict=True):
            with column:
                show_block(chart)
    row = show_block(rows, choose=True)
    if row is not None:
        _go_to(good, stretches[stretches["bucket_cap_mb"].eq(row["bucket_cap_mb"])])
    show_advice(section.advice)


def _go_to(good: list[Opened], rows: pd.DataFrame) -> None:
    """Turn to the timeline at the step that stands for a cap."""
    if rows.empty:
        st.text("This cap's step has no communication to show.")
        return
    first = dict(rows.iloc[0])
    opened = next(opened for opened in good if opened.run.path == first["path"])
    step = rows_of(opened.summary, first).iloc[0]
    span = step["start_ns"], step["start_ns"] + step["span_ns"]
    show_spot(opened, *span, first["rank"], marked=False, room=0, least_ns=0)


def _runs(good: list[Opened]) -> None:
    """Runs that differ in anything: step times, and costs against theory."""
    with _say_comparing(len(good)):
        times, *costs = _make_sections(*_cache_arguments(good))
    show_lead(times.lead, capitalise(_note(good) or "") or None)
    show_blocks(times.blocks)
    for section in costs:
        show_section(section)
    show_advice([*times.advice, *(line for section in costs for line in section.advice)])


def _say_comparing(runs: int) -> AbstractContextManager[None]:
    """What the page says while it computes something of so many runs."""
    return st.spinner(f"Comparing {count(runs, 'run')}", show_time=True)


def _open_all(names: list[str]) -> dict[str, Opened | OverlaplabError]:
    """The runs by name; while one is read, the page says so."""
    return {name: open_run(st.session_state["folder"], name) for name in names}


def _sort_out(
    by_name: dict[str, Opened | OverlaplabError],
) -> tuple[list[Opened], list[tuple[str, OverlaplabError]]]:
    """Those runs that can be compared, and what is wrong with the others."""
    good: list[Opened] = []
    bad: list[tuple[str, OverlaplabError]] = []
    for name, opened in by_name.items():
        if isinstance(opened, OverlaplabError):
            bad.append((name, opened))
        elif opened.summary.empty:
            bad.append((name, OverlaplabError(opened.verdict)))
        else:
            good.append(opened)
    return good, bad


def _note(runs: list[Opened]) -> str | None:
    return findings.comparison_note([opened.run for opened in runs])


page()
