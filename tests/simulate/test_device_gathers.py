"""Another prefetch depth of torch's FSDP2 on GPUs: recorded with one, predicted and made with another."""

from __future__ import annotations

from pathlib import Path

import pytest
from made.ddp import ddp_ranks
from made.fsdp import fsdp
from made.traces import run_of

from overlaplab import OverlaplabError, Run, summary
from overlaplab.simulate.predictions.device import predict_device
from overlaplab.simulate.programs.setting import Setting


def made(path: Path, ahead: int, host_us: int) -> Run:
    rank = fsdp(ahead, host_us=host_us)
    return run_of(path / f"{ahead} {host_us}", rank, rank, backend="nccl")


def spans(run: Run) -> list[list[int]]:
    return [own["span_ns"].tolist() for _, own in summary(run).groupby("rank")]


@pytest.mark.parametrize("host_us", [10, 450])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_another_depth_is_predicted_to_the_nanosecond(tmp_path: Path, before: int, host_us: int) -> None:
    """A host that is slow launches gathers late, unless they are ahead; one that is fast waits for what is copied."""
    run = made(tmp_path, before, host_us)
    for ahead in (1, 2, 3):
        found = predict_device(run, Setting(prefetch=ahead))
        assert found.recorded_ns == spans(run)
        assert found.predicted_ns == spans(made(tmp_path, ahead, host_us)), ahead


def test_the_depth_matters_where_the_host_is_slow(tmp_path: Path) -> None:
    """Of the gathers of 140 µs, one remains exposed where none is launched ahead."""
    late, ahead = (spans(made(tmp_path, depth, 450))[0][0] for depth in (0, 1))
    assert late - ahead > 100_000


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        (Setting(prefetch=0), "prefetch must be 1 or more"),
        (Setting(prefetch=1, bucket_cap_mb=1.0), "FSDP2 sends no buckets"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, setting: Setting, reason: str) -> None:
    with pytest.raises(OverlaplabError, match=reason):
        predict_device(made(tmp_path, 1, 10), setting)


def test_a_run_of_ddp_gathers_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path, *ddp_ranks([2 << 20]), backend="nccl")
    with pytest.raises(OverlaplabError, match="no all-gathers of torch's FSDP2"):
        predict_device(run, Setting(prefetch=1))
