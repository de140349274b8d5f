"""Other settings of a recorded run: against the event player, the link's formula, and recordings of those settings."""

from __future__ import annotations

from gc import collect
from pathlib import Path
from statistics import fmean, median_low
from weakref import ref

import pytest
from msgspec.structs import replace
from samples import sample_run

import overlaplab
from overlaplab.costs import transfer_ns
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run
from overlaplab.manifest import Link
from overlaplab.simulate import advise
from overlaplab.simulate.player import End, Launch, Program, Wait, Work, play
from overlaplab.simulate.predictions import cpu_answers, what_if
from overlaplab.simulate.predictions.answer import Question, interval, median_step
from overlaplab.simulate.predictions.cpu_answers import playable_plan, playable_schedules
from overlaplab.simulate.predictions.device import device_manifest
from overlaplab.simulate.predictions.error import measured_steps, recorded_caps
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.programs import all_programs
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.vector_player import play_wide, widen

SAMPLES = Path(__file__).parents[3] / "traces"


def linked(run: Run) -> Link:
    assert run.manifest is not None
    assert run.manifest.link is not None
    return run.manifest.link


def median_span_ns(programs: tuple[Program, ...]) -> int:
    result = play(programs)
    return median_low(span for rank in range(len(programs)) for span in result.spans_ns(rank))


@pytest.mark.parametrize("name", ["bucketed", "zero2", "zero3", "ring"])
def test_the_recorded_setting_takes_as_long_as_was_recorded(name: str) -> None:
    run = sample_run(name)
    measured = what_if.measured_span_ns(run)
    found = what_if.answer(run, Question(setting=Setting()))
    assert found.median_span_ns == pytest.approx(measured, rel=0.001)
    spans = overlaplab.summary(run)["span_ns"]
    assert measured == median_low(spans)


@pytest.mark.parametrize(
    "setting",
    [
        Setting(bucket_cap_mb=1.0),
        Setting(link=Link(emulated=True, bandwidth_gbps=0.5, latency_us=3000.0, world_size=2)),
        Setting(bucket_cap_mb=2.0, link=Link(emulated=True, bandwidth_gbps=10.0, latency_us=50.0, world_size=2)),
        Setting(straggler=False),
        Setting(strategy="ring"),
        Setting(strategy="tree", link=Link(emulated=True, bandwidth_gbps=0.5, latency_us=3000.0, world_size=2)),
    ],
)
def test_other_settings_of_the_recorded_ranks_are_what_the_event_player_says(setting: Setting) -> None:
    run = sample_run("bucketed")
    expected = median_span_ns(all_programs(run, setting))
    assert what_if.answer(run, Question(setting=setting)).median_span_ns == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("bucketed", Setting(ranks=64)),
        ("bucketed", Setting(ranks=5, bucket_cap_mb=1.0)),
        ("per-param", Setting(ranks=16)),
        ("zero3", Setting(ranks=9, prefetch=2)),
        ("ring", Setting(ranks=6)),
    ],
)
def test_further_ranks_are_those_of_predict(name: str, setting: Setting) -> None:
    run = sample_run(name)
    result = play(all_programs(run, setting))
    wide = cpu_answers.play_question(run, Question(setting=setting))[1]
    assert wide.ends_ns.T.tolist() == [list(ends) for ends in result.ends_ns]
    assert wide.carried_ns.tolist() == [list(times) for times in result.carried.values()]


@pytest.mark.parametrize("ranks", [None, 2, 8])
def test_over_gloo_alone_a_named_link_times_any_number_of_ranks(ranks: int | None) -> None:
    """Its collectives do not queue, and are waited for in another order than launched."""
    run = sample_run("torch-ddp-gloo")
    assert run.manifest is not None
    assert run.manifest.link is None
    setting = Setting(link=Link(emulated=True, bandwidth_gbps=10.0, latency_us=50.0, world_size=2), ranks=ranks)
    assert what_if.why_not(run) is None
    expected = play(all_programs(run, setting))
    wide = cpu_answers.play_question(run, Question(setting=setting))[1]
    assert wide.ends_ns.T.tolist() == [list(ends) for ends in expected.ends_ns]
    with pytest.raises(OverlaplabError, match=r"without a link\. Name one \(--link"):
        all_programs(run, Setting(ranks=8))


def test_a_collective_keeps_what_it_took_beyond_its_model() -> None:
    run = sample_run("bucketed")
    link = linked(run)
    faster = replace(link, bandwidth_gbps=4.0, latency_us=10.0)
    before, after = (
        cpu_answers.play_question(run, Question(setting=Setting(link=other)))[0] for other in (None, faster)
    )
    for old, new in zip(before.moves, after.moves, strict=True):
        if isinstance(old, Launch) and isinstance(new, Launch) and old.role == "bucket":
            beyond = old.transfer_ns - transfer_ns("all_reduce", old.bytes, link)
            assert new.transfer_ns - transfer_ns("all_reduce", new.bytes, faster) == beyond


def test_ten_thousand_ranks_do_not_queue_messages_around_a_ring() -> None:
    run = sample_run("bucketed")
    ring, chosen = (
        what_if.answer(run, Question(setting=Setting(ranks=10_000), algorithm=how)).median_span_ns
        for how in ("ring", "auto")
    )
    assert ring > 100e9  # 7 buckets of 20 s
    assert chosen < 2e9


def test_by_cap_and_ranks() -> None:
    run = sample_run("bucketed")
    caps = what_if.steps_by_cap(run, Question(setting=Setting()), [0.25, 4.0, 64.0])
    assert caps["buckets"].tolist() == [34, 7, 1]
    assert caps["step_ns"].iloc[1] == pytest.approx(overlaplab.summary(run)["span_ns"].mean(), rel=0.001)
    ranks = what_if.steps_by_ranks(run, Question(setting=Setting(bucket_cap_mb=1.0)), [2, 8, 64])
    assert ranks["step_ns"].is_monotonic_increasing
    assert ranks["throughput"].tolist() == pytest.approx((ranks["step_ns"].iloc[0] / ranks["step_ns"]).tolist())
    assert ranks["held_bytes"].nunique() == 1


def test_no_cap_beats_the_best_buckets_found() -> None:
    run = sample_run("sweep/cap-25")
    best = cpu_answers.best_found_ns(run, Question(setting=Setting(bucket_cap_mb=1.0)))
    assert best is not None
    alone = overlaplab.summary(run).eval("span_ns - exposed_comm_ns").mean()
    assert (
        alone
        < best
        < what_if.steps_by_cap(run, Question(setting=Setting()), [0.25, 0.5, 1.0, 2.0, 25.0])["step_ns"].min()
    )
    more = Setting(ranks=8)
    assert (
        best
        < (cpu_answers.best_found_ns(run, Question(setting=more)) or 0)
        < what_if.answer(run, Question(setting=more)).step_ns
    )
    slower = replace(linked(run), bandwidth_gbps=linked(run).bandwidth_gbps / 4)
    assert (cpu_answers.best_found_ns(run, Question(setting=Setting(link=slower))) or 0) > best
    assert cpu_answers.best_found_ns(run, Question(setting=Setting(strategy="zero1"))) is None
    assert cpu_answers.best_found_ns(run, Question(setting=Setting(), algorithm="auto")) is None
    assert cpu_answers.best_found_ns(sample_run("zero3"), Question(setting=Setting())) is None


def test_each_rank_of_zero3_holds_less_as_there_are_more() -> None:
    manifest = sample_run("zero3").manifest
    whole = what_if.held_bytes(manifest, None, 1)
    assert whole is not None
    assert what_if.held_bytes(manifest, None, 4) == pytest.approx(whole / 4, abs=4)
    assert what_if.held_bytes(manifest, "bucketed", 4) == whole
    assert what_if.held_bytes(None, None, 4) is None


def test_lanes_in_literals() -> None:
    """The second bucket is exposed for 6 of its 10: the rank works for 4 of them, and wakes up for 2."""
    program = widen(
        [[Work(100), End(), Work(10), Launch("a", 5, role="bucket", what="0"), Work(10),
          Launch("b", 10, kind="all_reduce"), Work(4), Wait("b", 2), Work(3), End()]]
    )  # fmt: skip
    table = cpu_answers.lanes(program, play_wide(program), 0, 0)
    assert [tuple(row) for row in table.itertuples(index=False)] == [
        ("rank", "", False, 0, 24),
        ("rank", "", False, 32, 35),
        ("link", "bucket 0", False, 10, 15),
        ("link", "all_reduce", False, 20, 24),
        ("link", "all_reduce", True, 24, 30),
    ]


def test_lanes_of_a_recorded_step_add_up() -> None:
    run = sample_run("bucketed")
    program, result = cpu_answers.play_question(run, Question(setting=Setting()))
    rank, step, span_ns = median_step(result.spans_ns.T)
    table = cpu_answers.lanes(program, result, rank, step)
    took = (table["end_ns"] - table["start_ns"]).groupby([table["lane"], table["exposed"]]).sum()
    assert table["end_ns"].max() == span_ns
    assert took["rank", False] + took["link", True] <= span_ns
    assert took["rank", False] + took["link", True] > 0.98 * span_ns


RECORDED = Path(__file__).parents[2] / "situations" / "recorded"
FASTER = Link(emulated=True, bandwidth_gbps=10.0, latency_us=50.0, world_size=4)


@pytest.mark.parametrize(
    ("path", "setting"),
    [
        *[("pipeline", Setting(microbatches=12)), ("pipeline", Setting(schedule="gpipe", link=FASTER))],
        *[("dp-tp", Setting(link=FASTER)), (RECORDED / "few-microbatches", Setting(microbatches=8, schedule="1f1b"))],
        (RECORDED / "replicas-microbatches", Setting(edits=(("last-all-reduce", None),))),
    ],
)
def test_ranks_that_launch_different_collectives_are_played_as_predict_plays_them(
    path: str | Path, setting: Setting
) -> None:
    run = sample_run(path)
    assert what_if.why_not(run) is None
    answer = what_if.answer(run, Question(setting=setting))
    predicted = predict(run, setting)
    assert answer.step_ns == predicted.step_ns
    assert interval(run, answer, recorded_caps(device_manifest(run), [])).half_ns == predicted.interval.half_ns
    works = answer.lanes[answer.lanes["lane"] == "rank"]
    assert (works["start_ns"] >= 0).all()
    assert 0 < (works["end_ns"] - works["start_ns"]).sum() <= answer.median_span_ns
    assert set(answer.lanes["lane"]) == {"rank", "link"}


@pytest.mark.parametrize("path", [SAMPLES / "pipeline", RECORDED / "few-microbatches"])
def test_a_run_that_was_played_is_not_kept(path: Path) -> None:
    run = overlaplab.load_run(path)
    what_if.answer(run, Question(setting=Setting(microbatches=12)))
    assert playable_plan(run) is not None
    references = ref(run), ref(run.traces[0])
    del run
    collect()
    assert [each() for each in references] == [None, None]


def test_schedules_that_a_pipeline_can_have() -> None:
    """1F1B takes as many microbatches as stages."""
    run = sample_run(RECORDED / "few-microbatches")
    plan = playable_plan(run)
    assert plan is not None
    assert (plan.schedule, plan.microbatches) == ("gpipe", 2)
    assert playable_schedules(run) == ["gpipe"]
    assert playable_schedules(run, 8) == ["gpipe", "1f1b"]
    assert playable_plan(sample_run("dp-tp")) is None


def test_what_cannot_be_told() -> None:
    assert what_if.why_not(sample_run("bucketed")) is None
    foreign = sample_run("ddp-lessons/one-order")
    assert what_if.why_not(foreign) is None  # of its actions it can be told
    with pytest.raises(OverlaplabError, match="what its strategy is has not been recorded, so that its options"):
        cpu_answers.play_question(foreign, Question(setting=Setting(bucket_cap_mb=1.0)))
    with pytest.raises(OverlaplabError, match="of such a run another link is predicted, nothing else"):
        what_if.answer(sample_run("dp-tp"), Question(setting=Setting(bucket_cap_mb=1.0)))
    asynchronous = "its workers do not wait for each other"
    assert str(what_if.why_not(sample_run("parameter-server"))).startswith(asynchronous)
    run = sample_run("bucketed")
    with pytest.raises(OverlaplabError, match="overlaplab predict takes --link and --ranks of a parameter server"):
        cpu_answers.play_question(run, Question(setting=Setting(strategy="parameter-server")))
    assert run.manifest is not None
    bare = replace(run, manifest=replace(run.manifest, link=None))
    with pytest.raises(OverlaplabError, match="without a link"):
        cpu_answers.play_question(bare, Question(setting=Setting(ranks=4)))


@pytest.mark.parametrize(
    "setting",
    [
        Setting(bucket_cap_mb=1.0),
        Setting(link=Link(emulated=True, bandwidth_gbps=0.5, latency_us=3000.0, world_size=2)),
        Setting(straggler=False, accumulate=2),
    ],
)
def test_step_and_interval_are_those_of_predict(setting: Setting) -> None:
    run = sample_run("sweep/cap-25")
    assert run.manifest is not None
    beside = [other for file in (SAMPLES / "sweep").iterdir() if (other := sample_run(f"sweep/{file.name}").manifest)]
    found = what_if.answer(run, Question(setting=setting))
    expected = predict(run, setting)
    assert found.step_ns == expected.step_ns
    assert found.times_as_far == expected.times_as_far
    assert interval(run, found, recorded_caps(run.manifest, beside)) == expected.interval


@pytest.mark.parametrize("cap", [0.4, 1.0, 4.0])
def test_a_cap_gains_what_advise_tells(cap: float) -> None:
    """To the nanosecond, as far as the recorded steps are those that are played."""
    run = sample_run("sweep/cap-25")
    row = advise(run).set_index(["option", "bucket_cap_mb"]).loc[("cap", cap)]
    found = what_if.answer(run, Question(setting=Setting(bucket_cap_mb=cap))).step_ns
    assert found == row["step_ns"] == predict(run, Setting(bucket_cap_mb=cap)).step_ns
    measured = fmean(measured_steps(run))
    assert measured - found == pytest.approx(row["gain_ns"], abs=2)
