"""The Summary page in its states, run by Streamlit's own tester."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from made_ranks import carried
from made_traces import event, launched, op, run_of, step
from streamlit.testing.v1 import AppTest


def words(app: AppTest) -> str:
    return "\n".join(element.value for element in app.text)


def tables(app: AppTest) -> list[pd.DataFrame]:
    return [frame.value for frame in app.dataframe]


def test_it_begins_with_the_verdict_and_ends_with_what_to_do(opened, runs: Path) -> None:
    app = opened(runs, run="bucketed")
    assert words(app).startswith(
        "bucketed, 2 ranks, median step 1.0 ms, worst rank 0 (step 0): 0.35 ms exposed (35\u00a0% of its step), all"
        " of it transfer. That step takes 1.0 ms, and would take 0.65 ms without any communication."
        " 30\u00a0% of communication time, over all ranks and steps, is hidden."
    )
    assert "emulated link 1Gbps,200us" in words(app)
    assert app.text[-1].value.startswith("Go after ")
    spots, causes, steps, _ = tables(app)
    config = json.loads(app.dataframe[2].proto.columns)
    ratio, exposed = (config[title] for title in ("overlap ratio (% of comm.)", "exposed (ms)"))
    assert (ratio["label"], ratio["help"]) == ("overlap ratio", "Hidden communication ÷ communication.")
    assert (exposed["label"], exposed["type_config"]) == ("exposed ms", {"type": "number", "format": "%.3f"})
    assert steps["exposed (ms)"].tolist() == [0.35] * 4
    assert steps["overlap ratio (% of comm.)"].tolist() == [30.0] * 4
    assert spots["exposed (ms)"].sum() == pytest.approx(0.35)
    assert spots["% of exposed"].sum() == pytest.approx(100)
    assert causes["exposed (ms)"].sum() == pytest.approx(0.35)


def test_one_step_and_rank(opened, runs: Path) -> None:
    app = opened(runs, run="bucketed")
    app.multiselect[0].set_value([1])
    app.selectbox[1].set_value(1).run()
    assert tables(app)[2][["rank", "step"]].to_numpy().tolist() == [[1, 1]]
    assert "Rank 1, step 1: " in words(app)


def test_where_it_went_names_cause_collective_and_time(opened, tmp_path: Path) -> None:
    """Rank 0 waits 10 to 30 us for rank 1; then both transfer until 45."""
    early = [step(0, 0, 60), op("mm", 0, 10), *carried(0, 10, 45, launch=10)]
    late = [step(0, 0, 60), op("mm", 0, 30), *carried(0, 30, 45, launch=30)]
    run_of(tmp_path / "run", early, late)
    app = opened(tmp_path, run="run")
    assert (
        "worst rank 0 (step 0): 0.035 ms exposed (58\u00a0% of its step): 0.020 waiting for rank 1, 0.015 tra"
        in words(app)
    )
    spots = tables(app)[0]
    assert spots.to_dict("records")[0] == {
        "cause": "straggler wait for rank 1",
        "collective": "all-reduce 0",
        "exposed (ms)": 0.02,
        "% of exposed": pytest.approx(400 / 7),
        "from (ms)": 0.01,
        "to (ms)": 0.03,
    }
    assert app.text[-1].value.startswith("Go after blocking first: it is 50\u00a0% of all exposed communication")


def test_where_communication_is_not_the_problem(opened, tmp_path: Path) -> None:
    """A GPU that idles three quarters of the time, since the host launches late."""
    events = [event("ProfilerStep#0", 0, 100, cat="user_annotation")]
    events += launched("gemm", 1, 2, 12, correlation=1) + launched("gemm", 88, 90, 100, correlation=2)
    events += launched("ncclDevKernel_AllReduce", 2, 3, 13, stream=9, correlation=3)
    run_of(tmp_path / "run", events, backend="nccl")
    app = opened(tmp_path, run="run")
    assert "Communication is not the problem: 79\u00a0% of the step time is idle, since the host launches too" in words(
        app
    )
    assert app.text[-1].value.startswith(
        "Leave communication for later: hiding all that is exposed would gain at most 1\u00a0% of the step time. Make"
    )


def test_without_communication_there_is_no_list(opened, tmp_path: Path) -> None:
    run_of(tmp_path / "run", [op("mm", 0, 9)])
    app = opened(tmp_path, run="run")
    assert "It has no communication." in words(app)
    assert [next(iter(table)) for table in tables(app)] == ["rank"]
