"""The app: one folder's runs on the left, and a page each for Summary, Timeline, Buckets and the rest.

Run by Streamlit (`overlaplab app DIR`, or `streamlit run app.py -- DIR`).
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st
from streamlit import net_util
from streamlit.navigation.page import StreamlitPage

from overlaplab import findings
from overlaplab.dashboard import links
from overlaplab.dashboard.data import uploads
from overlaplab.dashboard.folder import Entry, Scan, find_runs, run_title, scan_runs, short_words, watched_beside
from overlaplab.dashboard.heap import rest_modules
from overlaplab.dashboard.linked_run import find_meant, say_what_is_shown
from overlaplab.dashboard.live import look_s
from overlaplab.dashboard.navigation import OF_WATCHED, WITHOUT_RUN, all_pages, list_pages
from overlaplab.dashboard.pickers import pick_communication
from overlaplab.dashboard.upload_form import close_button, upload_form
from overlaplab.dashboard.widgets import is_dark, opened_folder

_STYLE = """
.block-container {padding: 2.5rem 2.5rem 2rem;}
@media (min-width: 1000px) {.block-container {padding-top: 1.25rem;}}
.stMain h1 {font-size: 1.75rem; padding: 0;}
.st-key-head {row-gap: 0.1rem;}
.st-key-head_below {margin-top: -0.5rem;}
.st-key-head h1 {font-size: 1.05rem; padding: 0; opacity: 0.7;}
.st-key-head [data-testid="stText"] {font-size: 0.95rem; opacity: 0.7;}
.st-key-head_run [data-testid="stText"] {font-size: 1.05rem; font-weight: 700; opacity: 1;}
.st-key-verdict {border-left: 4px solid #0072B2; background: rgb(0 114 178 / 10%); padding: 0.4rem 1rem;}
.st-key-verdict [data-testid="stText"] {font-size: 0.95rem; line-height: 1.35;}
.st-key-verdict > :first-child [data-testid="stText"] {font-weight: 600;}
.st-key-advice_line, .st-key-link_names {flex-wrap: nowrap;}
.st-key-advice_line:not(:hover, :focus-within) [data-testid="stText"] > * {
  display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 3; overflow: hidden;}
.st-key-verdict a {padding: 0; min-height: 0;}
.st-key-link_names {border-left: 4px solid #E69F00;}
.st-key-link_names a {padding: 0; min-height: 0;}
.st-key-headline [data-testid="stText"] {font-size: 1.5rem; line-height: 1.25; font-weight: 700;}
.st-key-recordings [data-testid="stText"] {font-size: 0.9rem; opacity: 0.85;}
.st-key-recordings button {min-height: 0; padding: 0;}
.st-key-advice {border-left: 4px solid #0072B2; background: rgb(0 114 178 / 10%); padding: 0.6rem 1rem;}
.st-key-predicted {border: 1px dashed; padding: 0.6rem 1rem;}
.st-key-predicted [data-testid="stText"] {font-size: 1.05rem; line-height: 1.5;}
.st-key-plan_fields [data-testid="stTextInput"] :is(label, input), .st-key-plan_fields label:has(+ * [disabled]) {
  color: inherit; -webkit-text-fill-color: currentcolor; opacity: 0.85;}
.st-key-advice [data-testid="stText"] {font-size: 1.05rem;}
.stMain dl.tiles {display: grid; grid-template-columns: repeat(auto-fit, minmax(7.5rem, 1fr)); gap: 0.6rem; margin: 0;
  padding: 0;}
.tiles div {border: 1px solid rgb(128 128 128 / 30%); border-radius: 0.5rem; padding: 0.4rem 0.8rem;}
.stMain .tiles dt, .stMain .tiles dd + dd {font-size: 0.85rem; font-weight: 400; opacity: 0.75; margin: 0;}
.stMain .tiles dd {font-size: 1.35rem; font-weight: 700; line-height: 1.25; margin: 0;}
.bar {display: flex; align-items: center; gap: 0.5rem;}
.bar i {height: 1.5rem; min-width: 2px;}
.bar.predicted i {opacity: 0.45; outline: 1px dashed currentcolor; outline-offset: -1px;}
.bar b {white-space: nowrap; font-size: 0.9rem;}
:is([class*="st-key-causes_"], [class*="st-key-actions_"])[class*="_label"] [data-testid="stText"]
  {font-weight: 600; font-size: 0.95rem; line-height: 1.25;}
:is([class*="st-key-causes_"], [class*="st-key-actions_"])[class*="_words"] [data-testid="stText"]
  {font-size: 0.85rem; line-height: 1.3;}
[class*="_words"] [data-testid="stElementContainer"] + [data-testid="stElementContainer"] {opacity: 0.75;}
.st-key-screen h3 {padding: 0;}
.st-key-screen [data-testid="stDataFrame"] {margin-top: 0.35rem;}
:is(.st-key-causes, .st-key-actions) {padding-top: 0.8rem;}
:is(.st-key-causes, .st-key-actions) button {min-height: 0; padding: 0;}
.st-key-causes_rest [data-testid="stText"] {font-size: 0.85rem; opacity: 0.75;}
@media (max-width: 1100px) {
  :is(.st-key-causes, .st-key-actions) [data-testid="stHorizontalBlock"]
    {flex-wrap: wrap; row-gap: 0.2rem; padding-bottom: 0.5rem;}
  :is(.st-key-causes, .st-key-actions) [data-testid="stColumn"] {flex: 1 1 40%; min-width: 40%;}
}
:is(.st-key-history, .st-key-turn) {display: none;}
[class*="st-key-pages"] [data-testid="stExpander"] details {border: none;}
.st-key-lead [data-testid="stText"], .st-key-gain [data-testid="stText"] {font-size: 1.1rem; line-height: 1.4;}
.st-key-lead .st-key-note [data-testid="stText"] {font-size: 1rem; opacity: 0.8;}
[data-testid="stCaptionContainer"], [data-testid="stCaptionContainer"] p {color: inherit; opacity: 0.85;}
[class*="st-key-title_"] [data-testid="stText"] {font-weight: 700; margin-top: 0.5rem;}
[class*="st-key-subtitle_"] [data-testid="stText"] {font-size: 0.85rem; font-weight: 400; margin: 0; opacity: 0.85;}
.st-key-late [data-testid="stText"] {font-size: 0.95rem;}
.stMain h2 {font-size: 1.5rem; padding: 1rem 0 0.25rem;}
.stMain h3 {font-size: 1.1rem; padding: 0.5rem 0 0.35rem;}
[class*="st-key-remarks_"] [data-testid="stText"] {font-size: 0.9rem; opacity: 0.8;}
[class*="st-key-side_by_side"] [data-testid="stColumn"] {min-width: 24rem;}
[class*="st-key-side_by_side"] [data-testid="stColumn"] > [data-testid="stVerticalBlock"] {height: 100%;}
[class*="st-key-side_by_side"] [data-testid="stLayoutWrapper"]:has(> [class*="st-key-title_"]) {margin-bottom: auto;}
[class*="st-key-downloads_"] {margin-top: -1.75rem;}
[class*="st-key-downloads_"] p {font-size: 0.85rem; opacity: 0.8;}
.st-key-timeline_below h3 {font-size: 1rem; padding: 0.35rem 0 0;}
.st-key-kernels_table [data-testid="stText"] {font-size: 0.85rem; line-height: 1.3; padding: 0.15rem 0;
  overflow-wrap: anywhere;}
.st-key-kernels_table [data-testid="stText"]:not(:hover) > * {
  display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 2; overflow: hidden;}
.st-key-timeline_below [class*="st-key-headline_"] {flex-wrap: nowrap;}
.st-key-timeline_below [class*="st-key-headline_"] > :first-child {flex-shrink: 1;}
.st-key-timeline_facts {display: grid; gap: 0.5rem 1rem; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr));}
.st-key-timeline_facts > :first-child {grid-column: 1 / -1;}
.st-key-timeline_facts [data-testid="stText"] {font-size: 0.95rem; line-height: 1.35; overflow-wrap: anywhere;
  font-variant-numeric: tabular-nums;}
.st-key-timeline_facts [data-testid="stText"] ::first-line {font-size: 0.8rem; font-weight: 700; opacity: 0.75;}
@media (max-width: 1150px) {.st-key-timeline_below [data-testid="stColumn"] {min-width: 100%;}}
@media (max-width: 1100px) {
  [data-testid="stSidebar"][data-collapsed="false"] {width: 13rem !important; min-width: 13rem;}
  .block-container {padding-left: 1.5rem; padding-right: 1.5rem;}
}
.st-key-first_run [data-testid="stText"], .st-key-second_run [data-testid="stText"] {font-weight: 600;}
"""

_DARK_STYLE = "[data-tag] span, [data-tag] button {color: #0E1117;}"  # on light blue, where white is faint


def main() -> None:
    """Draw the app; called once per rerun."""
    # When a page of another origin knocks, Streamlit would ask an outside service for this machine's address.
    net_util._external_ip = "127.0.0.1"
    rest_modules()
    st.set_page_config(page_title="overlaplab", page_icon="⏱️", layout="wide")
    st.html(f"<style>{_STYLE}{_DARK_STYLE if is_dark() else ''}</style>")
    pages = all_pages()
    page = st.navigation(list(pages.values()), position="hidden")
    links.begin()
    at_first, at_last = st.sidebar.empty(), st.sidebar.empty()
    needs_run = page.url_path not in WITHOUT_RUN
    there = _pick_run(needs_run, compares=page.url_path == "compare")
    st.set_page_config(page_title=_tab_title(page, of_run=there and needs_run))
    folded = list_pages(at_first, pages, page)
    if there and page.url_path not in OF_WATCHED and st.session_state["run"] not in st.session_state["names"]:
        _turn_to_live(pages["live"])
    elif there or not needs_run:
        page.run()
    if (there or not needs_run) and list_pages(at_last, pages, page, folded) != folded:
        at_first.empty()  # two places, since a shorter list drawn over a longer one would leave its end standing
    links.write()


def _tab_title(page: StreamlitPage, *, of_run: bool) -> str:
    """What the browser's tab is called: `bucketed · Timeline – overlaplab`."""
    run = [run_title(st.session_state["folder"], st.session_state["run"], 30)] if of_run else []
    return f"{' · '.join([*run, page.title])} – overlaplab"


def _turn_to_live(live: StreamlitPage) -> None:
    """Turn to Live where the chosen run, which was only watched, is new; else say that this page has nothing of it."""
    if st.session_state["run_turned"]:
        links.turn_to(live, {links.RUN: st.session_state["run"]})
    st.title("Not recorded", anchor=False)
    st.info("This training was watched, not recorded: there are no traces for this page to show.")
    st.page_link(live, label="What was watched ›")


def _pick_run(needed: bool, *, compares: bool) -> bool:
    """Let the user choose a run of the opened folder or bring one along, and return whether there is any.

    Where one is `needed` and there is none, say what to do. `compares`: the page compares runs.
    """
    folder = opened_folder()
    there = folder is not None and folder.is_dir()
    entries, outside, is_cut = scan_runs(folder) if folder is not None and there else Scan([], [], False)
    if folder is not None and there:
        st.session_state["watch_rests"] = True
        _watch(folder, entries)
    names = [entry.name for entry in entries] + uploads().names
    recorded = [entry.name for entry in entries if entry.recorded] + uploads().names
    refused = findings.links_refused(outside)
    if not names:
        for stale in ("folder", "run", "names", "entries", "watched"):  # of runs that were there before
            st.session_state.pop(stale, None)
        if not needed:
            return False
        problem = "There are no runs in this folder yet" if there else "There is no such folder"
        problem = "Too many folders to look into them all: open one further down" if is_cut else problem
        _welcome("Open a folder of runs" if folder is None else problem, folder)
        if refused is not None:
            st.text(refused)
        upload_form()
        return False
    linked = links.choice(links.RUN) if links.is_fresh(links.RUN) else None
    meant = find_meant(links.choice(links.RUN) or "", names, folder)
    place = st.sidebar.container()
    with st.sidebar.expander("Open traces from this computer"):
        upload_form()
    links.start(links.RUN, "run_picker", meant[0] if meant else None, names[0], names)
    words = short_words(names)
    with place:
        chosen = st.selectbox(
            "Run",
            names,
            format_func=lambda name: words[name] + ("" if name in recorded else " (watched)"),
            key="run_picker",
            on_change=links.control_used,
        )
        if refused is not None:
            st.text(refused)
        if is_cut:
            st.text("Too many folders to look into them all: for a run that is not listed, open a folder further down.")
        close_button(chosen)
    links.settle(links.RUN, chosen, plain=False)
    if linked is not None:
        say_what_is_shown(linked, meant, chosen, names, compares=compares)
    if chosen in recorded:
        pick_communication()
    st.session_state["run_turned"] = st.session_state.get("run") != chosen
    st.session_state["folder"], st.session_state["run"], st.session_state["names"] = folder, chosen, recorded
    st.session_state["entries"], st.session_state["watched"] = entries, watched_beside(chosen, entries)
    return True


@st.fragment(run_every=look_s(5.0))
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
