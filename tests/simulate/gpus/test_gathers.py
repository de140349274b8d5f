"""Another prefetch depth of torch's FSDP2 on GPUs: recorded with one, predicted and made with another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from made.ddp import ddp_ranks
from made.fsdp import UNITS, fsdp
from made.gpu import Event
from made.traces import event, run_of

from overlaplab import OverlaplabError, Run, schedule, summary
from overlaplab.simulate.predictions.device import predict_device
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.programs.setting import Setting

Make = Callable[[int, int], Run]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int, int], Run]]:
    @cache
    def make(ahead: int, host_us: int) -> Run:
        rank = fsdp(ahead, host_us=host_us, steps=2)
        return run_of(tmp_path_factory.mktemp("run"), rank, rank, backend="nccl")

    yield make
    make.cache_clear()


def spans(run: Run) -> list[list[int]]:
    return [own["span_ns"].tolist() for _, own in summary(run).groupby("rank")]


@pytest.mark.parametrize("host_us", [10, 450])
@pytest.mark.parametrize("before", [0, 2])
def test_another_depth_is_predicted_to_the_nanosecond(made: Make, before: int, host_us: int) -> None:
    """A host that is slow launches gathers late, unless they are ahead; one that is fast waits for what is copied."""
    run = made(before, host_us)
    for ahead in (1, 2, 3):
        found = predict_device(run, Setting(prefetch=ahead))
        assert found.recorded_ns.tolist() == spans(run)
        assert found.predicted_ns.tolist() == spans(made(ahead, host_us)), ahead


def test_the_depth_matters_where_the_host_is_slow(made: Make) -> None:
    """Of the gathers of 140 µs, one remains exposed where none is launched ahead."""
    late, ahead = (spans(made(depth, 450))[0][0] for depth in (0, 1))
    assert late - ahead > 100_000
    assert predict(made(0, 450), Setting(prefetch=1)).manifest["prefetch"] == 1


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        (Setting(prefetch=0), "prefetch must be 1 or more"),
        (Setting(prefetch=1, bucket_cap_mb=1.0), "FSDP2 sends no buckets"),
    ],
)
def test_what_makes_no_sense_is_refused(made: Make, setting: Setting, reason: str) -> None:
    with pytest.raises(OverlaplabError, match=reason):
        predict_device(made(1, 10), setting)


def roots() -> list[Event]:
    """One rank's events where the root's modules are roots of their own."""
    events = []
    for own in fsdp(1):
        events.append(own | {"name": own["name"].partition(" (layers")[0]})
        at = own["ts"]
        if events[-1]["name"] == "FSDP::pre_forward":
            events.append(event("FSDP::root_pre_forward", at - 0.3, at - 0.1, cat="user_annotation", tid=own["tid"]))
        if events[-1]["name"] == "FSDP::root_post_backward_callback":
            at += own["dur"]
            events += [own | {"ts": at + number / 10, "dur": 0.05} for number in range(1, len(UNITS))]
    return events


def test_roots_gather_nothing_ahead_for_each_other(tmp_path: Path) -> None:
    run = run_of(tmp_path, roots(), backend="nccl")
    assert set(schedule(run)["unit"]) == {f"root {number}" for number in range(len(UNITS))}
    with pytest.raises(OverlaplabError, match="FSDP2 roots of their own"):
        predict_device(run, Setting(prefetch=2))


def test_units_that_cannot_be_told_apart_are_not_gathered_ahead(tmp_path: Path) -> None:
    """Without the callbacks of each."""
    alike = [own for own in roots() if own["dur"] != 0.05]
    with pytest.raises(OverlaplabError, match="cannot be told apart"):
        predict_device(run_of(tmp_path, alike, backend="nccl"), Setting(prefetch=2))


def test_a_run_of_ddp_gathers_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path, *ddp_ranks([2 << 20]), backend="nccl")
    with pytest.raises(OverlaplabError, match="no all-gathers of torch's FSDP2"):
        predict_device(run, Setting(prefetch=1))
