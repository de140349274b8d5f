"""Recorded situations, each with its own cause: what is advised first, and what it is predicted to gain.

Most are loops of torch's DDP or FSDP2 under a Recorder, four are of the engine. The remedy of each was recorded as
well, in turns, three times on either side; `gained_ms` is how much shorter its mean step was. Those of a GPU are of
traces/h100/loops, and their gain that of steps that nothing recorded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest
from samples import TRACES, sample_tables

from overlaplab.errors import OverlaplabError
from overlaplab.events import Run
from overlaplab.findings import Advised
from overlaplab.manifest import Link, strategy_traits
from overlaplab.sections.run_tables import RunTables
from overlaplab.simulate.advice.edit_remedies import edit_of_action
from overlaplab.simulate.advice.tried import replayed_spans_ns
from overlaplab.simulate.player import find_launches
from overlaplab.simulate.predictions import what_if
from overlaplab.simulate.predictions.answer import Question
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.programs.buckets import find_recutting, recuttings
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.recorded import recorded_programs
from overlaplab.simulate.undisturbed import recorded_spans_ns

FOLDER = Path(__file__).parent / "recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is right."""

    advice: str
    """How it begins, after `Try`."""
    gained_ms: float | None = None
    """None where the remedy's gain does not show on CPUs."""
    remedy: str | None = None
    """The action that was recorded; None: the first."""
    misses_ms: float | None = None
    """By how much the prediction is known to be off, where that is too much."""


ANSWERS = {
    "01-no_sync-forgotten": Answer(advice="no_sync() in every backward pass but the last", gained_ms=104),
    "02-metrics-all-reduced": Answer(advice="async_op=True for the 6 all-reduces of", gained_ms=35),
    # its four workers share two cores with the ranks, which is not predicted
    "04-dataloader-of-one-rank": Answer(advice="loading data in the background", gained_ms=33, misses_ms=9.1),
    # whether its inputs are larger or it is slower cannot be told: the remedy was the second action
    "05-longer-sequences": Answer(advice="making rank 1 as fast as the others", gained_ms=17, remedy="even_work"),
    # the remedy waited longer than a step, which is what is predicted
    "06a-local-sgd": Answer(advice="async_op=True for the 6 all-reduces of", gained_ms=27.5, misses_ms=9.9),
    "06c-step-per-microbatch": Answer(advice="bucket_cap_mb 0.5", gained_ms=35 / 4),
    "07-embedding-last": Answer(advice="freezing embedding.weight or making its gradient sparse", gained_ms=136),
    "08-broadcast-buffers": Answer(advice="broadcast_buffers=False", gained_ms=35),
    "10-fsdp2-root-only": Answer(advice="fully_shard on each block"),
    "11-fsdp2-tiny-units": Answer(advice="larger units: fully_shard on", gained_ms=202),
    "12n-naive-bound-beaten": Answer(advice="strategy bucketed with bucket_cap_mb", gained_ms=286),
    # the machine was busy: a third of the computation waited for a core
    "13-per-param-latency": Answer(advice="strategy bucketed with bucket_cap_mb 0.47", gained_ms=129, misses_ms=27.6),
    "16e-engine-straggler-bound": Answer(advice="making rank 1 as fast as the others", gained_ms=120),
    "17-dataloader-of-all": Answer(advice="loading data in the background", gained_ms=40, misses_ms=9.0),
    "registration-order": Answer(advice="find_unused_parameters=False, or static_graph=True", gained_ms=34.1),
    "late-rank-changes": Answer(advice="inputs of equal length on all ranks", gained_ms=16.4),
    "19-syncbn": Answer(advice="doing without the 12 all-reduces of", gained_ms=87),
    "after-backward": Answer(
        advice="torch's DistributedDataParallel with bucket_cap_mb 0.09", gained_ms=38.7, misses_ms=8.2
    ),
    # a reduce and a broadcast of each gradient; DistributedDataParallel gained 91 ms
    "reduced-to-one": Answer(advice="torch's DistributedDataParallel: it launches during the backward pass"),
    # ScheduleGPipe of torch.distributed.pipelining, four stages
    "few-microbatches": Answer(advice="8 smaller microbatches", gained_ms=93),
    # of HSDP's two replicas of two ranks, one step; set_requires_all_reduce gained 168 ms
    "replicas-microbatches": Answer(
        advice="set_requires_gradient_sync(False) in every backward pass but the last", gained_ms=258
    ),
    # three models, each in DDP of its own, of which the Recorder is given the first
    "further-models": Answer(advice="No gain is certain. First to try: half the bytes"),
    "blocking-hooks": Answer(advice="torch's DistributedDataParallel with bucket_cap_mb 0.09", gained_ms=41.9),
    "units-freed": Answer(advice="reshard_after_forward=False in fully_shard", gained_ms=39.4),
    "sharded-optimizer": Answer(advice="a whole optimizer on each rank", gained_ms=53.7),
    "barriers": Answer(advice="doing without the 10 barriers", gained_ms=14.6),
    "units-metrics": Answer(advice="one collective in place of the 20 all-reduces", gained_ms=17.3),
    "units-saving": Answer(advice="doing “saving” less often", gained_ms=47.8),
    "two-models": Answer(advice="bucket_cap_mb 0.1 for discriminator", gained_ms=30.1),
    "waiting-hook": Answer(advice="a communication hook that returns its all-reduce's future", gained_ms=35.3),
    # a limit, and recorded launches take longer: the recorded remedy, a CUDA graph, gained 27.8 ms
    "gpu-launches": Answer(advice="fewer launches: CUDA graphs", gained_ms=14.4, misses_ms=12.6),
    "gpu-loader": Answer(advice="loading data in the background", gained_ms=14.5),
    "gpu-microbatches": Answer(advice="no_sync() in every backward pass but the last", gained_ms=37.8),
    "gpu-norms": Answer(advice="no synchronisation within the step: the host waits", gained_ms=4.6, misses_ms=2.1),
    "gpu-one-bucket": Answer(advice="bucket_cap_mb 25", gained_ms=16.0),
    "gpu-pause": Answer(advice="finding what blocks the host", gained_ms=22.3),
    "gpu-saving": Answer(advice="doing “saving” less often", gained_ms=21.7),
}
"""By folder. `12-zero1-one-bucket` is missing, where half the bytes, which gains more, is advised before a cap."""


LOOPS = TRACES / "h100" / "loops"
NAMES = [*sorted(folder.name for folder in FOLDER.iterdir()), *(f"gpu-{each.name}" for each in sorted(LOOPS.iterdir()))]


def tables(name: str) -> RunTables:
    return sample_tables(LOOPS / name.removeprefix("gpu-") if name.startswith("gpu-") else FOLDER / name)


@pytest.mark.parametrize("name", ANSWERS)
def test_the_first_advice_is_the_right_one(name: str) -> None:
    found = tables(name).diagnosis
    assert found is not None
    assert found.advice.removeprefix("Try ").startswith(ANSWERS[name].advice)


@pytest.mark.parametrize("name", [name for name, answer in ANSWERS.items() if answer.gained_ms is not None])
def test_it_gains_what_was_recorded(name: str) -> None:
    """Within a fifth of the gain or 2 % of the step; where it is off by more, by no more than is known."""
    found, answer = tables(name).diagnosis, ANSWERS[name]
    assert found is not None
    assert answer.gained_ms is not None
    assert found.gain_ns == found.actions[0].gain_ns
    best = next(each for each in found.actions if answer.remedy in (None, each.action.name))
    allowed_ms = max(0.2 * answer.gained_ms, 0.02 * (best.step_ns + best.gain_ns) / 1e6)
    missed_ms = abs(best.gain_ns / 1e6 - answer.gained_ms)
    assert missed_ms == pytest.approx(answer.misses_ms, abs=0.1) if answer.misses_ms else missed_ms <= allowed_ms
    assert answer.misses_ms is None or answer.misses_ms > allowed_ms, "it is no miss"


def test_each_of_several_models_has_buckets_and_a_cap_of_its_own() -> None:
    """A GAN's two, of which the second sends all its gradients in one bucket."""
    two = tables("two-models")
    assert find_recutting(two.run) is None
    launched = [[launch.what for launch in find_launches(cut.programs(cut.cut(1))[0])] for cut in recuttings(two.run)]
    steps = two.summary["step"].nunique()
    assert launched == [["0", "1", "2", "4", "5", "6", "3"] * steps, [*"012345678"] * steps]
    diagnosis = two.diagnosis
    assert diagnosis is not None
    assert "No bucket size" not in diagnosis.headline
    caps = [each.text for each in diagnosis.actions if each.action.name == "cap"]
    assert caps == ["bucket_cap_mb 0.1 for discriminator", "bucket_cap_mb 0.09 for generator"]
    assert [*two.buckets.groupby(["rank", "step"]).size()] == [4] * steps * 2


def test_one_models_cap_is_predicted_and_asked_for_once() -> None:
    run = tables("two-models").run
    for value, why in (
        ("critic:1", "no model whose buckets are known is called critic. Known: generator, discriminator"),
        ("generator:none", "none is no cap in MiB. As in --edit model-cap=generator:25"),
        ("generator:nan", "nan is no cap in MiB"),
        ("generator:-1", "-1 is no cap in MiB"),
    ):
        with pytest.raises(OverlaplabError, match=re.escape(why)):
            predict(run, Setting(edits=(("model-cap", value),)))
    for other in (("model-cap", "discriminator:1"), ("half-bytes", None)):
        with pytest.raises(OverlaplabError, match="its buckets are no longer as recorded"):
            predict(run, Setting(edits=(other, ("model-cap", "generator:1"))))


def test_gradients_of_models_without_labels_are_no_other_collectives() -> None:
    """The last two models are alike, and each has its own backward pass before the optimizers' steps."""
    run, found = tables("further-models").run, tables("further-models").diagnosis
    assert found is not None
    assert found.advice.endswith("give the Recorder a module that contains all models.")
    assert not {"earlier", "leave_out", "merge", "asynchronous", "background", "last_pass"} & {
        advised.action.name for advised in found.actions
    }
    recorded, cut = recorded_programs(run), find_recutting(run)
    assert recorded is not None
    assert cut is not None
    for programs, buckets in ((recorded.programs, "0123"), (cut.programs(cut.cut(1)), "014523")):
        each_step = zip(*[iter(find_launches(programs[0]))] * len(buckets), strict=True)
        assert [[launch.what for launch in step] for step in each_step] == [list(buckets)] * 2
        assert {launch.role for launch in find_launches(programs[0])} == {"bucket"}
    assert replayed_spans_ns(run).tolist() == recorded_spans_ns(run).tolist()


def test_collectives_of_groups_that_share_ranks_are_played_as_recorded() -> None:
    """How long one takes does not depend on what other ranks send; launching it did not take what it waited for."""
    run, diagnosis = tables("replicas-microbatches").run, tables("replicas-microbatches").diagnosis
    recorded = recorded_programs(run)
    assert recorded is not None
    averages = list(find_launches(recorded.programs[0], "replicas"))
    assert {launch.bytes for launch in averages} == {50_000}
    assert all(4.5e6 < launch.transfer_ns < 8e6 for launch in averages), "500 µs, and 8 bits in 10 ns"
    assert median(launch.host_ns for launch in averages) < 0.5e6
    assert replayed_spans_ns(run) == pytest.approx(recorded_spans_ns(run), rel=0.001)
    assert diagnosis is not None
    scattered = next(each for each in diagnosis.actions if each.action.name == "last_all_reduce")
    assert scattered.gain_ns / 1e6 == pytest.approx(168, abs=48)  # a single step; three recordings of all: 137


def test_collectives_of_groups_take_as_long_as_their_own_ranks() -> None:
    """Two replicas of two shards, run.json without a mesh, recorded behind a link: the formula of two ranks holds."""
    run = tables("replicas-microbatches").run
    link = Link(emulated=True, bandwidth_gbps=0.1, latency_us=500, world_size=4)
    played_ns = what_if.answer(run, Question(setting=Setting(link=link))).mean_ns
    assert played_ns == pytest.approx(recorded_spans_ns(run).mean(), rel=0.02)
    with pytest.raises(OverlaplabError, match="it has collectives among a part of its ranks"):
        what_if.answer(run, Question(setting=Setting(link=link, ranks=8)))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_listed_adds_up(name: str) -> None:
    found = tables(name).diagnosis
    assert found is not None
    assert sum(share.exposed_ns for share in found.causes) == found.exposed_ns
    certain = [each.is_certain for each in found.actions]
    assert certain == sorted(certain, reverse=True), "what cannot be told from nothing comes last"
    assert all(0 < each.gain_ns < each.gain_ns + each.step_ns for each in found.actions)
    played = {each.text for each in found.actions}
    assert all(not share.remedy or share.remedy in played for share in found.causes if share.replayed)


def setting_of(action: Advised, run: Run) -> Setting | None:
    """What `predict` and What if are asked for to get the same; None of more microbatches."""
    match action.action.name:
        case "cap" if action.what is None and ((traits := strategy_traits(run.manifest)) is None or traits.buckets):
            return Setting(bucket_cap_mb=action.setting)
        case "cap" if action.what is not None:
            return Setting(edits=(("model-cap", f"{action.what}:{action.setting:g}"),))
        case "cap":
            return Setting(strategy="bucketed", bucket_cap_mb=action.setting)
        case "strategy" | "library_collectives":
            return Setting(strategy=action.what)
        case "microbatches":  # `predict` plays more microbatches, not smaller ones
            return None
        case "first_bucket":
            return Setting(first_bucket_mb=action.setting)
        case "prefetch":
            return Setting(prefetch=int(action.setting or 0))
        case "one_gradient_less":
            return Setting(without_parameter=action.what)
    edit = edit_of_action(action.action.name, action.setting, action.what)
    assert edit is not None
    return Setting(edits=(edit,))


@pytest.mark.parametrize("name", NAMES)
def test_an_action_gains_what_its_setting_is_predicted_to(name: str) -> None:
    """Summary, What if and `predict` are asked the same, and give the same figure."""
    run, found = tables(name).run, tables(name).diagnosis
    assert found is not None
    assert what_if.why_not(run) is None
    for action in found.actions:
        if (setting := setting_of(action, run)) is not None:
            assert what_if.answer(run, Question(setting=setting)).step_ns == action.step_ns, action.text
            assert predict(run, setting).step_ns == action.step_ns, action.text


@pytest.mark.parametrize("name", NAMES)
def test_every_rank_and_step_is_advised_the_same(name: str) -> None:
    run = tables(name)
    rows = run.summary[["rank", "step"]].to_numpy().tolist()
    played = {found.advice for at in rows if (found := run.find_diagnosis(*at)) and found.gain_ns}
    assert len(played) <= 1
