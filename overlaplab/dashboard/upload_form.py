"""The form that takes traces from the user's own computer."""

from __future__ import annotations

import streamlit as st

from overlaplab.dashboard import links
from overlaplab.dashboard.data import close_upload, open_run, uploads
from overlaplab.dashboard.leaving import clear_when_left
from overlaplab.dashboard.uploads import MOST_FILES, MOST_MB, PREFIX
from overlaplab.errors import OverlaplabError
from overlaplab.words import shorten


def upload_form() -> None:
    """Draw the form; what it takes becomes the chosen run. Stands before the run's control in the script."""
    turn = st.session_state.setdefault("upload_turn", 0)
    key = f"upload_{turn}"
    with st.form("upload_form", border=False):
        st.file_uploader(
            f"Traces of one run, a file per rank, and its run.json: up to {MOST_FILES} files, {MOST_MB} MB together",
            type=["json", "gz"],
            accept_multiple_files=True,
            max_upload_size=MOST_MB,
            key=key,
        )
        sent = st.form_submit_button("Open", width="stretch")
    if sent:
        with st.spinner("Checking the files"):
            st.session_state["upload_problem"] = problem = _keep_files(key)
        if problem is None:
            st.rerun()
    if st.session_state.get("upload_problem"):
        st.code(st.session_state["upload_problem"], language=None, wrap_lines=True)
    st.caption("They are deleted when you close them or leave the app.")


def close_button(name: str) -> None:
    """A button that deletes the chosen run, where it was uploaded."""
    if name.startswith(PREFIX):
        st.button("Close and delete this upload", on_click=_close, args=(name,), key="close_upload")


def _close(name: str) -> None:
    links.control_used()
    if name in uploads().names:
        close_upload(name)


def _keep_files(key: str) -> str | None:
    """Keep the form's files as a run and choose it; what is wrong with them, on one line, otherwise."""
    files = st.session_state.get(key)
    if not files:
        return "Choose the traces first."
    try:
        name = uploads().add(files)
    except OverlaplabError as error:
        return shorten(uploads().without_folder(str(error)), 400)
    opened = open_run(None, name)
    if isinstance(opened, OverlaplabError):
        uploads().remove(name)
        return shorten(str(opened), 400)
    clear_when_left(uploads())
    st.session_state["upload_turn"] += 1  # a new form, so that Streamlit lets go of the files
    links.control_used()
    links.settle(links.RUN, name, plain=False)
    st.session_state.pop("run_picker", None)
    return None
