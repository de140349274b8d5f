"""The Summary page in its states, run by Streamlit's own tester."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from browsing.app_page import body_texts, head_texts, turn, unfold
from made.ranks import carried
from made.traces import event, launched, op, run_of, step
from streamlit.testing.v1 import AppTest

from overlaplab.charts.theme import EscapedChart


def words(app: AppTest) -> str:
    return "\n".join(element.value for element in app.text)


def tables(app: AppTest) -> list[pd.DataFrame]:
    return [frame.value for frame in app.dataframe]


def figures(app: AppTest) -> list[list[str]]:
    """The tiles: label, value, note."""
    (tiles,) = [html.proto.body for html in app.get("html") if 'class="tiles"' in html.proto.body]
    return [re.findall(r"<d[td]>(.*?)</d[td]>", tile) for tile in tiles.split("</div>")[:-1]]


def test_the_first_screen_says_what_is_wrong_and_what_to_try(opened, runs: Path) -> None:
    app = opened(runs, run="bucketed")
    run, about, headline, advice, strip, cause, *_ = [*head_texts(app), *body_texts(app)]
    assert run == "bucketed"
    assert about == (
        "bucketed, 2 ranks, cpu, bucket_cap_mb 25, emulated link 1Gbps,200us · rank 0, step 0"
        " (the most exposed rank, the more exposed of its two steps)"
    )
    assert headline == (
        "35\u00a0% of the step is exposed communication (0.35 ms of 1.0 ms). For all of it, the transfer outlasted"
        " the computation that could hide it (body.weight)."
    )
    assert advice == (
        "Try half the bytes (lower precision, accumulation) or a link twice as fast."
        " Predicted gain: 0.35 ms per step (35\u00a0% of the mean, 1.0 ms) ± 0.065 ms."
    )
    assert strip == "How short this step could be with less exposed communication"
    assert cause == "longer than compute (link-bound)"
    assert figures(app) == [
        ["step", "1.0 ms", "median of 2 steps of rank 0: 1.0 ms"],
        ["communication", "0.50 ms", "50\u00a0% of the step"],
        ["hidden", "0.15 ms", "15\u00a0% of the step"],
        ["exposed", "0.35 ms", "35\u00a0% of the step"],
        ["late rank", "none", "no wait for a rank"],
    ]
    assert not app.dataframe  # all tables are folded away


def test_charts_are_drawn_once_for_all_who_look(opened, own_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a file of the run changes."""
    drawn: list[EscapedChart] = []
    to_dict = EscapedChart.to_dict
    monkeypatch.setattr(EscapedChart, "to_dict", lambda chart, **told: drawn.append(chart) or to_dict(chart, **told))

    def charts() -> list[str]:
        return [chart.proto.spec for chart in opened(own_runs, run="bucketed").get("vega_lite_chart")]

    first = charts()
    assert len(first) == 2
    count = len(drawn)
    assert count >= 2
    assert charts() == first
    assert len(drawn) == count
    (own_runs / "bucketed" / "run.json").touch()
    assert charts() == first
    assert len(drawn) > count


def test_tables_are_made_when_they_are_opened(opened, runs: Path) -> None:
    app = opened(runs, run="bucketed")
    unfold(app, "steps_fold")
    (steps,) = tables(app)
    config = json.loads(app.dataframe[0].proto.columns)
    ratio, exposed = (config[title] for title in ("overlap ratio (% of comm.)", "exposed (ms)"))
    assert (ratio["label"], ratio["help"]) == ("overlap %", "Hidden communication ÷ communication.")
    assert (exposed["label"], exposed["type_config"]) == ("exposed ms", {"type": "number", "format": "%.3f"})
    assert steps["exposed (ms)"].tolist() == [0.35] * 4
    assert steps["overlap ratio (% of comm.)"].tolist() == [30.0] * 4
    unfold(app, "causes_fold")
    _, spots, causes = tables(app)
    assert spots["exposed (ms)"].sum() == pytest.approx(0.35)
    assert causes["exposed (ms)"].sum() == pytest.approx(0.35)
    unfold(app, "costs_fold")
    assert "in all; there is no theory for this run. As a ring sends: all-reduce 2(n−1)/n" in words(app)
    assert len(tables(app)) == 4


def test_one_step_and_rank(opened, runs: Path) -> None:
    app = opened(runs, run="bucketed")
    app.selectbox(key="one_rank_picker").set_value(1)
    app.selectbox(key="one_step_picker").set_value(1).run()
    assert "· rank 1, step 1 (as chosen)" in words(app)


def test_where_it_went_names_cause_collective_and_time(opened, tmp_path: Path) -> None:
    """Rank 0 waits 10 to 30 us for rank 1; then both transfer until 45."""
    early = [step(0, 0, 60), op("mm", 0, 10), *carried(0, 10, 45, launch=10)]
    late = [step(0, 0, 60), op("mm", 0, 30), *carried(0, 30, 45, launch=30)]
    run_of(tmp_path / "run", early, late)
    app = opened(tmp_path, run="run")
    assert "(0.035 ms of 0.060 ms). For 0.020 ms of it, the rank waited for rank 1" in words(app)
    assert figures(app)[-1] == ["late rank", "1", "waited 0.020 ms for it"]
    bars = [html.proto.body for html in app.get("html") if 'class="bar"' in html.proto.body]
    assert [re.findall(r"calc\((.*?)%|<b>(.*?)</b>", bar) for bar in bars] == [
        [("100.0", ""), ("", "0.020 ms")],
        [("50.0", ""), ("", "0.010 ms")],
        [("25.0", ""), ("", "0.005 ms")],
    ]
    unfold(app, "causes_fold")
    assert tables(app)[0].to_dict("records")[0] == {
        "cause": "waited for rank 1",
        "collective": "all-reduce 0",
        "exposed (ms)": 0.02,
        "% of step": pytest.approx(100 / 3),
        "from (ms)": 0.01,
        "to (ms)": 0.03,
    }


def test_a_bar_leads_to_its_collectives_on_the_timeline(opened, tmp_path: Path) -> None:
    early = [step(0, 0, 60), op("mm", 0, 10), *carried(0, 10, 45, launch=10)]
    late = [step(0, 0, 60), op("mm", 0, 30), *carried(0, 30, 45, launch=30)]
    run_of(tmp_path / "run", early, late)
    app = opened(tmp_path, run="run")
    turn(app.button(key="causes_0_link").click().run())
    assert not app.exception
    assert app.title[0].value == "Timeline"
    query = [app.query_params[name] for name in ("rank", "from", "to")]
    assert query == ["0", "-40000", "80000"]  # 10 to 30 us, and 50 us of room


def test_a_wait_leads_to_the_late_ranks_host(opened, tmp_path: Path) -> None:
    """What made it late may be there."""
    early, late = (
        [
            event("ProfilerStep#0", 0, 100, cat="user_annotation"),
            *launched("gemm", 1, 2, begun - 2, correlation=1),
            *launched("ncclDevKernel_AllReduce", begun - 1, begun, 80, stream=9, correlation=2),
        ]
        for begun in (20, 60)
    )
    run_of(tmp_path / "run", early, late, backend="nccl")
    app = opened(tmp_path, run="run")
    assert "waited for rank 1" in words(app)
    turn(app.button(key="causes_0_link").click().run())
    assert (app.query_params["rank"], app.query_params["hosts"]) == ("0", "1")


def test_where_communication_is_not_the_problem(opened, tmp_path: Path) -> None:
    """A GPU that idles three quarters of the time, since the host launches late."""
    events = [event("ProfilerStep#0", 0, 100, cat="user_annotation")]
    events += launched("gemm", 1, 2, 12, correlation=1) + launched("gemm", 88, 90, 100, correlation=2)
    events += launched("ncclDevKernel_AllReduce", 2, 3, 13, stream=9, correlation=3)
    run_of(tmp_path / "run", events, backend="nccl")
    app = opened(tmp_path, run="run")
    assert "Communication is not the problem: 79\u00a0% of the step time is idle, as the device waits for its" in words(
        app
    )
    assert "Try finding what blocks the host" in words(app)


def test_without_communication_there_is_nothing_to_attribute(opened, tmp_path: Path) -> None:
    run_of(tmp_path / "run", [op("mm", 0, 9)])
    app = opened(tmp_path, run="run")
    assert figures(app)[3] == ["exposed", "0 ms", "0\u00a0% of the trace"]
    assert not [button for button in app.button if "link" in button.key]
    unfold(app, "causes_fold")
    assert "The run does not say." in words(app)
