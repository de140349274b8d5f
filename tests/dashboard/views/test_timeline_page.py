"""The Timeline page in its states, run by Streamlit's own tester, and the words it says; its canvas: test_canvas.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from browsing.app_page import body_texts, head_texts
from made.ranks import carried
from made.traces import event, gloo, launched, op, run_of, step
from streamlit.testing.v1 import AppTest

import overlaplab
from overlaplab import findings
from overlaplab.dashboard.canvas import read_state, shown_lanes
from overlaplab.findings import event_facts
from overlaplab.sections.run_tables import RunTables
from overlaplab.timeline.event_details import event_details
from overlaplab.timeline.timeline import timeline_events


def diagnosis_of(path: Path) -> findings.Diagnosis:
    found = RunTables(run=overlaplab.load_run(path)).diagnosis
    assert found is not None
    return found


def words(app: AppTest) -> str:
    return "\n".join(element.value for element in app.text)


def headlines(app: AppTest) -> list[str]:
    return [headline.value for headline in app.subheader]


def test_it_says_what_it_shows_the_verdict_the_figures_and_what_to_do(opened, runs: Path) -> None:
    app = opened(runs, "timeline", "bucketed")
    # It opens at the step that speaks for the run. Of its 1000 µs, 500 are communication, 150 of them hidden.
    assert body_texts(app)[0] == (
        "2 ranks, step 0 (the step of the verdict), 1.0 ms from the first rank's"
        " start to the last one's end: 0.70 ms of 1.0 ms of"
        " communication is exposed (35\u00a0% of this window, 2 ranks together). Most on rank 0: 0.35 ms."
    )
    assert app.selectbox(key="step_picker").placeholder == "Step 0 at first"
    assert "emulated link 1Gbps,200us" in words(app)
    assert headlines(app) == [
        "Visible: 0.000 to 1.000 ms",
        "Why it was exposed, 2 ranks together",
        "What took most time there",
    ]
    ranks, causes = app.dataframe[0].value, app.dataframe[1].value
    assert ranks["exposed (ms)"].tolist() == [0.35, 0.35]
    assert causes.to_numpy().tolist() == [[0.7, "longer than compute (link-bound)"]]
    assert list(ranks) == ["rank", "exposed (ms)", "compute (ms)", "idle (ms)"]  # what has room; the CSV file has more
    diagnosis = diagnosis_of(runs / "bucketed")
    assert head_texts(app)[2:] == [diagnosis.headline, diagnosis.advice]
    assert not app.header  # the head has said what to do


def test_long_names_of_kernels_are_whole(opened, tmp_path: Path) -> None:
    name = f"void elementwise<{', '.join(['Functor'] * 20)}>"
    kernels = [*launched(name, 5, 10, 30, correlation=1), *launched("mm", 7, 30, 35, correlation=2)]
    run_of(tmp_path / "own", [step(0, 0, 60), *kernels], backend="nccl")
    lines = words(opened(tmp_path, "timeline")).splitlines()
    first = lines.index(f"0.020 ms  {name}")
    assert lines[first + 1] == "0.005 ms  mm"


def test_a_link_brings_the_window_and_the_event(opened, runs: Path) -> None:
    app = opened(runs, "timeline", "bucketed")
    app.query_params["from"], app.query_params["to"] = "450000", "600000"
    rows = overlaplab.load_run(runs / "bucketed").traces[1].events
    row = int(np.flatnonzero(rows["name"].astype(str).str.startswith("engine::comm seq=0"))[0])
    app.query_params["event"] = f"1-{row}"
    app.run()
    assert not app.exception
    assert headlines(app)[:3] == ["Selected event", "Its collective by rank", "Visible: 0.450 to 0.600 ms"]
    facts = dict(text.value.partition("\n")[::2] for text in app.text)
    assert (facts["rank"], facts["start"], facts["lasts"]) == ("1", "0.450 ms", "150 µs")
    assert facts["size"] == "4.00 MB"
    assert app.dataframe[0].value["rank"].tolist() == [0, 1]
    assert app.query_params["from"] == "450000"
    assert app.query_params["event"] == f"1-{row}"


def test_an_event_alone_brings_its_surroundings(opened, runs: Path) -> None:
    app = opened(runs, "timeline", "one-rank")
    rows = overlaplab.load_run(runs / "one-rank").traces[0].events
    row = int(np.flatnonzero(rows["name"].astype(str) == "aten::mm")[0])
    app.query_params["event"] = f"0-{row}"
    app.run()
    assert headlines(app)[1] == "Visible: -1.000 to 1.800 ms"  # 200 to 600 µs, and three times as much on either side


def test_a_link_brings_the_dragged_range(opened, runs: Path) -> None:
    app = opened(runs, "timeline", "bucketed")
    app.query_params["from"], app.query_params["to"], app.query_params["range"] = "450000", "600000", "500000,550000"
    app.run()
    assert not app.exception
    assert headlines(app)[0] == "Selected: 0.500 to 0.550 ms"
    assert app.query_params["range"] == "500000,550000"
    app.query_params["range"] = "550000,<b>"
    app.run()
    assert headlines(app)[0] == "Visible: 0.450 to 0.600 ms"
    assert "range" not in app.query_params


@pytest.mark.parametrize(
    "query",
    [
        {"from": "9", "to": "3"},
        {"from": "1e5", "to": "2e5"},
        {"event": "7-0"},
        {"event": "0-999999"},
        {"event": "<script>"},
    ],
)
def test_a_link_that_cannot_be_followed_shows_the_run(opened, runs: Path, query: dict[str, str]) -> None:
    app = opened(runs, "timeline", "bucketed")
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception
    assert headlines(app)[0] == "Visible: 0.000 to 1.000 ms"
    assert "Selected event" not in headlines(app)


@pytest.mark.parametrize(
    ("rank", "lead"),
    [
        (0, "1 rank, step 3 (the most exposed rank, the more exposed of its two steps)"),
        (1, "1 rank, step 3 (the step of the verdict)"),
        (2, "1 rank, 0.10 ms from "),
    ],
)
def test_only_the_verdicts_rank_is_the_most_exposed(opened, tmp_path: Path, rank: int, lead: str) -> None:
    """Ranks 0 and 1 recorded steps 3 and 4, and rank 2 step 5 alone."""

    def steps_of_rank(*numbers: int, exposed: int) -> list[dict[str, object]]:
        begun = ((number, 100 * number) for number in numbers)
        steps = ([step(n, at, at + 100), op("mm", at, at + 60), gloo(at + 40, at + 60 + exposed)] for n, at in begun)
        return [event for events in steps for event in events]

    run_of(
        tmp_path / "run", steps_of_rank(3, 4, exposed=30), steps_of_rank(3, 4, exposed=20), steps_of_rank(5, exposed=5)
    )
    app = opened(tmp_path, "timeline", "run")
    app.query_params["ranks"] = str(rank)
    app.run()
    assert any(text.startswith(lead) for text in body_texts(app)), body_texts(app)


def test_another_run_is_not_asked_for_the_window_of_the_one_before(opened, tmp_path: Path) -> None:
    run_of(tmp_path / "long", [event("aten::mm", 0, 2000)])
    run_of(tmp_path / "short", [event("aten::mm", 100, 400)])
    app = opened(tmp_path, "timeline", "long")
    app.query_params["from"], app.query_params["to"] = "1500000", "1900000"
    app.run()
    app.selectbox(key="run_picker").set_value("short").run()
    assert headlines(app)[0] == "Visible: 0.000 to 0.300 ms"
    assert not app.warning


@pytest.mark.parametrize("begin", [500, 2500])
def test_a_link_to_what_lies_before_the_steps_is_followed(opened, tmp_path: Path, begin: int) -> None:
    run_of(tmp_path / "early", [event("aten::mm", 100, 400), step(1, begin, begin + 400)])
    app = opened(tmp_path, "timeline", "early")
    app.query_params["from"], app.query_params["to"] = "0", "300000"
    app.run()
    assert not app.warning
    assert headlines(app)[0] == "Visible: 0.000 to 0.300 ms"


def test_a_step_is_a_window(opened, runs: Path) -> None:
    app = opened(runs, "timeline", "bucketed")
    app.selectbox(key="step_picker").set_value(1).run()
    assert body_texts(app)[0].startswith("2 ranks, 1.0 ms from 1.0 ms on: ")
    assert head_texts(app)[1].endswith(" · rank 0, step 1 (as chosen)")
    assert headlines(app)[0] == "Visible: 1.000 to 2.000 ms"
    app.multiselect(key="ranks_picker").set_value([1]).run()
    assert headlines(app)[0] == "Visible: 1.000 to 2.000 ms"
    assert app.dataframe[0].value["rank"].tolist() == [1]


def test_device_activity_that_was_not_recorded_is_said(opened, tmp_path: Path) -> None:
    run_of(tmp_path / "host", [event("cudaLaunchKernel", 0, 5, cat="cuda_runtime", correlation=1)])
    app = opened(tmp_path, "timeline", "host")
    assert not app.get("bidi_component")
    assert "Device activity was not recorded" in app.warning[0].value


def test_a_run_without_steps_is_one_window(opened, tmp_path: Path) -> None:
    run_of(tmp_path / "plain", [event("aten::mm", 100, 400)])
    app = opened(tmp_path, "timeline", "plain")
    assert headlines(app)[0] == "Visible: 0.000 to 0.300 ms"
    assert "no communication; 100\u00a0% of the ranks' time is busy." in words(app)


def test_what_the_browser_tells_is_checked() -> None:
    def told(**more: object) -> tuple[object, object, object]:
        told = {"id": "a", "asked": [[5, 9], 3, 0, [], None], "window": [1, 2], "range": None, "event": None} | more
        found = read_state(told, {"id": "a", "asked": [[5, 9], 3, 0, [], None]}, 10, (0, 2))
        return found.window, found.selected, found.mark

    assert told() == ((1, 2), None, None)
    assert told(window=[7, 7]) == ((5, 9), None, None)
    assert told(window=["1", 2]) == ((5, 9), None, None)
    assert told(range=[3, 4], event=9) == ((1, 2), (3, 4), 9)
    assert told(range="x", event=10) == ((1, 2), None, None)
    assert told(event=True) == ((1, 2), None, None)
    assert told(id="b") == ((5, 9), None, 3)
    assert told(asked=[[5, 9], 3, 1, [], None]) == ((5, 9), None, 3)  # before it was asked this
    assert read_state(None, {"id": "a", "asked": [[5, 9], None, 0, [], None]}, 10).window == (5, 9)
    for mark in ([2, 7], [1, 7], [0, -1], [0, "7"], [0, 7, 7]):  # of a host's lane: only traces 0 and 2 have one
        assert told(event=mark) == ((1, 2), None, (2, 7) if mark == [2, 7] else None)
    asked = {"id": "a", "asked": [[5, 9], [2, 7], 0, [2], None]}
    assert (read_state(None, asked, 10, (0, 2)).mark, read_state(None, asked, 10, (0, 2)).hosts) == ((2, 7), (2,))
    message = {**asked, "window": [1, 2], "hosts": [2, 5, "x"]}
    assert read_state(message, asked, 10, (0, 2)).hosts == (2,)
    asked = {"id": "a", "asked": [[5, 9], None, 0, [], [6, 8]]}
    assert read_state(None, asked, 10).selected == (6, 8)
    assert read_state({**asked, "window": [1, 2], "range": None}, asked, 10).selected is None  # the reader let go of it


def test_lanes_of_chosen_ranks(runs: Path) -> None:
    timeline = timeline_events(overlaplab.load_run(runs / "bucketed"))
    every = shown_lanes(timeline, None)
    assert every == list(range(len(timeline.lanes)))
    chosen = shown_lanes(timeline, frozenset({1}))
    assert chosen == every[len(every) // 2 :]


def test_an_event_fact_by_fact(runs: Path) -> None:
    run = overlaplab.load_run(runs / "foreign")
    names = run.traces[0].events["name"].astype(str)
    facts = dict(event_facts(event_details(run, 0, int(np.flatnonzero(names == "ampere_sgemm")[0]))))
    assert facts["start"] == "0.020 ms"
    assert facts["lasts"] == "60 µs"
    assert facts["correlation"] == "1"
    assert facts["launched by"] == "cudaLaunchKernel"
    assert facts["launch began"].endswith("15 µs before the event")
    details = event_details(run, 0, int(np.flatnonzero(names.str.startswith("nccl"))[0]))
    facts = dict(event_facts(details))
    assert facts["counts as"] == "communication (kernel)"
    assert facts["collective"] == "0: all-reduce"
    assert details["collective"] is not None
    assert [peer["end_ns"] for peer in details["collective"]["peers"]] == [110_000]


def test_a_transfer_that_began_before_its_event_says_so(tmp_path: Path) -> None:
    """Rank 1 launches at 16 and the range of the link's thread begins at 18: it lasts 22 µs, and the transfer 24."""
    run = run_of(tmp_path, carried(7, 7, 40, launch=6), carried(7, 18, 40, launch=16))
    names = run.traces[1].events["name"].astype(str)
    row = int(np.flatnonzero(names.str.startswith("engine::comm"))[0])
    facts = dict(event_facts(event_details(run, 1, row)))
    assert (facts["lasts"], facts["transfer"]) == ("22 µs", "24 µs")
    assert facts["arrived"] == "0.010 ms, 2 µs before its start: wait and transfer count from arrivals"
