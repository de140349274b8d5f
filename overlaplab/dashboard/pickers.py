"""The side bar's controls: which ranks and which step a page shows. What they say stands in the query string."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from overlaplab.dashboard import links
from overlaplab.dashboard.data import Opened
from overlaplab.events import Run
from overlaplab.findings import Diagnosis
from overlaplab.sections.run_tables import one_window, table_window


def pick_ranks(run: Run) -> frozenset[int] | None:
    """Ranks chosen in the side bar; None for all."""
    ranks = [trace.rank for trace in run.traces if trace.rank is not None]
    wanted = links.numbers(links.choice(links.RANKS))
    chosen = links.start(links.RANKS, "ranks_picker", list(wanted) if wanted else None, [], ranks)
    if len(ranks) > 1:
        chosen = st.sidebar.multiselect(
            "Ranks",
            ranks,
            placeholder="All ranks",
            help="None chosen: all of them.",
            key="ranks_picker",
            on_change=links.control_used,
        )
    links.settle(links.RANKS, ",".join(map(str, sorted(chosen))) or None, plain=False)
    return frozenset(chosen) if chosen and len(ranks) > 1 else None


def pick_step(table: pd.DataFrame, unchosen: str = "All steps") -> int | None:
    """A step chosen in the side bar, of those in the table's `step`; None where none is, of which `unchosen` speaks."""
    steps = sorted(int(step) for step in table["step"].dropna().unique())
    wanted = links.number(links.choice(links.STEP))
    chosen = links.start(links.STEP, "step_picker", wanted, None, [None, *steps])
    if len(steps) > 1:
        chosen = st.sidebar.selectbox(
            "Step", steps, index=None, placeholder=unchosen, key="step_picker", on_change=links.control_used
        )
    links.settle(links.STEP, None if chosen is None else str(chosen), plain=False)
    return chosen if len(steps) > 1 else None


class _Rules:
    """What the control for communication may say: nothing, or what `links.communication_rule` accepts."""

    def __contains__(self, text: str) -> bool:
        return not text or links.communication_rule(text) is not None


def pick_communication() -> None:
    """Ask which kernels communicate beside those that are known. `open_run` reads what is kept of it."""
    key = "communication_rule"
    if st.session_state.get(key, "") not in _Rules():
        st.warning("Kernels that communicate: give names, with | between them.")
    linked = links.communication_rule(links.choice(links.COMMUNICATION))
    links.start(links.COMMUNICATION, key, linked, "", _Rules())
    rule = st.sidebar.text_input(
        "Extra communication kernels",
        placeholder="name|name",
        help="Kernels and copies whose names contain one of these count as communication, as by --communication.",
        key=key,
        on_change=links.control_used,
        max_chars=200,
    )
    links.settle(links.COMMUNICATION, rule or None, plain=False)


def shown_diagnosis(opened: Opened) -> Diagnosis | None:
    """The diagnosis of the rank and the step that were chosen, at first of those that speak for the run: the Summary's.

    Pages without these controls have it, too; it is asked for below the page's own.
    """
    if opened.diagnosis is None:
        return None
    chosen = {name: links.number(links.choice(name)) for name in (links.RANK, links.STEP)}
    return opened.find_diagnosis(*table_window(one_window(opened.summary, chosen, opened.window)))


def pick_one(name: str, options: list[int], default: int) -> int:
    """A rank or step chosen in the side bar, for `one_window`."""
    key = f"one_{name}_picker"
    before = st.session_state.get(f"{key}_default", default)
    st.session_state[f"{key}_default"] = default
    if before != default and st.session_state.get(key) == before and links.choice(name) is None:
        del st.session_state[key]  # the default of another run: nobody chose it
    chosen = links.start(name, key, links.number(links.choice(name)), default, options)
    if len(options) > 1:
        chosen = st.sidebar.selectbox(name.capitalize(), options, key=key, on_change=links.control_used)
    links.settle(name, str(chosen), plain=chosen == default)
    return chosen
