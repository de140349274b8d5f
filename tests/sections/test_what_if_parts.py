"""The page What if: what an answer need not make again, and with what it compares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made.gloo import ddp_over_gloo
from made.traces import run_of
from msgspec.structs import replace
from samples import sample_run

import overlaplab
from overlaplab.errors import OverlaplabError
from overlaplab.sections.what_if import what_if_parts
from overlaplab.simulate.predictions import cpu_answers
from overlaplab.simulate.predictions.answer import Question
from overlaplab.simulate.predictions.device import device_manifest
from overlaplab.simulate.predictions.error import recorded_caps
from overlaplab.simulate.programs.setting import Setting

SAMPLES = Path(__file__).parents[2] / "traces"


def test_caps_are_compared_with_the_step_of_the_setting_shown() -> None:
    """With 64 ranks a step takes many times the recorded one, and larger buckets gain."""
    run = sample_run("bucketed")
    assert run.manifest is not None
    parts = what_if_parts(run, Question(setting=Setting(ranks=64)), recorded_caps(run.manifest, [run.manifest]), None)
    assert parts.advice.startswith("Record with --bucket-cap-mb ")
    assert "Predicted gain with 64 ranks: " in parts.advice


def test_after_the_first_answer_no_move_of_a_slider_makes_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    run = overlaplab.load_run(SAMPLES / "bucketed")  # of which nothing is kept yet
    manifest = run.manifest
    assert manifest is not None
    assert manifest.link is not None
    recorded = recorded_caps(manifest, [manifest])
    what_if_parts(run, Question(setting=Setting()), recorded, None)
    made: list[Setting] = []
    as_ever = cpu_answers.made_programs

    def counted(run: Any, setting: Setting) -> Any:
        made.append(setting)
        return as_ever(run, setting)

    monkeypatch.setattr(cpu_answers, "made_programs", counted)
    faster = replace(manifest.link, bandwidth_gbps=50.0)
    for setting in (Setting(link=faster), Setting(ranks=10_000), Setting(bucket_cap_mb=1.0)):
        what_if_parts(run, Question(setting=setting), recorded, None)
    assert not made
    what_if_parts(run, Question(setting=Setting(bucket_cap_mb=1.0, straggler=False)), recorded, None)
    assert made  # ranks that all work as the median do other things


def test_of_ddp_that_nobody_labelled_caps_are_played(tmp_path: Path) -> None:
    """Nobody said which cap was set, so that no line stands at one."""
    run = run_of(tmp_path, ddp_over_gloo())
    nobody = recorded_caps(device_manifest(run), ())
    parts = what_if_parts(run, Question(setting=Setting(bucket_cap_mb=0.0028)), nobody, None)
    assert parts.headline.startswith("With bucket_cap_mb 0.0028 a step is predicted to take 22.8 ms")
    assert [chart.key for chart in parts.option_charts] == ["caps_predicted"]
    as_recorded = what_if_parts(run, Question(setting=Setting()), nobody, None)
    assert "measured: 20.0 ms" in str(as_recorded.option_charts[0].draw().to_dict())


def test_of_a_rank_alone_only_actions_are_played() -> None:
    run = sample_run("torch-ddp-gloo")
    alone = replace(run, traces=run.traces[:1])
    nobody = recorded_caps(device_manifest(alone), ())
    parts = what_if_parts(alone, Question(setting=Setting(edits=(("no-pause", None),))), nobody, None)
    assert parts.option_charts == []
    assert "Collectives take as long as recorded, waiting for the missing ranks included." in parts.notes
    with pytest.raises(OverlaplabError, match="1 of 2 ranks are there"):
        what_if_parts(alone, Question(setting=Setting(bucket_cap_mb=1)), nobody, None)
