"""Other buckets of torch's DDP on GPUs: recorded with one cap, predicted and made with another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import count, cycle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made.ddp import ELEMENTS, ddp_ranks, transfer_us
from made.gpu import Event
from made.traces import run_of
from msgspec.structs import replace

from overlaplab import OverlaplabError, Run, collectives, load_run, summary
from overlaplab.analyses import slowdowns
from overlaplab.analyses.transfer_lines import fitted_lines
from overlaplab.manifest import Link
from overlaplab.report.predicted_run import write_run
from overlaplab.sections.what_if import caps_tried, what_if_parts
from overlaplab.simulate import gains
from overlaplab.simulate.advice.tried import device_settings
from overlaplab.simulate.gpus.buckets import is_of_one_size
from overlaplab.simulate.predictions.answer import Question
from overlaplab.simulate.predictions.device import predict_device
from overlaplab.simulate.predictions.device_answers import option_or_why
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.predictions.what_if import why_not
from overlaplab.simulate.programs.setting import Setting

MIB = 1 << 20
CAPS = ((0.1,), (2.0,), (4.0,), (5.0,), (64.0,), (0.1, 4.0))
"""MiB: each gradient for itself; buckets of 4 and 2; of 5 and 1; all in one; the first alone."""

UNSTEADY_US = cycle((50, 400, 900))

NONE_RECORDED = pd.DataFrame({"bucket_cap_mb": [], "step_ns": []}, dtype="float64")

Make = Callable[..., Run]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    @cache
    def make(*caps: float, **how: Any) -> Run:
        ranks = ddp_ranks([int(cap * MIB) for cap in caps], **how)
        return run_of(tmp_path_factory.mktemp("run"), *ranks, backend="nccl")

    yield make
    make.cache_clear()


def spans(run: Run) -> list[list[int]]:
    return [own["span_ns"].tolist() for _, own in summary(run).groupby("rank")]


def setting(caps: tuple[float, ...]) -> Setting:
    return Setting(bucket_cap_mb=caps[-1], first_bucket_mb=caps[0] if len(caps) > 1 else None)


def test_the_caps_give_different_buckets(made: Make) -> None:
    sizes = {caps: tuple(collectives(made(*caps)).query("rank == 0 and step == 3")["bytes"]) for caps in CAPS}
    assert [len(own) for own in sizes.values()] == [6, 3, 2, 2, 1, 3]
    assert len(set(sizes.values())) == len(CAPS)


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("before", [(2.0,), (5.0,), (0.1, 4.0)])
def test_another_cap_is_predicted_to_the_nanosecond(made: Make, before: tuple[float, ...], *, copies: bool) -> None:
    run = made(*before, copies=copies)
    for caps in CAPS:
        found = predict_device(run, setting(caps))
        assert found.predicted_ns.tolist() == spans(made(*caps, copies=copies)), caps
        assert found.recorded_ns.tolist() == spans(run)
        assert found.transfers_ns == 0  # the line meets all transfers


def test_where_the_host_is_late_launches_cost_its_time(made: Make) -> None:
    """Kernels of 3 µs: the host launches for longer than the device works."""
    how: dict[str, Any] = {
        "backward_us": (3, 3),
        "forward_us": 1,
        "transfer": lambda num_bytes: 1 + num_bytes // 400_000,
    }
    run = made(2.0, **how)
    for caps in ((0.1,), (5.0,)):
        played, truth = predict_device(run, setting(caps)).predicted_ns.tolist(), spans(made(*caps, **how))
        for found, expected in zip(played, truth, strict=True):
            assert found == pytest.approx(expected, abs=4_000)  # where a launch and the device's queue come together
    assert truth[0][1] != pytest.approx(spans(run)[0][1], abs=4_000)


def test_a_link_tells_how_long_buckets_take(made: Make) -> None:
    """Of a single size no line is known; 80 Gbit/s and 10 µs are those of the made transfers."""
    run, link = made(64.0), Link(emulated=True, bandwidth_gbps=80.0, latency_us=10.0, world_size=2)
    with pytest.raises(OverlaplabError, match="are of one size: how long others would take is not known"):
        predict_device(run, Setting(bucket_cap_mb=2.0))
    found = predict_device(run, Setting(bucket_cap_mb=2.0, link=link))
    assert found.predicted_ns.tolist() == spans(made(2.0))


def test_of_one_size_the_default_cap_is_played_alone(made: Make) -> None:
    """T is in proportion to the bytes: of 20 µs and 1 µs for each 10,000 bytes, the latency is hardly any."""
    elements = tuple(each * 20 for each in ELEMENTS)
    run, truth = (made(cap, elements=elements, backward_us=(3000, 3000)) for cap in (1000.0, 25.0))
    assert is_of_one_size(run)
    assert not is_of_one_size(truth)
    (found,) = device_settings(run)
    assert (found.option, found.value) == ("cap", 25.0)
    assert found.spans_ns == pytest.approx(np.array(spans(truth)), rel=0.01)
    best = gains(run).set_index("remedy").loc["cap"]
    assert best["setting"] == 25
    assert caps_tried(run) == [25.0, 50.0, 100.0]
    assert "bucket_cap_mb=25" in what_if_parts(run, Question(setting=Setting()), NONE_RECORDED, None).advice
    with pytest.raises(OverlaplabError, match="below 25 MiB"):
        predict_device(run, Setting(bucket_cap_mb=10.0))
    with pytest.raises(OverlaplabError, match="below 25 MiB"):
        predict_device(run, Setting(bucket_cap_mb=25.0, first_bucket_mb=1.0))


def test_the_line_s_residuals_widen_the_interval(made: Make) -> None:
    """All gradients in one bucket: what T is off, the step is."""
    numbers = count()
    run = made(2.0, transfer=lambda num_bytes: transfer_us(num_bytes) + (0, 7, 2, 5)[next(numbers) % 4])
    (line,) = fitted_lines(run)
    found = predict(run, Setting(bucket_cap_mb=64.0))
    assert line.half_ns is not None
    assert found.interval.transfers_ns == round(line.half_ns) > 5_000
    assert found.interval.half_ns > found.interval.transfers_ns
    assert predict(run, Setting(bucket_cap_mb=2.0)).interval.transfers_ns == 0


def test_the_predicted_run_has_the_other_buckets(made: Make, tmp_path: Path) -> None:
    found = predict(made(2.0), Setting(bucket_cap_mb=5.0))
    assert found.manifest["bucket_cap_mb"] == 5.0
    assert predict(made(2.0), Setting(bucket_cap_mb=5.0, first_bucket_mb=0.1)).manifest["first_bucket_mb"] == 0.1
    assert found.times_as_far == {"bytes": 2.33}
    write_run(tmp_path / "predicted", found.manifest, found.ranks)
    again = load_run(tmp_path / "predicted", cache=False)
    assert spans(again) == spans(made(5.0))
    sizes = ["rank", "step", "bytes"]
    assert collectives(again)[sizes].to_numpy().tolist() == collectives(made(5.0))[sizes].to_numpy().tolist()


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"shapes": False}, "the sizes of its gradients are not known"),
        ({"forwards": 2}, "2 modules under DDP have one backward pass"),
        ({"steps": 1, "elements": (600_000, 300_000)}, "2 transfers of its all-reduces do not show"),
        ({"transfer": lambda _: next(UNSTEADY_US)}, "do not take as long as their sizes say"),
    ],
)
def test_what_does_not_tell_is_refused(made: Make, how: dict[str, Any], reason: str) -> None:
    with pytest.raises(OverlaplabError, match=reason):
        predict_device(made(2.0, **how), Setting(bucket_cap_mb=64.0))


def test_settings_that_make_no_sense_are_refused(made: Make) -> None:
    for asked, reason in (
        (Setting(accumulate=4), "nothing but the link, the ranks, DDP's caps"),
        (Setting(bucket_cap_mb=0.0), "bucket_cap_mb must be above 0"),
        (Setting(first_bucket_mb=1.0), "the cap of its other buckets is not known"),
    ):
        with pytest.raises(OverlaplabError, match=reason):
            predict_device(made(2.0), asked)


def test_the_page_what_if_plays_actions_and_says_why_it_plays_no_caps(made: Make) -> None:
    assert option_or_why(made(2.0)) == "bucket_cap_mb"
    unknown = made(2.0, shapes=False)
    alone = replace(made(2.0), traces=made(2.0).traces[:1])
    for run, why in (
        (unknown, "the sizes of its gradients are not known"),
        (alone, "when all ranks had come to a bucket's all-reduce is not known of all"),
    ):
        assert why_not(run) is None
        assert why in str(option_or_why(run))
        parts = what_if_parts(
            run, Question(setting=Setting(edits=(("no-launch-overhead", None),))), NONE_RECORDED, None
        )
        assert (parts.option_charts, parts.growth_charts) == ([], [])
        assert "step" in parts.headline


def test_ranks_must_agree_on_the_order(tmp_path: Path) -> None:
    first, second = ddp_ranks([2 * MIB])
    swapped = {100_000: 400_000, 400_000: 100_000}
    for each in second:
        if each["name"] == "torch::autograd::AccumulateGrad":
            each["args"]["Input Dims"] = [[swapped.get(size, size)] for (size,) in each["args"]["Input Dims"]]
    with pytest.raises(OverlaplabError, match="gradients arrive in different orders"):
        predict_device(run_of(tmp_path, first, second, backend="nccl"), Setting(bucket_cap_mb=5.0))


def test_a_run_without_ddp_has_no_buckets(tmp_path: Path) -> None:
    def plain(rank: list[Event]) -> list[Event]:
        ours = ("DistributedDataParallel", "reducer")
        return [each for each in rank if not any(word in each["name"] for word in ours)]

    run = run_of(tmp_path, *map(plain, ddp_ranks([2 * MIB])), backend="nccl")
    with pytest.raises(OverlaplabError, match="no buckets of torch's DDP are recorded"):
        predict_device(run, Setting(bucket_cap_mb=5.0))


def test_kernels_are_slower_beside_what_they_then_run_beside(made: Make) -> None:
    """Backward passes' kernels take twice as long beside all-reduces: seen where steps differ in what is hidden.

    Measured are 1.995 times, since one of them runs beside its all-reduce for 99 % of its time.
    """
    how: dict[str, Any] = {"slowdown": 1, "steps": 4, "backward_us": (100, 100)}
    run = made(2.0, at_once=2, **how)
    table = slowdowns(run).set_index("name")
    assert table.loc["gemm_backward", "slowdown"] == pytest.approx(1.0, abs=0.01)
    assert table.loc["mul", "slowdown"] == 0
    for caps in ((0.1,), (2.0,), (5.0,), (64.0,)):
        found, truth = predict_device(run, setting(caps)), spans(made(*caps, **how))
        for own, expected in zip(found.predicted_ns.tolist(), truth, strict=True):
            assert own == pytest.approx(expected, rel=1e-3), caps
        assert found.recorded_ns.tolist() == spans(run)
    without = spans(made(0.1, **how | {"slowdown": 0}))
    assert truth[0][0] / without[0][0] > 1.05
