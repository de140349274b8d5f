"""Permalinks: what the reader has chosen stands in the query string, and what stands there is chosen.

A page's path is the page. `run` is a run's name below the opened folder, or that of a folder of runs, `against` the run
that the page ZeRO-3 shows beside it, `rank` one rank, `ranks` several (`0,3`),
`step` a `ProfilerStep`'s number, `runs` the names of those that the page Compare shows (`a,b`), `communication` the
names of kernels that communicate, too (`a|b`), `setting` what the page What if changes (`bucket_cap_mb:1,ranks:64`),
`from` and `to` the Timeline's window in ns from the run's zero, `event` its selected event, `range` what was dragged
there, from and to, in ns (`5,9`), `hosts` the places of the traces whose hosts are unfolded there (`0,3`).
Whatever stands in a query string is a stranger's: it is checked, and never drawn, but for what could be a run's name,
as text.

The browser drops the query string when the reader turns to another page, and Streamlit forgets what a page's controls
said. So choices are kept in the session too. A value in the query string wins where the session has not put it there;
then the control; then what was kept. Where the reader goes back or forth, the query string is right in all it says.

Only another page is a step on the browser's way back. Streamlit makes each new query string one, and a page would have
to be left several times; `history.js` puts a new query string in the place of the page's last one.

Streamlit's own `bind="query-params"` would not do: it takes `ranks=0&ranks=3` for `0,3`, drops what it does not know
without a word, and refuses `st.query_params` a window and an event beside a bound parameter.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import streamlit as st
from streamlit.navigation.page import StreamlitPage
from streamlit.runtime.scriptrunner import get_script_run_ctx

RUN, RANK, RANKS, STEP, FROM, TO, EVENT = "run", "rank", "ranks", "step", "from", "to", "event"
HOSTS, RANGE, COMMUNICATION, RUNS = "hosts", "range", "communication", "runs"
AGAINST, SETTING = "against", "setting"

_CHOICES = (RUN, RANK, RANKS, STEP, COMMUNICATION, RUNS, AGAINST, SETTING)  # what every page keeps
_LONGEST = 2000  # characters of a value that are kept
UNKNOWN = {
    RUNS: "The link names runs that are not here. Those that compare with the run on the left are shown.",
    AGAINST: "The link compares with a run that is not here. It is left out.",
    RANK: "The link names a rank that this run does not have. Another one is shown.",
    RANKS: "The link names ranks that this run does not have. All are shown.",
    COMMUNICATION: "The link's rule for kernels that communicate is not one of names and |. It is left out.",
    SETTING: "The link names a setting that this run cannot be asked for. What remains is shown.",
    STEP: "The link names a step that this run does not have. The page shows what it shows without one.",
}
_TIMELINE = Path(__file__).with_name("views") / "timeline.py"
SUMMARY = _TIMELINE.with_name("summary.py")
TURN = "Turn the page"
"""What the hidden link says that `turn.js` clicks."""
_NUMBER = re.compile(r"-?[0-9]{1,18}")  # fits into 64 bits
_NAME = re.compile(r"[\w./ +=,@()-]{1,200}")
_RULE = re.compile(r"[\w:<>, |-]{1,200}")
"""Names with `|` between them: a stranger's regular expression could otherwise take for ever."""
_SETTING = re.compile(r"\w{1,30}:[\w.-]{1,30}(,\w{1,30}:[\w.-]{1,30}){0,15}", re.ASCII)
_EVENT = re.compile(r"([0-9]{1,9})-([0-9]{1,18})")

T = TypeVar("T")


class Spot(NamedTuple):
    """What a query string says of the Timeline: times in ns from the run's zero, and what the run may not have."""

    window: tuple[int, int] | None
    event: tuple[int, int] | None = None
    """The selected one, as the place of its trace in `run.traces` and its row in `trace.events`."""
    hosts: tuple[int, ...] = ()
    """The places in `run.traces` of those whose hosts are unfolded."""
    dragged: tuple[int, int] | None = None


def _spot_query(spot: Spot) -> dict[str, str]:
    window, event, hosts, dragged = spot
    query = {} if window is None else {FROM: str(int(window[0])), TO: str(int(window[1]))}
    query |= {} if event is None else {EVENT: f"{int(event[0])}-{int(event[1])}"}
    query |= {HOSTS: ",".join(map(str, hosts))} if hosts else {}
    return query if dragged is None else query | {RANGE: f"{dragged[0]},{dragged[1]}"}


def go_to_timeline(name: str, spot: Spot, rank: int | None, *others: int | None) -> NoReturn:
    """Turn to the Timeline page of the run of this name, below the opened folder, at a spot.

    `rank` is to be shown, if any; it and the others join the chosen ones, if any.
    """
    query = {RUN: name} | _spot_query(spot) | ({} if rank is None else {RANK: str(rank)})
    if chosen := numbers(choice(RANKS)):
        ranks = {*chosen, *(each for each in (rank, *others) if each is not None)}
        query[RANKS] = ",".join(map(str, sorted(ranks)))
    turn_to(_TIMELINE, query)


def turn_to(page: Path | StreamlitPage, query: dict[str, str]) -> NoReturn:
    """Turn to a page as a click on a link does: in the browser, which then asks for nothing of the page before.

    After `st.switch_page` a fragment's timer may still ask for one, with the old page's name, before the browser knows
    of the new page. Streamlit then draws that page, without the fragment that it no longer has: an empty one.
    """
    st.session_state["links_unwritten"] = False
    with st.container(key="turn"):
        st.page_link(page, label=TURN, query_params=query)
        st.html(_script("turn.js"), unsafe_allow_javascript=True)
    st.stop()


def begin() -> None:
    """Once per run of the app, before any control: take what is new from the query string, put back what is lost."""
    with st.container(key="history"):
        st.html(_script("history.js"), unsafe_allow_javascript=True)
    stored: dict[str, str] = st.session_state.setdefault("links_kept", {})
    stale = st.session_state.pop("links_used", False) or st.session_state.get("links_unwritten", False)
    st.session_state["links_unwritten"] = True  # until `write`: a run that is cut short leaves the browser behind
    context = get_script_run_ctx()
    if getattr(context, "is_history_navigation", False):
        stored.clear()
        stale = False
    page = getattr(context, "page_script_hash", None)
    st.session_state["links_turned"] = st.session_state.get("links_page") != page
    st.session_state["links_page"] = page
    fresh = set()
    for name in _CHOICES:
        text = st.query_params.get(name)
        if text is not None and text != stored.get(name) and not stale:
            stored[name] = text[:_LONGEST]
            fresh.add(name)
    st.session_state["links_fresh"] = fresh


@cache
def _script(name: str) -> str:
    """A script of this folder as an element of the page."""
    return f"<script>{Path(__file__).with_name(name).read_text('utf-8')}</script>"


def write() -> None:
    """Once per run of the app, at its end: put what is kept into the query string, all at once.

    Not where the reader has just come and chosen nothing: the plain address says as much.
    """
    stored: dict[str, str] = st.session_state.get("links_kept", {})
    query = {name: value for name, value in st.query_params.items() if name not in _CHOICES} | stored
    comes = st.session_state.setdefault("links_comes", True)
    st.session_state["links_comes"] = False
    shown = st.query_params.to_dict()
    if query != shown and (shown or not comes):
        st.query_params.from_dict(query)
    st.session_state["links_unwritten"] = False


def control_used() -> None:
    """A control's `on_change`: what it says now is newer than the query string that the browser sent along."""
    st.session_state["links_used"] = True


def choose(name: str, key: str, value: int) -> None:
    """Give the control `key` a value from elsewhere on the page; in a callback, before controls are drawn."""
    st.session_state.setdefault("links_kept", {})[name] = str(value)
    st.session_state[key] = value
    control_used()


def choice(name: str) -> str | None:
    """What a link or a control has said of a parameter; a stranger's, where it was a link."""
    stored: dict[str, str] = st.session_state.get("links_kept", {})
    return stored.get(name)


def is_fresh(name: str) -> bool:
    """Whether the query string has just told this parameter, and no control has been drawn with it yet."""
    return name in st.session_state.get("links_fresh", set())


def consume_fresh(name: str) -> bool:
    """Whether the query string has just told this parameter; it says so once."""
    fresh: set[str] = st.session_state.get("links_fresh", set())
    was_fresh = name in fresh
    fresh.discard(name)
    return was_fresh


def start(name: str, key: str, wanted: T | None, default: T, options: Any) -> T:
    """Give the control `key`, before it is drawn, what a link or the session tells of it; returns its value.

    `wanted` is `choice(name)` as a value that could be the control's, None for anything else. Where a link tells what
    is not among the options, one line says so.
    """
    fresh: set[str] = st.session_state.get("links_fresh", set())
    is_option = wanted is not None and _is_among(wanted, options)
    if not is_option:
        st.session_state.get("links_kept", {}).pop(name, None)
        if name in fresh and name in UNKNOWN:
            st.warning(UNKNOWN[name])
    new = name in fresh or st.session_state.get("links_turned", True)  # another page's control of this key is not it
    if new or key not in st.session_state or not _is_among(st.session_state[key], options):
        st.session_state[key] = wanted if is_option else default
    fresh.discard(name)
    value: T = st.session_state[key]
    return value


def settle(name: str, text: str | None, *, plain: bool) -> None:
    """Keep what a control says now, for `write`; None for nothing. A `plain` value, the page's default, is not kept
    unless it was chosen: it need not be another page's.
    """
    stored: dict[str, str] = st.session_state.setdefault("links_kept", {})
    if text is None or (plain and name not in stored):
        stored.pop(name, None)
    else:
        stored[name] = text


def _is_among(value: Any, options: Any) -> bool:
    return all(option in options for option in value) if isinstance(value, list) else value in options


def spot_of_query() -> Spot:
    """The query string's spot, without what it does not name or what could be none."""
    start, end = number(st.query_params.get(FROM)), number(st.query_params.get(TO))
    event = _EVENT.fullmatch(st.query_params.get(EVENT) or "")
    dragged = numbers(st.query_params.get(RANGE)) or ()
    return Spot(
        window=None if start is None or end is None or start >= end else (start, end),
        event=(int(event[1]), int(event[2])) if event else None,
        hosts=numbers(st.query_params.get(HOSTS)) or (),
        dragged=(dragged[0], dragged[1]) if len(dragged) == 2 and dragged[0] < dragged[1] else None,
    )


def keep_spot(spot: Spot) -> None:
    """Write what the Timeline shows into the query string, at once as `write` does; the page does not run anew for
    that.
    """
    query = {name: value for name, value in st.query_params.items() if name not in (*_CHOICES, EVENT, HOSTS, RANGE)}
    query |= st.session_state.get("links_kept", {}) | _spot_query(spot)
    if query != st.query_params.to_dict():
        st.query_params.from_dict(query)


def warn_of_spot(*, has_window: bool, has_event: bool) -> None:
    """Say in one line where the query string names a window or an event that the run does not have."""
    named = [name for name in (FROM, TO, EVENT) if name in st.query_params]
    window_is_wrong = (FROM in named or TO in named) and not has_window
    event_is_wrong = EVENT in named and not has_event
    if window_is_wrong or event_is_wrong:
        what = "a window" if window_is_wrong else "an event"
        st.warning(f"The link names {what} that this run does not have. It is left out.")


def keep_at_once(name: str, text: str | None) -> None:
    """What `settle` does, for a control of a fragment: the app does not run to its end, where `write` is."""
    settle(name, text, plain=False)
    if text is None:
        st.query_params.pop(name, None)
    elif st.query_params.get(name) != text:
        st.query_params[name] = text


def parse_setting(text: str | None) -> dict[str, str]:
    """The parts of `bucket_cap_mb:1,ranks:64` by their names; empty for anything else."""
    if text is None or not _SETTING.fullmatch(text):
        return {}
    return dict(part.split(":", 1) for part in text.split(","))


def communication_rule(text: str | None) -> str | None:
    """Names of kernels that communicate, with `|` between them; None for anything else."""
    return text if text is not None and _RULE.fullmatch(text) and all(text.split("|")) else None


def run_name(text: str | None) -> str | None:
    """A text that could name a run; None for anything else, which is not drawn."""
    return text if text is not None and _NAME.fullmatch(text) else None


def number(text: str | None) -> int | None:
    """The integer that a text is, in ASCII digits; None for anything else."""
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def numbers(text: str | None) -> tuple[int, ...] | None:
    """The integers of `0,3`; None where one of them is none."""
    values = [number(part) for part in (text or "").split(",")]
    integers = [value for value in values if value is not None]
    return tuple(dict.fromkeys(integers)) if len(integers) == len(values) else None
