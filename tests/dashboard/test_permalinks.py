"""What a link says is shown, and what is shown stands in the link, on every page."""

from __future__ import annotations

from pathlib import Path

import pytest
from browsing.app_page import body_texts, head_texts
from made.ranks import carried
from made.traces import launched, op, run_of, step

import overlaplab.dashboard

MAIN = Path(overlaplab.dashboard.__file__).with_name("main.py")
SAMPLES = Path(__file__).parents[2] / "traces"
HOSTILE = "![x](http://evil.example/x.png)</script><img src=x onerror=alert(1)>"


def test_a_link_opens_its_run_rank_and_step(followed, runs: Path) -> None:
    app = followed(runs, "buckets", run="bucketed", rank="1", step="0")
    assert body_texts(app)[0].startswith("2 buckets of rank 1, step 0:")
    assert not app.warning
    assert app.query_params == {"run": "bucketed", "rank": "1", "step": "0"}


def test_several_ranks_of_a_link(followed, runs: Path) -> None:
    app = followed(runs, "timeline", run="bucketed", ranks="1", step="1")
    table = next(frame.value for frame in app.dataframe if "rank" in frame.value)
    assert table["rank"].tolist() == [1]
    app.multiselect[0].set_value([0, 1]).run()
    assert app.query_params["ranks"] == "0,1"
    app.multiselect[0].set_value([]).run()
    assert "ranks" not in app.query_params


def test_choices_survive_a_switch_of_pages(followed, runs: Path) -> None:
    app = followed(runs)
    app.selectbox(key="run_picker").set_value("bucketed").run()
    assert app.query_params == {"run": "bucketed"}
    app.selectbox(key="one_step_picker").set_value(1).run()
    assert app.query_params == {"run": "bucketed", "step": "1"}
    app.query_params.clear()  # as the browser does
    app.switch_page(str(MAIN.parent / "views" / "buckets.py")).run()
    assert app.query_params == {"run": "bucketed", "step": "1"}
    assert "step 1" in body_texts(app)[0]
    for page in ("summary", "timeline", "buckets"):
        app.switch_page(str(MAIN.parent / "views" / f"{page}.py")).run()
        assert (app.query_params["run"], app.query_params["step"]) == ("bucketed", "1")
    app.selectbox(key="one_rank_picker").set_value(1).run()
    app.query_params.clear()
    app.switch_page(str(MAIN.parent / "views" / "compare.py")).run()
    assert app.query_params == {"run": "bucketed", "step": "1", "rank": "1"}


def test_a_pages_own_default_is_not_carried_to_others(followed, runs: Path) -> None:
    app = followed(runs, "buckets", run="bucketed")
    assert "rank 0, step 0" in body_texts(app)[0]
    assert app.query_params == {"run": "bucketed"}


def test_another_run_forgets_a_step_that_it_does_not_have(followed, runs: Path) -> None:
    app = followed(runs, run="bucketed", step="0")
    app.selectbox(key="run_picker").set_value("foreign").run()
    assert not app.warning
    assert app.query_params == {"run": "foreign"}


def test_another_run_begins_at_its_own_rank_unless_one_was_chosen(followed, tmp_path: Path) -> None:
    """Rank 0 waits for rank 1 in the one run, and the other way round in the other."""
    early = [step(0, 0, 60), op("mm", 0, 10), *carried(0, 10, 45, launch=10)]
    late = [step(0, 0, 60), op("mm", 0, 30), *carried(0, 30, 45, launch=30)]
    run_of(tmp_path / "first", early, late)
    run_of(tmp_path / "second", late, early)

    def shown(run: str) -> str:
        app.selectbox(key="run_picker").set_value(run).run()
        assert not app.exception
        return head_texts(app)[1].partition(" · ")[2]

    app = followed(tmp_path, run="first")
    assert shown("first") == "rank 0, step 0 (the most exposed rank)"
    assert shown("second") == "rank 1, step 0 (the most exposed rank)"
    assert app.query_params == {"run": "second"}
    app.selectbox(key="one_rank_picker").set_value(0).run()
    assert shown("first") == "rank 0, step 0 (the most exposed rank)"
    assert shown("second") == "rank 0, step 0 (as chosen)"
    assert app.query_params == {"run": "second", "rank": "0"}


@pytest.mark.parametrize(
    ("page", "hostile"),
    [
        ("summary", HOSTILE),
        ("timeline", HOSTILE),
        *(("buckets", text) for text in ("../../etc", "9" * 5000, "\0", "-1", "٣", "")),
    ],
)
def test_what_a_link_cannot_mean_gives_the_default_and_a_line(followed, runs: Path, page: str, hostile: str) -> None:
    app = followed(runs, page, run=hostile)
    there = "there are broken, bucketed, foreign and one-rank"
    named = f"There is no run '{hostile}' here: {there}."
    could_be_one = hostile in ("../../etc", "-1", "٣")
    line = named if could_be_one else "The link names a run that is not here."
    assert body_texts(app)[0] == f"{line} Showing broken."
    assert not app.warning
    assert app.query_params == {"run": "broken"}
    ranks = "ranks" if page == "timeline" else "rank"
    app = followed(
        runs, page, **{"run": "bucketed", ranks: hostile, "step": hostile, "from": hostile, "event": hostile}
    )
    assert len(app.warning) == 2 + (page == "timeline")
    assert all(warning.value.startswith("The link names ") for warning in app.warning)
    assert (app.query_params.get(ranks), app.query_params.get("step")) == (None, None)


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ({"from": HOSTILE, "to": "9"}, "a window"),
        ({"from": "9", "to": "5"}, "a window"),
        ({"to": "5"}, "a window"),
        ({"from": "9" * 18, "to": "1" + "0" * 18}, "a window"),
        ({"from": "-" + "9" * 18, "to": "0"}, "a window"),
        ({"event": HOSTILE}, "an event"),
        ({"event": "7-7"}, "an event"),
        ({"from": "5", "to": "900", "event": "1-999999999"}, "an event"),
        ({"from": "5", "to": "900"}, None),
        ({"from": "0", "to": "9" * 18}, None),  # as far as the run goes
    ],
)
def test_a_spot_that_cannot_be_gives_the_run_and_a_line(
    followed, runs: Path, query: dict[str, str], what: str | None
) -> None:
    app = followed(runs, "timeline", run="bucketed", **query)
    said = [] if what is None else [f"The link names {what} that this run does not have. It is left out."]
    assert [warning.value for warning in app.warning] == said


def test_a_run_that_was_cut_short_does_not_believe_the_browser_it_left_behind(followed, runs: Path) -> None:
    app = followed(runs, run="bucketed")
    app.selectbox(key="run_picker").set_value("one-rank").run()
    app.query_params["run"] = "bucketed"  # what the browser still has
    app.session_state["links_unwritten"] = True
    app.run()
    assert app.selectbox(key="run_picker").value == "one-rank"
    assert app.query_params["run"] == "one-rank"


def test_the_line_is_said_once(followed, runs: Path) -> None:
    app = followed(runs, run="nowhere")
    line = "There is no run 'nowhere' here: there are broken, bucketed, foreign and one-rank. Showing broken."
    assert body_texts(app)[0] == line
    assert line not in body_texts(app.run())


def test_a_rule_for_communication_is_kept_in_the_link(followed, own_runs: Path) -> None:
    kernels = [event for place in range(2) for event in launched("my_push", place, 20, 50, correlation=place + 1)]
    run_of(own_runs / "moe", [*kernels, *launched("gemm", 3, 10, 60, correlation=9)], backend="nccl")
    app = followed(own_runs, run="moe", communication="my_push|other")
    assert app.query_params == {"run": "moe", "communication": "my_push|other"}
    assert any("<dt>hidden</dt><dd>0.030 ms</dd>" in html.proto.body for html in app.get("html"))
    app.text_input(key="communication_rule").set_value("").run()
    assert app.query_params == {"run": "moe"}
    assert head_texts(app)[2] == "The trace has no communication."
    app.text_input(key="communication_rule").set_value("my_push").run()
    app.query_params.clear()  # as the browser does
    app.switch_page(str(MAIN.parent / "views" / "collectives.py")).run()
    assert app.query_params == {"run": "moe", "communication": "my_push"}


@pytest.mark.parametrize("rule", ["(a+)+$", "a||b", HOSTILE, "x" * 201])
def test_a_rule_that_could_take_for_ever_is_left_out(followed, runs: Path, rule: str) -> None:
    app = followed(runs, run="bucketed", communication=rule)
    assert app.query_params == {"run": "bucketed"}
    assert [warning.value for warning in app.warning] == [
        "The link's rule for kernels that communicate is not one of names and |. It is left out."
    ]


@pytest.mark.parametrize(
    ("page", "query", "shown"),
    [
        ("summary", {"run": "bucketed"}, {"run_picker": "bucketed", "one_rank_picker": 0, "one_step_picker": 0}),
        ("summary", {"run": "bucketed", "rank": "1", "step": "1"}, {"one_rank_picker": 1, "one_step_picker": 1}),
        ("summary", {"run": "bucketed", "communication": "push|pull"}, {"communication_rule": "push|pull"}),
        ("timeline", {"run": "bucketed", "ranks": "0,1", "step": "1"}, {"ranks_picker": [0, 1], "step_picker": 1}),
        ("timeline", {"run": "bucketed", "rank": "1", "from": "450000", "to": "600000", "event": "1-3"}, {}),
        ("buckets", {"run": "bucketed", "rank": "1", "step": "0"}, {"one_rank_picker": 1, "one_step_picker": 0}),
        ("collectives", {"run": "bucketed", "step": "1"}, {"step_picker": 1}),
        ("what_if", {"run": "bucketed", "setting": "bucket_cap_mb:1"}, {"asked_bucket_cap_mb of bucketed": 1.0}),
        ("compare", {"run": "foreign", "runs": "bucketed,one-rank"}, {"compared": ["bucketed", "one-rank"]}),
        ("zero3", {"run": "one-rank", "step": "1"}, {"run_picker": "one-rank"}),
        ("live", {"run": "one-rank"}, {"run_picker": "one-rank"}),
    ],
)
def test_links_of_before_open_what_they_did(
    followed, runs: Path, page: str, query: dict[str, str], shown: dict[str, object]
) -> None:
    """One of each form in which a link was ever written."""
    app = followed(SAMPLES if page == "what_if" else runs, page, **query)
    controls = {one.key: one.value for one in (*app.selectbox, *app.multiselect, *app.text_input, *app.select_slider)}
    assert {key: controls[key] for key in shown} == shown
    assert not app.warning
    assert app.query_params == query
    if "from" in query:
        assert app.subheader[0].value == "Selected event"
        assert "Visible: 0.450 to 0.600 ms" in [line.value for line in app.subheader]


@pytest.mark.parametrize("text", ["sweep", "sweep/", "runs/sweep", "./sweep"])
def test_a_folder_of_several_runs_is_named_with_its_runs(followed, tmp_path: Path, text: str) -> None:
    for name in ("a", "sweep/cap-1", "sweep/cap-4"):
        run_of(tmp_path / "runs" / name, [step(0, 0, 60), op("mm", 0, 10)])
    app = followed(tmp_path / "runs", run=text)
    assert body_texts(app)[0] == f"'{text}' is a folder of 2 runs: sweep/cap-1 and sweep/cap-4. Showing sweep/cap-1."
    assert head_texts(app)[0] == "sweep/cap-1"
    assert app.query_params == {"run": "sweep/cap-1"}
    app = followed(tmp_path / "runs", "compare", run=text)  # both are compared already
    assert any(line.endswith("and sweep/cap-4. The runs chosen below are compared.") for line in body_texts(app))
    assert "Compare them ›" not in [link.proto.label for link in app.main.get("page_link")]


def test_a_run_to_compare_with_stands_in_the_link(followed, gathering: Path) -> None:
    app = followed(gathering, "zero3", run="ahead", against="serial")
    assert app.selectbox(key="against").value == "serial"
    assert any("Prefetching hides" in text for text in body_texts(app))
    assert app.query_params == {"run": "ahead", "against": "serial"}
    app.query_params.clear()  # as the browser does
    app.switch_page(str(MAIN.parent / "views" / "summary.py")).run()
    app.switch_page(str(MAIN.parent / "views" / "zero3.py")).run()
    assert app.selectbox(key="against").value == "serial"
    app.selectbox(key="against").set_value("").run()
    assert app.query_params == {"run": "ahead"}
    app = followed(gathering, "zero3", run="ahead", against="nowhere")
    assert [line.value for line in app.warning] == ["The link compares with a run that is not here. It is left out."]
