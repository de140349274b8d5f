"""The step of a planned number of GPUs: of runs on GPUs others behind a link alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from made.ddp import ddp_ranks
from made.traces import run_of

from overlaplab.costs.batch import Batch
from overlaplab.errors import OverlaplabError
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.predictions.what_if import planned_step
from overlaplab.simulate.programs.setting import Setting


def test_on_gpus_other_ranks_need_a_link(tmp_path: Path) -> None:
    run = run_of(tmp_path, *ddp_ranks([2 << 20]), backend="nccl")
    ranks = len(run.traces)
    found, expected = planned_step(run, Batch(seq=8, microbatch=1, accumulate=1, ranks=ranks)), predict(run, Setting())
    assert (found.step_ns, found.interval) == (expected.step_ns, expected.interval)
    for changed, why in (
        ({"ranks": 2 * ranks, "accumulate": 1}, "how long collectives of 4 ranks take is not known"),
        ({"ranks": ranks, "accumulate": 2}, "of a run on GPUs nothing but the link"),
    ):
        with pytest.raises(OverlaplabError, match=why):
            planned_step(run, Batch(seq=8, microbatch=1, **changed))
