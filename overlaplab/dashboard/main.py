"""The app: one folder's runs on the left, and a page each for Summary, Timeline, Buckets and the rest.

Run by Streamlit (`overlaplab app DIR`, or `streamlit run app.py -- DIR`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import streamlit as st
from streamlit import net_util

from overlaplab.dashboard import links
from overlaplab.dashboard.data import uploads
from overlaplab.dashboard.folder import HERE, Entry, find_runs
from overlaplab.dashboard.heap import rest_modules
from overlaplab.dashboard.pickers import pick_communication
from overlaplab.dashboard.upload_form import close_button, upload_form
from overlaplab.dashboard.widgets import opened_folder
from overlaplab.words import shorten

__all__ = ["main"]

_VIEWS = Path(__file__).with_name("views")
_PAGES = (
    ("summary", "Summary"),
    ("timeline", "Timeline"),
    ("buckets", "Buckets"),
    ("zero3", "ZeRO-3"),
    ("collectives", "Collectives"),
    ("compare", "Compare"),
)

_STYLE = """
.block-container {padding: 2.5rem 2.5rem 2rem;}
.st-key-lead [data-testid="stText"], .st-key-gain [data-testid="stText"] {font-size: 1.15rem; line-height: 1.5;}
.st-key-lead .st-key-note [data-testid="stText"] {font-size: 1rem; opacity: 0.8;}
.st-key-late [data-testid="stText"] {font-size: 0.95rem;}
.stMain h2 {font-size: 1.5rem; padding: 1rem 0 0.25rem;}
.stMain h3 {font-size: 1.1rem; padding: 0.5rem 0 0.35rem;}
[class*="st-key-remarks_"] [data-testid="stText"] {font-size: 0.9rem; opacity: 0.8;}
[class*="st-key-downloads_"] {margin-top: -1.75rem;}
[class*="st-key-downloads_"] p {font-size: 0.85rem; opacity: 0.8;}
.st-key-first_run [data-testid="stText"], .st-key-second_run [data-testid="stText"] {font-weight: 600;}
"""


def main() -> None:
    """Draw the app; called once per rerun."""
    # When a page of another origin knocks, Streamlit would ask an outside service for this machine's address.
    net_util._external_ip = "127.0.0.1"
    rest_modules()
    st.set_page_config(page_title="overlaplab", page_icon="⏱️", layout="wide")
    st.html(f"<style>{_STYLE}</style>")
    pages = [
        st.Page(_VIEWS / f"{word}.py", title=title, url_path=word, default=word == "summary") for word, title in _PAGES
    ]
    page = st.navigation(pages)
    links.begin()
    if _pick_run():
        page.run()
    links.write()


def _pick_run() -> bool:
    """Let the user choose a run of the opened folder or bring one along; says what to do where there is none."""
    folder = opened_folder()
    there = folder is not None and folder.is_dir()
    entries = find_runs(folder) if folder is not None and there else []
    if folder is not None and there:
        st.session_state["watch_rests"] = True
        _watch(folder, entries)
    names = [entry.name for entry in entries] + uploads().names
    if not names:
        problem = "There are no runs in this folder yet" if there else "There is no such folder"
        _welcome("Open a folder of runs" if folder is None else problem, folder)
        upload_form()
        return False
    place = st.sidebar.container()
    with st.sidebar.expander("Open traces from this computer"):
        upload_form()
    links.start(links.RUN, "run_picker", links.kept(links.RUN), names[0], names)
    with place:
        chosen = st.selectbox("Run", names, format_func=_run_word, key="run_picker", on_change=links.control_used)
        close_button(chosen)
    links.settle(links.RUN, chosen, plain=False)
    pick_communication()
    st.session_state["folder"], st.session_state["run"], st.session_state["names"] = folder, chosen, names
    return True


def _run_word(name: str) -> str:
    return "(this folder)" if name == HERE else shorten(name.removeprefix("/"), 60)


def _watch_s() -> float | None:
    """Seconds between looks into the opened folder: OVERLAPLAB_WATCH_S, 5 without it; None for never."""
    setting = os.environ.get("OVERLAPLAB_WATCH_S", "")
    seconds = float(setting) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", setting) else 5.0
    return seconds or None


@st.fragment(run_every=_watch_s())
def _watch(folder: Path, seen: list[Entry]) -> None:
    """Look for runs that came, went or were finished, and run the app anew only then."""
    if st.session_state.pop("watch_rests", False):
        return  # it runs as a part of the app, which has just looked
    if find_runs(folder) != seen:
        st.rerun()


def _welcome(problem: str, folder: Path | None) -> None:
    """The first screen where there is nothing to show."""
    st.title("overlaplab")
    st.subheader(problem)
    if folder is not None:
        st.code(str(folder), language=None)
    st.write("Record a run, then open the folder that holds it:")
    st.code("overlaplab record --strategy bucketed --out runs/bucketed\noverlaplab app runs", language="bash")
    st.write(
        "Or open a folder of torch.profiler traces (`*.json`, `*.json.gz`), one folder per run, one file per rank:"
    )
    st.code("overlaplab app path/to/traces", language="bash")


if __name__ == "__main__":
    main()
