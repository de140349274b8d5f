"""The Live page: a training that is watched, over all its steps, as it goes on."""

from __future__ import annotations

import time
from pathlib import Path

import streamlit as st

from overlaplab.charts.watched import RECORDING
from overlaplab.dashboard import links
from overlaplab.dashboard.folder import recorded_name, run_word
from overlaplab.dashboard.head import error_line, first_sentences, small_head
from overlaplab.dashboard.live import Live, look_s, read_live
from overlaplab.dashboard.widgets import show_block, show_choice
from overlaplab.errors import OverlaplabError
from overlaplab.sections.blocks import Chart
from overlaplab.words import ago, sentence, shorten

REFRESH_S = 2.0
_MARKED = "watched_times"
"""The key of the chart that has the recordings' marks."""
_IS_NEW = "watched_mark_is_new"
"""Whether the chosen mark has not opened its recording yet: a mark stays chosen while the page follows the training."""
_OPENING = "watched_opening"
"""The recording that is being opened: where the next look comes first, it opens it once more."""


def page() -> None:
    if st.session_state.get("links_turned", True):  # the reader comes from another page
        st.session_state.pop(_OPENING, None)
    root, name = st.session_state.get("folder"), st.session_state.get("watched")
    if root is None or name is None:
        small_head("Live")
        st.info(
            "This training was not watched. `overlaplab.watch`, or a Recorder with `watch=True`, measures every step of"
            " one without a profiler; its folder then appears in the list on the left."
        )
        return
    _live(root, name)


@st.fragment(run_every=look_s(REFRESH_S))
def _live(root: Path, name: str) -> None:
    """The page's contents, which are drawn anew while the training goes on."""
    head = small_head("Live")
    live = read_live(root, name)
    if isinstance(live, OverlaplabError):
        st.error("What was watched here cannot be read.")
        error_line(live)
        return
    seconds = max(time.time() - live.written_ns / 1e9, 0)
    head.text(f"{run_word(name)} · {live.about} · updated {ago(seconds)}", width="stretch")
    with st.container(key="screen", gap="xsmall"):
        first_sentences(live.sentences[0], live.sentences[1:])
        for block in live.section.blocks:
            if isinstance(block, Chart) and block.key == _MARKED and len(live.recordings):
                show_choice(block, _keep_mark, run_word(name))
                _recordings(live, name)
            else:
                show_block(block, run=run_word(name))
        for note in live.notes:
            st.text(f"Note: {sentence(shorten(note, 300))}")


def _keep_mark() -> None:
    """Note that a mark was chosen, which `_recordings` then opens: a callback may not turn to another page."""
    st.session_state[_IS_NEW] = True
    st.session_state.pop(_OPENING, None)


def _recordings(live: Live, name: str) -> None:
    """A button per recording that the watch has started, which opens it, as its mark in the chart does."""
    state = st.session_state.get(_MARKED, {})
    marks = state.get("selection", {}).get(RECORDING, ()) if st.session_state.pop(_IS_NEW, False) else ()
    chosen = {int(mark["step"]) for mark in marks}
    rows = st.container(key="recordings", horizontal=True, gap="small", vertical_alignment="center")
    rows.text("◆ recorded by itself:", width="content")
    for row in live.recordings.to_dict("records"):
        run = recorded_name(row["path"], name, st.session_state["entries"])
        label = f"step {row['step']:,}"
        if run is None:
            rows.text(f"{label} ({shorten(row['path'], 60)}, not in the opened folder)", width="content")
            continue
        rows.button(
            f"{label} ›",
            key=f"recording_{row['step']}",
            type="tertiary",
            help="Open this recording.",
            on_click=st.session_state.update,
            args=({_OPENING: run},),
        )
        if row["step"] in chosen or run == st.session_state.get(_OPENING):
            st.session_state[_OPENING] = run
            links.turn_to(links.SUMMARY, {links.RUN: run})


page()
