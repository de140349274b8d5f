"""Permalinks: what a link says is chosen, and what cannot be is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import streamlit as st

from overlaplab.dashboard import links
from overlaplab.dashboard.linked_run import describe_link, find_meant


def test_a_link_to_a_spot_of_the_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[dict[str, str]] = []
    monkeypatch.setattr(links, "turn_to", lambda page, query: queries.append(query))
    monkeypatch.setattr(st, "session_state", {})
    links.go_to_timeline("sweep/cap-1", links.Spot((5, 9)), None)
    links.go_to_timeline("a", links.Spot((-5, 9), event=(1, 7)), 3)
    assert queries == [
        {"run": "sweep/cap-1", "from": "5", "to": "9"},
        {"run": "a", "from": "-5", "to": "9", "rank": "3", "event": "1-7"},
    ]


@pytest.mark.parametrize(
    ("query", "window"),
    [
        ({"from": "5", "to": "9"}, (5, 9)),
        ({"from": "-5", "to": "9"}, (-5, 9)),
        ({"from": "5"}, None),
        ({"from": "9", "to": "9"}, None),
        ({"from": "5", "to": "nan"}, None),
        ({"from": "0", "to": "1e9"}, None),
        ({"from": "0", "to": "1_000"}, None),
        ({"from": "0", "to": "٣"}, None),
        ({"from": "0", "to": "9" * 40}, None),
        ({"from": "<script>", "to": "9"}, None),
    ],
)
def test_a_window_is_read_or_nothing(
    query: dict[str, str], window: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(st, "query_params", query)
    assert links.spot_of_query().window == window


@pytest.mark.parametrize(
    ("text", "event"),
    [("1-7", (1, 7)), ("0-0", (0, 0)), ("1", None), ("-1-7", None), ("1--7", None), ("1-7-8", None), ("", None)],
)
def test_an_event_is_read_or_nothing(text: str, event: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(st, "query_params", {"event": text})
    assert links.spot_of_query().event == event


@pytest.mark.parametrize(
    ("text", "found"), [("0,3", (0, 3)), ("3,3", (3,)), ("0,", None), ("a", None), (None, None), ("", None)]
)
def test_several_ranks_are_read_or_nothing(text: str | None, found: tuple[int, ...] | None) -> None:
    assert links.numbers(text) == found


class Query(dict[str, str]):
    """A query string as Streamlit's, which counts what is sent to the browser."""

    sent = 0

    def to_dict(self) -> dict[str, str]:
        return dict(self)

    def from_dict(self, query: dict[str, str]) -> None:
        self.clear()
        self.update(query)
        self.sent += 1


def test_a_window_and_an_event_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(st, "query_params", query := Query({"run": "old"}))
    monkeypatch.setattr(st, "session_state", {"links_kept": {"run": "a"}})
    for _ in range(2):
        links.keep_spot(spot := links.Spot((-5, 9), event=(1, 7)))
        assert query == {"run": "a", "from": "-5", "to": "9", "event": "1-7"}
        assert (links.spot_of_query(), query.sent) == (spot, 1)
    links.keep_spot(links.Spot((0, 9)))
    assert (query, query.sent) == ({"run": "a", "from": "0", "to": "9"}, 2)
    links.keep_spot(links.Spot((0, 9), dragged=(-3, 7)))
    assert query["range"] == "-3,7"
    assert links.spot_of_query().dragged == (-3, 7)
    for text in ("7,-3", "7", "7,7", "1,2,3", "a,b"):
        query["range"] = text
        assert links.spot_of_query().dragged is None


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("a", ["a"]),
        ("a/", ["a"]),
        ("sweep", ["sweep/cap-1", "sweep/cap-4"]),
        ("traces/sweep/", ["sweep/cap-1", "sweep/cap-4"]),
        ("home/me/traces/sweep/cap-4", ["sweep/cap-4"]),
        ("/home/me/traces/a", ["a"]),
        ("traces", ["a", "sweep/cap-1", "sweep/cap-4"]),
        ("/home", []),
        ("other/sweep", []),
        ("sweep/cap", []),
        ("../a", []),
        ("", []),
    ],
)
def test_the_runs_that_a_link_means(text: str, meant: list[str]) -> None:
    assert find_meant(text, ["a", "sweep/cap-1", "sweep/cap-4"], Path("/home/me/traces")) == meant


def test_what_a_link_names_is_said_unless_it_could_be_no_name() -> None:
    names = [f"run-{number}" for number in range(9)]
    said = "There is no run 'x' here: there are run-0, run-1, run-2, run-3, run-4, run-5 and 3 others. Showing run-0."
    assert describe_link("x", [], "run-0", names) == said
    beside = ["a", "sweep/cap-1", "sweep/cap-4"]
    said = "There is no run 'sweep/cap-9' here: there are sweep/cap-1 and sweep/cap-4. Showing a."
    assert describe_link("sweep/cap-9", [], "a", beside) == said
    folder = describe_link("sweep", beside[1:], "sweep/cap-1", beside, compares=True)
    assert folder == "'sweep' is a folder of 2 runs: sweep/cap-1 and sweep/cap-4. The runs chosen below are compared."
    assert describe_link("<b>", [], "run-0", names) == "The link names a run that is not here. Showing run-0."
    assert describe_link("x" * 300, [], "a", ["a"]) == "The link names a run that is not here. Showing a."
    assert describe_link("x", [], "a", ["a"]) == "There is no run 'x' here: there is a. Showing a."
