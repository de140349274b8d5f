"""The run that a link names: a run below the opened folder, a folder of runs, or nothing that is here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath

import streamlit as st

from overlaplab.dashboard import links
from overlaplab.dashboard.folder import run_word
from overlaplab.words import count, join_names, shorten

_COMPARE = Path(__file__).with_name("views") / "compare.py"
_MOST_NAMED = 6  # runs on one line


def find_meant(text: str, names: Sequence[str], root: Path | None) -> list[str]:
    """The runs that a link means by a text: the run of this name, else those in the folder of this name.

    The text may begin with the opened folder's own name or path (`traces/sweep`), and end with a slash.
    """
    if text in names or not text:
        return [text] if text else []
    parts = PurePath(text).parts
    opened = () if root is None else root.resolve().parts
    for begins in range(len(parts) + 1):
        if begins and opened[-begins:] != parts[:begins]:
            continue
        folder = "/".join(parts[begins:])
        if folder in names:
            return [folder]
        within = [name for name in names if not folder or name.startswith(f"{folder}/")]
        if within:
            return within
    return []


def say_what_is_shown(
    text: str, meant: Sequence[str], shown: str, names: Sequence[str], *, compares: bool = False
) -> None:
    """Where a link's text names no run, say which runs the folder of that name holds, or which there are.

    `compares`: the page compares runs already.
    """
    if len(meant) == 1:
        return
    with st.container(key="link_names", horizontal=True, border=True):
        st.text(describe_link(text, meant, shown, names, compares=compares), width="stretch")
        if meant and not compares:
            st.page_link(_COMPARE, label="Compare them ›")


def describe_link(text: str, meant: Sequence[str], shown: str, names: Sequence[str], *, compares: bool = False) -> str:
    """What a link's text names, and what is shown for it; a text that could be no run's name is not repeated."""
    name = links.run_name(text)
    showing = "The runs chosen below are compared." if compares else f"Showing {run_word(shown)}."
    if name is None and meant:
        name = text  # a folder that is there
    if name is None:
        return f"The link names a run that is not here. {showing}"
    if not meant:
        near = [other for other in names if other.startswith(f"{PurePath(name).parent}/")] or names
        are = "is" if len(near) == 1 else "are"
        return f"There is no run '{shorten(name)}' here: there {are} {_list(near)}. {showing}"
    return f"'{shorten(name)}' is a folder of {count(len(meant), 'run')}: {_list(meant)}. {showing}"


def _list(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - _MOST_NAMED
    listed = [run_word(name, 40) for name in names[:_MOST_NAMED]]
    return join_names([*listed, count(more, "other")] if more > 0 else listed)
