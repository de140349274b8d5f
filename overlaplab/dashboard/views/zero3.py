"""The ZeRO-3 page: when units were gathered, waited for, used and freed, and what prefetching hides."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from overlaplab import charts, findings
from overlaplab.analyses import gathered_bytes, rows_of, schedule_steps
from overlaplab.analyses.worst import drop_damaged
from overlaplab.charts.sharding.gather_waits import CELL
from overlaplab.dashboard import links
from overlaplab.dashboard.data import Opened, open_run, run_manifest
from overlaplab.dashboard.folder import run_word
from overlaplab.dashboard.head import error_line, open_page
from overlaplab.dashboard.pickers import pick_one, shown_diagnosis
from overlaplab.dashboard.spots import show_in_step
from overlaplab.dashboard.widgets import (
    show_advice,
    show_block,
    show_blocks,
    show_choice,
    show_lead,
    show_nothing,
    show_warnings,
)
from overlaplab.errors import OverlaplabError
from overlaplab.manifest import Manifest, strategy_traits
from overlaplab.sections import run_tables
from overlaplab.sections.blocks import Section
from overlaplab.sections.run import gathers_limit, gathers_section, strips

_NOTHING = ""  # no run has this name, and Streamlit takes None for a box in which nothing was chosen
_HALF = 70  # characters of a subtitle's line in one of two columns


def page() -> None:
    head = open_page("ZeRO-3")
    opened = head.opened
    with _say_following(opened):
        nothing = opened.schedule.empty
    if nothing:
        head.show(shown_diagnosis(opened))
        show_nothing(
            opened,
            "This run gathers no parameters. The page shows runs of `overlaplab record --strategy zero3` or"
            " `torch-fsdp2`, and traces of others that name FSDP2's ranges (`FSDP::all_gather`).",
        )
        return
    table = run_tables.one_window(opened.schedule, opened.window, pick=pick_one)
    other = _pick_other(opened)
    window = run_tables.table_window(table)
    with _say_following(opened):
        diagnosis = opened.find_diagnosis(*window)
        section = opened.get_or_make(("gathers", *window), lambda: _section(opened, table))
    head.show(diagnosis)
    show_lead(section.lead)
    show_warnings(opened)
    *drawn, rows = section.blocks
    if other is None:
        show_blocks(drawn, run=opened.title)
    else:
        _two((opened, table), (other, run_tables.one_window(other.schedule, {"rank": window[0], "step": window[1]})))
    note = " ".join(filter(None, (findings.CHOOSE_A_CELL, findings.describe_prediction(opened.run.manifest))))
    with _say_following(opened):
        below = opened.get_or_make("strips", lambda: strips(opened, note))
    for strip in below:
        show_choice(strip, partial(_choose_cell, strip.key), opened.title)
    row = show_block(rows, choose=True)
    if row is not None:
        show_in_step(opened, row, row["gather_start_ns"], row["gather_end_ns"])
    show_advice(section.advice, diagnosis)


def _say_following(opened: Opened) -> AbstractContextManager[None]:
    """What the page says while it computes something of the run."""
    events = sum(len(trace.events) for trace in opened.run.traces)
    return st.spinner(f"Following each unit from its gather to its free, among {events:,} events", show_time=True)


def _choose_cell(strip: str) -> None:
    """The rank and the step of the cell that was clicked; a second click lets go of it, and changes nothing."""
    for cell in st.session_state[strip]["selection"].get(CELL, ()):
        links.choose(links.RANK, "one_rank_picker", int(cell["rank"]))
        links.choose(links.STEP, "one_step_picker", int(cell["step"]))


def _section(opened: Opened, table: pd.DataFrame, **chosen: Any) -> Section:
    """The section about these rows of the run's schedule; where its charts are narrow, with a shorter note."""
    note = findings.link_note(opened.manifest) if chosen else findings.note(opened.manifest)
    diagnosis = opened.find_diagnosis(*run_tables.table_window(table))
    section = gathers_section(opened, table, diagnosis, note, **chosen)
    assert section is not None, "a rank and step are chosen among those that gather"
    return section


def _pick_other(opened: Opened) -> Opened | None:
    """The run to show beside this one: runs whose manifests say that they gather are offered first."""
    root = st.session_state["folder"]
    names = [name for name in st.session_state["names"] if name != opened.name]
    gathering = [
        name for name in names if (traits := strategy_traits(run_manifest(name))) and traits.gathers == "units"
    ]
    options = [_NOTHING, *gathering, *(name for name in names if name not in gathering)]
    links.start(links.AGAINST, "against", links.choice(links.AGAINST), _NOTHING, options)
    name = st.sidebar.selectbox(
        "Compare with",
        options,
        format_func=lambda name: "nothing" if name == _NOTHING else run_word(name),
        key="against",
        on_change=links.control_used,
    )
    links.settle(links.AGAINST, name or None, plain=False)
    if name == _NOTHING:
        return None
    other = open_run(root, name)
    if isinstance(other, OverlaplabError):
        st.warning("The run to compare with cannot be read. Choose another one on the left.")
        error_line(other)
        return None
    if other.schedule.empty:
        st.info("The run to compare with gathers no parameters. Choose another one on the left.")
        return None
    return other


def _two(first: tuple[Opened, pd.DataFrame], second: tuple[Opened, pd.DataFrame]) -> None:
    """Two runs side by side, on the same scales, and what the deeper prefetch hides."""
    pair = (first, second)
    with st.container(key="gain"):
        st.text(findings.prefetch_gain(*(_cost(opened) for opened, _ in pair)))
    windows = [charts.schedule_window(table, rows_of(opened.scatters, dict(table.iloc[0]))) for opened, table in pair]
    window = (min(low for low, _ in windows), max(high for _, high in windows))
    tops = [gathered_bytes(table)["bytes"].fillna(0).max() for _, table in pair]
    limits = [gathers_limit(table, opened.run.manifest) for opened, table in pair]
    top = int(max(*tops, *(limit.bytes for limit in limits if limit is not None)))
    keys = ("first_", "second_")
    for column, (opened, table), key in zip(st.columns(2, gap="medium"), pair, keys, strict=True):
        with column.container(gap=None):
            with st.container(key=f"{key}run"):
                st.text(f"{opened.title}, {findings.window_name(table)}".rstrip(", "))
            st.text(findings.note(opened.run.manifest) or "")
    chosen: dict[str, Any] = {"window_ns": window, "top_bytes": top, "line": _HALF}
    with _say_following(second[0]):
        blocks = [_section(*rows, **chosen, prefix=key).blocks[:2] for rows, key in zip(pair, keys, strict=True)]
    for drawn in zip(*blocks, strict=True):  # the schedules, then the curves
        for column, block, (opened, _) in zip(st.columns(2, gap="medium"), drawn, pair, strict=True):
            with column:
                show_block(block, run=opened.title)


def _cost(opened: Opened) -> findings.GatherCost:
    """What gathering costs this run per step, in the median over all ranks' steps."""
    waits = schedule_steps(opened.schedule)["wait_ns"]
    manifest = opened.run.manifest
    return findings.GatherCost(
        name=opened.title,
        strategy=manifest.strategy if manifest else None,
        prefetch=manifest.prefetch if manifest else None,
        wait_ns=float(waits.median()) if waits.notna().any() else None,
        step_ns=float(drop_damaged(opened.summary)["span_ns"].median()),
        setting=_setting(manifest) if manifest else None,
    )


def _setting(manifest: Manifest) -> tuple[object, ...] | None:
    """What costs of gathering depend on beside the prefetch; None where the manifest does not tell the model."""
    if manifest.model is None and not manifest.parameters:
        return None
    model = manifest.model
    return (
        model and (model.layers, model.parameters, model.dtype),
        sum(parameter.bytes for parameter in manifest.parameters),
        manifest.world_size,
        manifest.link,
        manifest.accumulate or 1,
        manifest.device,
    )


page()
