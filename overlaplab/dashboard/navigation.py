"""The list of pages in the side bar: those that have nothing to show of the chosen run are folded, with a word why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from streamlit.navigation.page import StreamlitPage

from overlaplab.dashboard.data import Opened, is_read, open_run

_VIEWS = Path(__file__).with_name("views")
_TITLES = {
    "summary": "Summary",
    "live": "Live",
    "timeline": "Timeline",
    "buckets": "Buckets",
    "zero3": "ZeRO-3",
    "pipeline": "Pipeline",
    "collectives": "Collectives",
    "what_if": "What if",
    "compare": "Compare",
    "plan": "Plan",
}
WITHOUT_RUN = ("plan",)
"""Pages that need no run."""
OF_WATCHED = ("live", *WITHOUT_RUN)
"""Pages that need no recording."""
_ABOUT = {
    "buckets": ("buckets", "no buckets"),
    "zero3": ("schedule", "gathers nothing"),
    "pipeline": ("pipelined", "no stages"),
    "collectives": ("collectives", "none here"),
}
"""What a page is about, a table of the run, and why it is folded where that is empty."""


Folded: TypeAlias = Mapping[str, str]
"""The pages that are folded, and why."""


def all_pages() -> dict[str, StreamlitPage]:
    """The pages by their place in the address, in the order in which they are listed."""
    return {
        word: st.Page(_VIEWS / f"{word}.py", title=title, url_path=word, default=word == "summary")
        for word, title in _TITLES.items()
    }


def list_pages(
    place: DeltaGenerator, pages: Mapping[str, StreamlitPage], shown: StreamlitPage, folded: Folded | None = None
) -> Folded:
    """Draw a link to each page, in `place`, and return the pages that are folded.

    Without `folded`, a page is folded if a table that is there already is empty; once the page stands, with those that
    were `folded` before, tables are computed for it, and nothing is drawn if the same pages are folded.
    """
    without = _folded_pages(only_computed=folded is None)
    if without == folded:
        return without
    with place.container(key="pages" if folded is None else "pages_told", gap="xxsmall"):
        for word, page in pages.items():
            if word not in without:
                st.page_link(page)
        if without:
            with st.expander("Not in this run", expanded=shown.url_path in without):
                for word, why in without.items():
                    st.page_link(pages[word], label=f"{_TITLES[word]}: {why}")
    return without


def _folded_pages(*, only_computed: bool) -> Folded:
    """The pages that have nothing to show of the chosen run; with `only_computed` those whose tables are there already,
    so that nothing is read above the page that says so.
    """
    without: dict[str, str] = {}
    root, name = st.session_state.get("folder"), st.session_state.get("run")
    if name is None:
        return without
    if name not in st.session_state["names"]:
        return dict.fromkeys((word for word in _TITLES if word not in OF_WATCHED), "not recorded")
    if st.session_state.get("watched") is None:
        without["live"] = "not watched"
    opened = open_run(root, name) if is_read(root, name) or not only_computed else None
    if isinstance(opened, Opened):
        for word, (table, why) in _ABOUT.items():
            if (table in vars(opened) or not only_computed) and getattr(opened, table).empty:
                without[word] = why
        if ("not_predicted" in vars(opened) or not only_computed) and opened.not_predicted is not None:
            without["what_if"] = "cannot be played"
    if len(st.session_state["names"]) == 1:
        without["compare"] = "one run only"
    return without
