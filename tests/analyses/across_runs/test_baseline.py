"""Figures of earlier recordings, and what becomes of conditions held against them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from samples import TRACES, sample_run

from overlaplab import OverlaplabError, Selection
from overlaplab.analyses import baseline, judged, parse_condition, recordings_before, scalars, stored_baseline

CAPS = [TRACES / "sweep" / name for name in ("cap-1", "cap-1-2", "cap-1-3")]


def outcome(text: str, before: list[float], now: float) -> tuple[float, bool]:
    (found,) = judged([parse_condition(text)], [{"span_ns": one} for one in before], {"span_ns": now})
    return round(found.number, 6), found.failed


@pytest.mark.parametrize(
    ("condition", "before", "now", "number", "failed"),
    [
        ("span_ns > 5%", [100], 106, 6, True),
        ("span_ns > 5%", [100], 105, 5, False),
        ("span_ns > 5%", [90, 110], 106, 6, False),  # one of the recordings took longer
        ("span_ns > 5%", [90, 110], 111, 11, True),
        ("span_ns < -5%", [90, 110], 91, -9, False),
        ("span_ns < -5%", [90, 110], 89, -11, True),
        ("span_ns > 5%", [0, 0], 1, float("inf"), True),
        ("span_ns > 5%", [0], 0, 0, False),
        ("span_ns > 100ns", [200, 300], 101, 101, True),  # a limit asks for no earlier recording
    ],
)
def test_a_change_fails_beyond_every_earlier_recording(
    condition: str, before: list[float], now: float, number: float, failed: bool
) -> None:
    assert outcome(condition, before, now) == (number, failed)


@pytest.mark.parametrize(
    ("condition", "failed"),
    [
        ("exposed.tail > 7ms", False),  # whatever the unknown time is
        ("exposed.tail > 5ms", None),
        ("exposed.tail > 1ms", True),
        ("exposed.tail > 10%", True),
        ("exposed.tail > 150%", None),
        ("exposed.tail > 250%", False),
        ("exposed.unknown > 5ms", False),
    ],
)
def test_a_cause_that_may_have_more_is_judged_where_that_changes_nothing(condition: str, failed: bool | None) -> None:
    """2 ms are the tail's, 4 ms may be; before it were 1 and 1."""
    before, now = ({"exposed.tail": tail * 1e6, "exposed.unknown": more * 1e6} for tail, more in ((1, 1), (2, 4)))
    if failed is None:
        with pytest.raises(OverlaplabError, match=r"cannot be judged: 4\.0 ms of exposed time"):
            judged([parse_condition(condition)], [before], now)
    else:
        assert judged([parse_condition(condition)], [before], now)[0].failed is failed


def test_a_figure_that_is_unknown_cannot_be_judged() -> None:
    for before, now in (([{"span_ns": None}], {"span_ns": 1.0}), ([{}], {"span_ns": 1.0}), ([{"span_ns": 1.0}], {})):
        with pytest.raises(OverlaplabError, match="span_ns is unknown in one of the runs"):
            judged([parse_condition("span_ns > 5%")], before, now)


def test_a_baseline_is_read_as_it_was_written(tmp_path: Path) -> None:
    runs = [sample_run(path) for path in CAPS]
    made = baseline(runs, Selection(skip_steps=1))
    (tmp_path / "b.json").write_text(made.text())
    found = stored_baseline(tmp_path / "b.json")
    assert found == made
    assert [dict(one) for one in found.recordings] == [scalars(run, Selection(skip_steps=1)) for run in runs]
    assert recordings_before(runs[0], Selection(skip_steps=1), found, None) == found.recordings
    with pytest.raises(OverlaplabError, match=r"leaves out the first 1 steps .* Compare with --skip-steps 1"):
        recordings_before(runs[0], Selection(), found, None)


def test_other_ranks_and_steps_are_refused() -> None:
    run = sample_run(CAPS[0])
    one_rank, one_step = Selection(ranks=[0]), Selection(steps=[4])
    with pytest.raises(OverlaplabError, match=r"cap-1: rank 1: is not in the baseline\. Compare the same ranks\."):
        recordings_before(run, Selection(), baseline([run], one_rank), None)
    with pytest.raises(OverlaplabError, match=r"the baseline is of step 4, this comparison of all steps\. Compare the"):
        recordings_before(run, Selection(), baseline([run], one_step), None)
    with pytest.raises(OverlaplabError, match=r"the baseline is of all steps, this comparison of steps 3, 4\."):
        recordings_before(run, Selection(steps=[4, 3]), baseline([run]), None)
    for selection in (one_rank, one_step):
        before = baseline([run], selection)
        assert recordings_before(run, selection, before, None) == before.recordings


def test_a_baseline_that_says_neither_steps_nor_device_is_read(tmp_path: Path) -> None:
    run = sample_run(CAPS[0])
    content = json.loads(baseline([run]).text())
    del content["steps"], content["on_gpus"]
    (tmp_path / "b.json").write_text(json.dumps(content))
    before = stored_baseline(tmp_path / "b.json")
    for selection in (Selection(), Selection(steps=[4])):
        assert recordings_before(run, selection, before, None) == before.recordings
    assert "steps" not in json.loads(before.text())


def test_other_work_is_refused() -> None:
    runs = [sample_run(path) for path in CAPS[:1]]
    other = sample_run("naive")
    with pytest.raises(OverlaplabError, match=r"naive: differs from the other recordings in layers, .*link"):
        baseline([*runs, other])
    with pytest.raises(OverlaplabError, match="differs"):
        recordings_before(other, Selection(), baseline(runs), None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        '{"format": "x", "settings": null, "recordings": []}',
        '{"format": "\udcff"}',
        '{"x": ' + 100_000 * "[",
    ],
    ids=["empty", "a list", "another", "no UTF-8", "deep"],
)
def test_other_files_are_no_baselines(tmp_path: Path, text: str) -> None:
    (tmp_path / "b.json").write_text(text, errors="surrogateescape")
    with pytest.raises(OverlaplabError, match=r"b.json: is no baseline.*Write one with: overlaplab baseline"):
        stored_baseline(tmp_path / "b.json")


def test_a_newer_baseline_is_refused(tmp_path: Path) -> None:
    made = json.loads(baseline([sample_run(CAPS[0])]).text())
    (tmp_path / "b.json").write_text(json.dumps(made | {"format_version": 3}))
    with pytest.raises(OverlaplabError, match="newer overlaplab"):
        stored_baseline(tmp_path / "b.json")
