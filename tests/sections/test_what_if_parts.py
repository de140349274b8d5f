"""The page What if: what an answer need not make again, and with what it compares."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from samples import sample_run

import overlaplab
from overlaplab.sections.what_if import Asked, what_if_parts
from overlaplab.simulate.predictions import what_if
from overlaplab.simulate.predictions.error import recorded_caps
from overlaplab.simulate.programs.setting import Setting

SAMPLES = Path(__file__).parents[2] / "traces"


def test_caps_are_compared_with_the_step_of_the_setting_shown() -> None:
    """With 64 ranks a step takes many times the recorded one, and larger buckets gain."""
    run = sample_run("bucketed")
    assert run.manifest is not None
    parts = what_if_parts(run, Asked(setting=Setting(ranks=64)), recorded_caps(run.manifest, [run.manifest]), None)
    assert parts.advice.startswith("Record with --bucket-cap-mb ")
    assert " with 64 ranks; in a script:" in parts.advice


def test_after_the_first_answer_no_move_of_a_slider_makes_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    run = overlaplab.load_run(SAMPLES / "bucketed")  # of which nothing is kept yet
    manifest = run.manifest
    assert manifest is not None
    assert manifest.link is not None
    recorded = recorded_caps(manifest, [manifest])
    what_if_parts(run, Asked(setting=Setting()), recorded, None)
    made: list[Setting] = []
    as_ever = what_if.made_programs

    def counted(run: Any, setting: Setting) -> Any:
        made.append(setting)
        return as_ever(run, setting)

    monkeypatch.setattr(what_if, "made_programs", counted)
    faster = replace(manifest.link, bandwidth_gbps=50.0)
    for setting in (Setting(link=faster), Setting(ranks=10_000), Setting(bucket_cap_mb=1.0)):
        what_if_parts(run, Asked(setting=setting), recorded, None)
    assert not made
    what_if_parts(run, Asked(setting=Setting(bucket_cap_mb=1.0, straggler=False)), recorded, None)
    assert made  # ranks that all work as the median do other things
