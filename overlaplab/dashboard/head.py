"""The head of every page about one run: its name, what was recorded, the rank and the step, the verdict, what to try.

The verdict and the advice are those of the Summary, from the same diagnosis, and so in the same words and digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import streamlit as st
from msgspec import Struct
from streamlit.delta_generator import DeltaGenerator

from overlaplab import findings
from overlaplab.dashboard import links
from overlaplab.dashboard.data import Opened, open_run
from overlaplab.dashboard.folder import run_title
from overlaplab.errors import OverlaplabError
from overlaplab.findings import Diagnosis
from overlaplab.words import shorten


class PageHead(Struct, frozen=True, kw_only=True):
    """A page's head, which is completed once the page's controls have said which rank and step are shown."""

    opened: Opened
    line: DeltaGenerator
    """The line of the page's title."""
    below: DeltaGenerator

    @contextmanager
    def finding_why(self) -> Iterator[None]:
        """Say, where the verdict is going to be, that it is looked for, if it is not known yet."""
        if "diagnosis" in vars(self.opened):
            yield
            return
        events = sum(len(trace.events) for trace in self.opened.run.traces)
        words = f"Finding why communication was exposed, among {events:,} events"
        with self.below, st.spinner(words, show_time=True):
            yield

    def show(self, diagnosis: Diagnosis | None, lead: str = "") -> None:
        """Say what was recorded, of which rank and step the page's figures are, the verdict, and what to try.

        `lead` goes before verdict and advice, where the page shows other settings, too: `As recorded: `.
        """
        self._describe(diagnosis)
        if diagnosis is None:
            return
        with self.below.container(key="verdict", gap="xxsmall"):
            st.text(lead + diagnosis.headline)
            with st.container(key="advice_line", horizontal=True, gap="small"):
                st.text(lead + diagnosis.advice, width="stretch")
                st.page_link(links.SUMMARY, label="Summary ›")

    def show_whole(self, diagnosis: Diagnosis) -> None:
        """The same as the Summary's first screen has it: large, with what is said after the advice."""
        self._describe(diagnosis)
        with self.below:
            first_sentences(diagnosis.headline, (diagnosis.advice, *diagnosis.remarks))

    def _describe(self, diagnosis: Diagnosis | None) -> None:
        opened = self.opened
        about = findings.about(opened.manifest, len(opened.run.traces))
        place = None if diagnosis is None else findings.place_name(diagnosis)
        self.line.text(" · ".join(filter(None, (about, place))), width="stretch")


def open_page(title: str) -> PageHead:
    """Begin a page whose every part needs the run's diagnosis; see `begin_page`."""
    head = begin_page(title)
    with head.finding_why():
        _ = head.opened.diagnosis
    return head


def begin_page(title: str) -> PageHead:
    """Begin a page about the chosen run with its title and the run's name, and read the run.

    Where it cannot be read, its one-line error and the end of the page.
    """
    root, name = st.session_state.get("folder"), st.session_state.get("run")
    if name is None:
        st.stop()
    line = small_head(title)
    line.container(key="head_run", width="content").text(run_title(root, name))
    below = st.container(key="head_below")
    opened = open_run(root, name)
    if isinstance(opened, OverlaplabError):
        st.error("This run cannot be read. Choose another one on the left; the others are not affected.")
        error_line(opened)
        links.write()  # nothing can be written after a stop
        st.stop()
    return PageHead(opened=opened, line=line, below=below)


def page_head(title: str, shows: str) -> None:
    """The head of a page that is not about one run: its title, and what it shows in one sentence of the program's."""
    small_head(title).text(shows, width="stretch")


def small_head(title: str) -> DeltaGenerator:
    """A page's title, small; what it is about is written beside it."""
    head = st.container(key="head", horizontal=True, gap="small", vertical_alignment="center")
    head.title(title, anchor=False, width="content")
    return head


def first_sentences(headline: str, advice: Iterable[str]) -> None:
    """The headline of a page's first screen, and in a box what to try, a line each."""
    with st.container(key="headline"):
        st.text(headline)
    with st.container(key="advice", gap="xxsmall"):
        for line in advice:
            st.text(line)


def error_line(error: OverlaplabError, name: str | None = None) -> None:
    """One error in its own words, as code."""
    text = shorten(str(error), 400)
    st.code(f"{shorten(name)}: {text}" if name else text, language=None, wrap_lines=True)
