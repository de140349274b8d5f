"""Why communication was exposed, as tables for a terminal of 80 columns, and as a document."""

from __future__ import annotations

from typing import Any

import pandas as pd
from rich.table import Table

from overlaplab.analyses import exposed, idle, rows_of, summary, worst_step
from overlaplab.analyses.exposed import Cause
from overlaplab.analyses.settings import is_emulated
from overlaplab.columns import columns
from overlaplab.events import Run
from overlaplab.findings import (
    CAUSE_MEANINGS,
    cause_label,
    collective_label,
    exposed_advice,
    exposed_heading,
    run_warnings,
    sees_only_ends,
    verdict,
)
from overlaplab.formats import text
from overlaplab.report.console import add_names, add_numbers, add_row, blank_table
from overlaplab.report.records import plain_value, records
from overlaplab.selection import EVERYTHING, Selection

__all__ = ["causes_table", "exposed_document", "spots_table"]

_MOST = 20
_IDLE = ("idle_ns", "host_wait_ns", "kernel_wait_ns", "other_ns")


def causes_table(table: pd.DataFrame, causes: pd.DataFrame) -> Table:
    """`exposed`'s rows by cause, in ms per rank and step of `summary`'s rows, the dearest first."""
    shown = blank_table("Exposed communication by cause, the mean over all ranks and steps")
    add_names(shown, *columns("exposed", "cause"), no_wrap=True)
    add_numbers(shown, *columns("exposed", "exposed_ns", "of_exposed", "of_step"))
    add_names(shown, *columns("exposed", "meaning"), overflow="fold")
    sums = causes.groupby("cause")["exposed_ns"].sum().sort_values(ascending=False, kind="stable")
    whole, span = int(sums.sum()), int(table["span_ns"].sum())
    for cause, took in sums.items():
        numbers = (text(took / len(table), "ns", 3), text(took / whole, "ratio", 1), text(took / span, "ratio", 1))
        add_row(shown, (str(cause), *numbers, CAUSE_MEANINGS[Cause(str(cause))]))
    return shown


def spots_table(rows: pd.DataFrame, window: dict[str, Any]) -> Table:
    """`exposed`'s rows of one rank and step, a row of `summary`: the dearest, and when."""
    whole = int(rows["exposed_ns"].sum())
    shown = blank_table(exposed_heading(rows, window))
    add_numbers(shown, *columns("exposed", "exposed_ns", "of_exposed"))
    add_names(shown, *columns("exposed", "cause"), no_wrap=True)
    add_names(shown, *columns("exposed", "moved"), overflow="fold")
    add_numbers(shown, *columns("exposed", "start_ns"))
    shown.caption = "from: from the run's start"
    if len(rows) > _MOST:
        shown.caption += f"; the first {_MOST} of {len(rows)} (--json tells all)"
    for row in rows.head(_MOST).to_dict("records"):
        numbers = (text(row["exposed_ns"], "ns", 3), text(row["exposed_ns"] / whole, "ratio"))
        add_row(shown, (*numbers, cause_label(row), collective_label(row), text(row["start_ns"], "ns", 3)))
    return shown


def exposed_document(run: Run, selection: Selection = EVERYTHING) -> dict[str, Any]:
    """Per rank and step each cause and collective, and why the rank was idle; in words, and what to do about it."""
    table, causes, idled = summary(run, selection), exposed(run, selection), idle(run, selection)
    found: dict[int | None, list[dict[str, Any]]] = {}
    for window, idle_row in zip(records(table), records(idled), strict=True):
        keys = ("step", "start_ns", "span_ns", "exposed_comm_ns", "exposed_wait_ns", "exposed_transfer_ns")
        own = rows_of(causes, {name: pd.NA if window[name] is None else window[name] for name in ("rank", "step")})
        step = {name: window[name] for name in keys} | {"idle": {name: idle_row[name] for name in _IDLE}}
        found.setdefault(window["rank"], []).append(step | {"causes": records(own.drop(columns=["rank", "step"]))})
    worst = None if table.empty else worst_step(table)
    return {
        "verdict": verdict(table, run.manifest, causes, idled, only_ends=sees_only_ends(run)),
        "advice": exposed_advice(table, causes, idled),
        "worst": None if worst is None else {name: plain_value(worst[name]) for name in ("rank", "step")},
        "causes": {cause.value: meaning for cause, meaning in CAUSE_MEANINGS.items()},
        "ranks": [{"rank": rank, "steps": steps_out} for rank, steps_out in found.items()],
        "emulated": is_emulated(run),
        "warnings": list(run_warnings(run)),
    }
