"""Prefetch depths, played."""

from __future__ import annotations

from samples import sample_run

import overlaplab
from overlaplab.simulate.advice.depths import best_depth, depths_played
from overlaplab.simulate.predictions import what_if
from overlaplab.simulate.predictions.answer import Question
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.undisturbed import mean_step_ns


def test_a_deeper_prefetch_gains_where_gathers_were_late() -> None:
    late, ahead = (sample_run(name) for name in ("zero3-serial", "zero3"))
    best = best_depth(late)
    assert best is not None
    assert best.prefetch >= 1
    gained = {run.path: _gain(run) for run in (late, ahead)}
    assert gained[late.path] > 5 * max(gained[ahead.path], 0.001)
    assert best_depth(sample_run("bucketed")) is None


def test_a_depth_takes_as_long_as_what_if_says() -> None:
    run = sample_run("zero3-serial")
    depths = depths_played(run)
    assert len(depths) == 4
    expected = what_if.steps_by_depth(run, Question(setting=Setting()), [depth.prefetch for depth in depths])
    assert [round(mean_step_ns(run, depth.spans_ns)) for depth in depths] == expected["step_ns"].tolist()


def _gain(run: overlaplab.Run) -> float:
    """Of a step, by the best depth."""
    spans = overlaplab.summary(run)["span_ns"].sum()
    return max((1 - own.spans_ns.sum() / spans for own in depths_played(run)), default=0.0)
