"""The ZeRO-3 page: when units were gathered, waited for, used and freed, and what prefetching hides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from overlaplab import charts, findings
from overlaplab.analyses import gathered_bytes, schedule_steps
from overlaplab.charts.theme import LINE
from overlaplab.columns import columns
from overlaplab.dashboard.data import Opened, open_run
from overlaplab.dashboard.folder import HERE, traits_told
from overlaplab.dashboard.spots import show_in_step
from overlaplab.dashboard.widgets import (
    dark,
    error_line,
    lead,
    nothing_to_show,
    one_window,
    page_head,
    run_or_stop,
    show_chart,
    show_table,
    show_warnings,
    what_to_do,
)
from overlaplab.errors import OverlaplabError
from overlaplab.formats import as_held
from overlaplab.manifest import Manifest
from overlaplab.words import shorten

_COLUMNS = columns(
    "schedule",
    *("unit", "phase", "microbatch", "gather_launch_ns", "gather_start_ns", "gather_end_ns"),
    *("first_use_ns", "wait_ns", "free_ns", "bytes"),
)
_HALF = 70  # characters of a subtitle's line in one of two columns


def page() -> None:
    """Draw the page."""
    page_head(
        "ZeRO-3",
        "When each unit's parameters were gathered, waited for, used and freed, and how much was held at a time.",
    )
    opened = run_or_stop()
    if opened.schedule.empty:
        nothing_to_show(
            opened.run,
            "This run gathers no parameters. The page shows runs of `overlaplab record --strategy zero3` or"
            " `torch-fsdp2`, and traces of others that name FSDP2's ranges (`FSDP::all_gather`).",
        )
        show_warnings(opened)
        return
    table = one_window(opened.schedule)
    other = _pick_other(opened)
    lead(findings.gathers_lead(table, findings.window_name(table)), findings.note(opened.run.manifest))
    show_warnings(opened)
    if other is None:
        _one(opened, table)
    else:
        _two((opened, table), (other, _same_window(other.schedule, table)))
    st.subheader("Per gather, times from the step's start", anchor=False)
    rows = table.assign(unit=[shorten(str(unit), 80) for unit in table["unit"]])
    st.text("Choose a row to see it on the timeline.")
    chosen = show_table(rows, _COLUMNS, "gathers_table", select=True)
    if chosen is not None:
        row = table.iloc[[chosen]].to_dict("records")[0]
        show_in_step(opened, row, row["gather_start_ns"], row["gather_end_ns"])
    what_to_do([findings.gathers_advice(table, opened.run.manifest, _step_ns(opened, table))])


def _step_ns(opened: Opened, table: pd.DataFrame) -> int | None:
    """How long the table's step took on its rank."""
    found = _same_rows(opened.summary, table)
    return None if found.empty else int(found["span_ns"].iloc[0])


def _pick_other(opened: Opened) -> Opened | None:
    """The run to show beside this one: runs whose manifests say that they gather are offered first."""
    root = st.session_state["folder"]
    names = [name for name in st.session_state["names"] if name != opened.name]
    gathering = [name for name in names if (traits := traits_told(root, name)) and traits.gathers == "units"]
    name = st.sidebar.selectbox(
        "Compare with",
        [None, *gathering, *(name for name in names if name not in gathering)],
        format_func=lambda name: "nothing" if name is None else "(this folder)" if name == HERE else shorten(name, 60),
        key="against",
    )
    if name is None:
        return None
    found = open_run(root, name)
    if isinstance(found, OverlaplabError):
        st.warning("The run to compare with cannot be read. Choose another one on the left.")
        error_line(found)
        return None
    if found.schedule.empty:
        st.info("The run to compare with gathers no parameters. Choose another one on the left.")
        return None
    return found


def _same_window(table: pd.DataFrame, like: pd.DataFrame) -> pd.DataFrame:
    """The rows of the other run's same rank and step, or of its first rank and last step."""
    for column, place in (("rank", 0), ("step", -1)):
        known = sorted(int(value) for value in table[column].dropna().unique())
        if known:
            wanted = like[column].iloc[0]
            table = table[table[column] == (wanted if wanted in known else known[place])]
    return table


def _one(opened: Opened, table: pd.DataFrame) -> None:
    """The curve and the schedule over the page's width."""
    window = charts.schedule_window(table, _scatters(opened, table))
    _curve(opened, table, window, 0, LINE, "curve_chart")
    _schedule(opened, table, window, LINE, "schedule_chart")


def _two(first: tuple[Opened, pd.DataFrame], second: tuple[Opened, pd.DataFrame]) -> None:
    """Two runs side by side, on the same scales, and what the deeper prefetch hides."""
    pair = (first, second)
    with st.container(key="gain"):
        st.text(findings.prefetch_gain(*(_cost(opened) for opened, _ in pair)))
    windows = [charts.schedule_window(table, _scatters(opened, table)) for opened, table in pair]
    window = (min(low for low, _ in windows), max(high for _, high in windows))
    top = int(max(gathered_bytes(table)["bytes"].fillna(0).max() for _, table in pair))
    for column, (opened, table), key in _columns(pair):
        with column.container(gap=None):
            with st.container(key=f"{key}_run"):
                st.text(f"{_named(opened)}, {findings.window_name(table)}".rstrip(", "))
            st.text(findings.note(opened.run.manifest) or "")
    for column, (opened, table), key in _columns(pair):
        with column:
            _curve(opened, table, window, top, _HALF, f"{key}_curve_chart")
    for column, (opened, table), key in _columns(pair):
        with column:
            _schedule(opened, table, window, _HALF, f"{key}_schedule_chart")


def _columns(pair: tuple[tuple[Opened, pd.DataFrame], ...]) -> Iterator[tuple[DeltaGenerator, Any, str]]:
    """A row of two columns, so that what stands in it begins at one height."""
    return zip(st.columns(2, gap="medium"), pair, ("first", "second"), strict=True)


def _curve(opened: Opened, table: pd.DataFrame, window: tuple[int, int], top: int, line: int, key: str) -> None:
    held = gathered_bytes(table)
    chart = charts.gathered(
        held,
        window_ns=window,
        top_bytes=top,
        dark=dark(),
        note=_note(opened, line),
        line=line,
    )
    show_chart(chart, key, as_held(held, "gathered_bytes"))


def _schedule(opened: Opened, table: pd.DataFrame, window: tuple[int, int], line: int, key: str) -> None:
    manifest = opened.run.manifest
    chart = charts.schedule(
        table,
        _scatters(opened, table),
        prefetch=manifest.prefetch if manifest else None,
        window_ns=window,
        dark=dark(),
        note=_note(opened, line),
        line=line,
    )
    show_chart(chart, key, as_held(table, "schedule"))


def _note(opened: Opened, line: int) -> str | None:
    """The line about the run, or what is most needed of it where lines are short."""
    return findings.note(opened.run.manifest) if line == LINE else findings.link_note(opened.run.manifest)


def _scatters(opened: Opened, table: pd.DataFrame) -> pd.DataFrame:
    """The reduce-scatters of the table's rank and step."""
    return _same_rows(opened.scatters, table)


def _same_rows(found: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the table's one rank and step."""
    for column in ("rank", "step"):
        value = table[column].iloc[0]
        found = found[found[column].isna() if pd.isna(value) else (found[column] == value).fillna(False)]
    return found


def _cost(opened: Opened) -> findings.GatherCost:
    """What gathering costs this run per step, in the median over all ranks' steps."""
    waits = schedule_steps(opened.schedule)["wait_ns"]
    manifest = opened.run.manifest
    return findings.GatherCost(
        name=_named(opened),
        strategy=manifest.strategy if manifest else None,
        prefetch=manifest.prefetch if manifest else None,
        wait_ns=float(waits.median()) if waits.notna().any() else None,
        step_ns=float(opened.summary["span_ns"].median()),
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


def _named(opened: Opened) -> str:
    return "(this folder)" if opened.name == HERE else shorten(opened.name, 40)


page()
