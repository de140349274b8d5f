"""What programs keep of the recorded run, what a setting changes in them, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from made.gpu import bucketed as on_a_gpu
from made.traces import run_of
from msgspec.structs import replace
from samples import TRACES, sample_run, unlabelled, with_recorders_labels

import overlaplab
from overlaplab import simulate
from overlaplab.costs import hops_ns, transfer_ns
from overlaplab.errors import OverlaplabError
from overlaplab.manifest import Link, Manifest, Parameter
from overlaplab.simulate.player import End, Launch, Mark, Move, Program, Wait, Work, find_launches, play
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.programs import all_programs, made_programs
from overlaplab.simulate.programs.buckets import find_recutting
from overlaplab.simulate.programs.model import RecordedModel, owned_elements
from overlaplab.simulate.programs.options import strategy_options
from overlaplab.simulate.programs.profile import work_profile
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.recorded import recorded_programs

MIB = 1 << 20
RECORDED = Path(__file__).parents[2] / "situations" / "recorded"


@pytest.fixture(scope="module")
def bucketed() -> overlaplab.Run:
    return sample_run("bucketed")


def launches(program: Program) -> list[Launch]:
    return [move for move in program if isinstance(move, Launch)]


def test_without_changes_it_is_the_recorded_run(bucketed: overlaplab.Run) -> None:
    recorded = recorded_programs(bucketed)
    assert recorded is not None
    assert all_programs(bucketed, Setting()) == recorded.programs
    manifest = bucketed.manifest
    assert manifest is not None
    same = Setting(strategy="bucketed", bucket_cap_mb=manifest.bucket_cap_mb, ranks=2, link=manifest.link, accumulate=1)
    assert all_programs(bucketed, same) == recorded.programs


def test_an_fsdp2_root_without_parameters_is_neither_gathered_nor_scattered() -> None:
    """All parameters of this loop's model lie in its layers."""
    run = overlaplab.load_run(RECORDED / "04-dataloader-of-one-rank")
    link = Link(emulated=True, bandwidth_gbps=1, latency_us=500, world_size=2)
    launched = launches(all_programs(run, Setting(strategy="torch-fsdp2", link=link))[0])
    moved = {
        (launch.kind, (launch.what or "").split()[0]) for launch in launched if launch.role in ("gather", "scatter")
    }
    layers = [f"layers.{number}" for number in range(6)]
    assert moved == {(kind, layer) for kind in ("all_gather", "reduce_scatter") for layer in layers}


def test_another_link_changes_t_alone(bucketed: overlaplab.Run) -> None:
    assert bucketed.manifest is not None
    assert bucketed.manifest.link is not None
    before = bucketed.manifest.link
    after = replace(before, latency_us=before.latency_us + 500, world_size=7)  # it is the run that has the ranks
    for old, new in zip(all_programs(bucketed, Setting()), all_programs(bucketed, Setting(link=after)), strict=True):
        longer = [now.transfer_ns - then.transfer_ns for then, now in zip(launches(old), launches(new), strict=True)]
        assert set(longer) == {2 * 500_000}  # two messages in a row
        assert [move for move in new if not isinstance(move, Launch)] == [
            move for move in old if not isinstance(move, Launch)
        ]


def test_another_link_changes_t_of_each_group_by_its_size() -> None:
    """Groups of two of a mesh's four ranks: two messages in a row."""
    run = sample_run("dp-tp")
    assert run.manifest is not None
    assert run.manifest.link is not None
    after = replace(run.manifest.link, latency_us=run.manifest.link.latency_us + 500)
    for old, new in zip(all_programs(run, Setting()), all_programs(run, Setting(link=after)), strict=True):
        longer = [now.transfer_ns - then.transfer_ns for then, now in zip(launches(old), launches(new), strict=True)]
        assert set(longer) == {2 * 500_000}
        assert {len(move.group or ()) for move in launches(new)} == {2}
    assert {move.role for move in launches(new)} == {"bucket", "activations"}


@pytest.mark.parametrize(
    "others", [{"link": Link(emulated=True, bandwidth_gbps=0.25, latency_us=1000.0, world_size=2)}, {"ranks": 8}]
)
def test_an_edit_of_buckets_takes_the_link_and_ranks_that_are_asked_for(
    bucketed: overlaplab.Run, others: dict[str, Any]
) -> None:
    """The cap of the only model is the run's."""
    cap = predict(bucketed, Setting(bucket_cap_mb=1.0, **others))
    edit = ("model-cap", "the model with embedding.tokens.weight:1")
    assert predict(bucketed, Setting(edits=(edit,), **others)).step_ns == cap.step_ns
    with pytest.raises(OverlaplabError, match="its buckets are no longer as recorded"):
        predict(bucketed, Setting(edits=(("half-bytes", None), edit), **others))
    ddp = overlaplab.load_run(RECORDED / "registration-order")
    slow = Link(emulated=True, bandwidth_gbps=0.05, latency_us=1000.0, world_size=2)
    behind: dict[str, Any] = others | {"link": slow}
    by_arrival, by_arrival_behind = (
        predict(ddp, Setting(edits=(("arrival-order", None),), **each)).step_ns for each in ({}, behind)
    )
    assert by_arrival < by_arrival_behind < predict(ddp, Setting(**behind)).step_ns


@pytest.mark.parametrize(
    ("setting", "caps"),
    [
        (Setting(bucket_cap_mb=0.1), (0.1, None)),
        (Setting(bucket_cap_mb=4.0, first_bucket_mb=0.1), (4.0, 0.1)),
        (Setting(caps_mb=(0.1, 4.0)), (4.0, 0.1)),
        (Setting(caps_mb=(4.0, 2.0, 1.0)), (None, None)),
        (Setting(strategy="torch-ddp"), (4.0, None)),
        (Setting(strategy="naive"), (None, None)),
    ],
)
def test_the_predicted_run_json_names_the_caps(
    bucketed: overlaplab.Run, setting: Setting, caps: tuple[float | None, float | None]
) -> None:
    fields = predict(bucketed, setting).manifest
    assert (fields["bucket_cap_mb"], fields["first_bucket_mb"]) == caps


def test_ddps_first_bucket_is_as_large_as_a_cap_that_is_asked_for() -> None:
    """The sample's buckets of 4 MiB are in order of arrival."""
    cut = find_recutting(sample_run("torch-ddp"))
    assert cut is not None
    assert cut.buckets is not None
    assert cut.cut_by_arrival() is None
    unlike = replace(cut, buckets=cut.cut(4 * MIB)[::-1])
    assert [set(names) for names in unlike.cut_by_arrival() or ()] == [set(names) for names in cut.buckets]
    default = replace(unlike, ddp_cap=25 * MIB)
    assert [set(names) for names in default.cut_by_arrival() or ()] == [set(names) for names in cut.cut(MIB, 25 * MIB)]


def test_hops_keep_what_each_took_beyond_the_formula() -> None:
    """A ring of 8 has 14 hops, where the recorded one of 4 has 6."""
    run = sample_run("ring")
    assert run.manifest is not None
    assert run.manifest.link is not None
    before, after = (replace(run.manifest.link, world_size=ranks) for ranks in (4, 8))
    for old, new in zip(
        launches(all_programs(run, Setting())[0]), launches(all_programs(run, Setting(ranks=8))[0]), strict=True
    ):
        late_ns = old.transfer_ns - hops_ns(old.bytes, before, "ring")
        assert new.transfer_ns - hops_ns(new.bytes, after, "ring") == pytest.approx(late_ns * 14 / 6, abs=1)
    cap = launches(all_programs(run, Setting(bucket_cap_mb=0.5))[0])
    late = [move.transfer_ns - hops_ns(move.bytes, before, "ring") for move in cap]
    assert len(set(late)) == 1
    assert late[0] > 0


def test_a_server_alone_updates(bucketed: overlaplab.Run) -> None:
    """It gets a message of each other rank, and sends each one back; ranks beyond the recorded ones work as rank 1."""
    programs = all_programs(bucketed, Setting(strategy="parameter-server", ranks=4))
    lanes = [sorted({move.lane for move in launches(program)}) for program in programs]
    assert lanes == [
        [(0, 1), (0, 2), (0, 3), (1, 0), (2, 0), (3, 0)],
        *([(0, worker), (worker, 0)] for worker in (1, 2, 3)),
    ]
    updates = [sum(isinstance(move, Mark) and move.word == "update" for move in program) for program in programs]
    assert updates[0] > 0
    assert updates[1:] == [0, 0, 0]
    worked = [[move for move in program if isinstance(move, Work)][1:] for program in programs]  # they begin apart
    assert worked[1] == worked[2] == worked[3]
    with pytest.raises(OverlaplabError, match="no more than 64 ranks are played one by one"):
        all_programs(bucketed, Setting(strategy="parameter-server", ranks=65))
    with pytest.raises(OverlaplabError, match="messages to a server are not played for many ranks at once"):
        made_programs(bucketed, Setting(strategy="parameter-server"))


def test_a_clipped_run_predicts_no_server(bucketed: overlaplab.Run) -> None:
    assert bucketed.manifest is not None
    clipped = replace(bucketed.manifest, raw=bucketed.manifest.raw | {"command": ["--clip-norm", "1"]})
    with pytest.raises(OverlaplabError, match="also sends the norm by which gradients are clipped"):
        strategy_options(replace(bucketed, manifest=clipped), clipped, Setting(strategy="parameter-server"))


def test_further_ranks_draw_their_steps(bucketed: overlaplab.Run) -> None:
    """The same ones each time, behind a link of so many ranks; those that were recorded keep theirs."""
    programs = all_programs(bucketed, Setting(ranks=5))
    assert programs == all_programs(bucketed, Setting(ranks=5))
    assert len(programs) == 5
    two = all_programs(bucketed, Setting(ranks=2, accumulate=2))
    five = all_programs(bucketed, Setting(ranks=5, accumulate=2))
    for own, same in zip(two, five, strict=False):
        assert [move for move in own if isinstance(move, Work)] == [move for move in same if isinstance(move, Work)]
    assert bucketed.manifest is not None
    assert bucketed.manifest.link is not None
    link = replace(bucketed.manifest.link, world_size=5)
    recorded = all_programs(bucketed, Setting())[0]
    for own, before in zip(launches(programs[4]), launches(recorded), strict=True):
        model_ns, model_before_ns = (transfer_ns(own.kind, own.bytes, each) for each in (link, bucketed.manifest.link))
        assert own.transfer_ns - model_ns == before.transfer_ns - model_before_ns
    assert all(len(play(programs).spans_ns(rank)) == 3 for rank in range(5))


def test_without_a_straggler_all_ranks_work_alike(bucketed: overlaplab.Run) -> None:
    first, second = all_programs(bucketed, Setting(straggler=False))
    assert first == second
    worked = [
        sum(move.ns for move in program if isinstance(move, Work)) for program in all_programs(bucketed, Setting())
    ]
    assert sum(move.ns for move in first if isinstance(move, Work)) == min(worked)
    first, second = all_programs(bucketed, Setting(straggler=False, bucket_cap_mb=1))
    assert first == second


def test_work_is_kept(bucketed: overlaplab.Run) -> None:
    """Other buckets cost other launches, and nothing else."""
    for cap in (1.0, 100.0):
        for old, new in zip(
            all_programs(bucketed, Setting()), all_programs(bucketed, Setting(bucket_cap_mb=cap)), strict=True
        ):
            costs = [sum(2 * move.host_ns for move in launches(program)) for program in (old, new)]
            works = [sum(move.ns for move in program if isinstance(move, Work)) for program in (old, new)]
            assert works[1] - costs[1] == pytest.approx(works[0] - costs[0], rel=0.001)


def nothing(kind: str, num_bytes: int) -> int:
    """Collectives displace nothing."""
    del kind, num_bytes
    return 0


PROGRAM: list[Move] = [
    *(Work(5), End(), Work(7), Mark("forward", "0"), Work(10), Mark("backward", "0"), Work(20), Mark("gradient", "w")),
    *(Work(4), Launch("a", 30, role="bucket", host_ns=3), Work(6), Mark("backward_end"), Wait("a", 2), Work(1)),
    *(Mark("optimizer"), Work(1), Mark("update", "u"), Work(8), Mark("update_end", "u"), Mark("optimizer_end")),
    *(Work(9), End()),
]


def test_a_profile_is_the_work_without_its_communication() -> None:
    """Of the launch's 2 x 3 ns, 3 are taken from what is before it."""
    profile = work_profile([PROGRAM], nothing, sharded=False)
    (step,) = profile.ranks[0]
    assert step.lead == [Work(7)]
    assert step.passes == [
        [
            *(Mark("forward", "0"), Work(10), Mark("backward", "0"), Work(20), Mark("gradient", "w")),
            *(Work(1), Work(3), Mark("backward_end"), Work(1)),
        ]
    ]
    assert (step.updates_ns, step.overhead_ns, step.after_optimizer) == ({"u": 8}, 1, [Work(9)])
    assert (profile.host_ns, profile.wake_ns, profile.order) == (3, 2, ["w"])


def test_a_launch_that_is_waited_for_at_once_costs_half() -> None:
    moves = [End(), Mark("forward", "0"), Work(9), Launch("a", 30, host_ns=3), Work(1), Wait("a"), Work(9), End()]
    (step,) = work_profile([moves], nothing, sharded=False).ranks[0]
    assert step.passes == [[Mark("forward", "0"), Work(6), Work(0), Work(9)]]


def test_the_work_of_a_profile_pauses_no_longer_than_it_takes() -> None:
    moves = [End(), Mark("forward"), Work(9, 9, 9), Launch("a", 1, host_ns=2), Work(8, 8, 8), Wait("a"), End()]
    (step,) = work_profile([moves], nothing, sharded=False).ranks[0]
    assert step.passes == [[Mark("forward"), Work(7, 7, 7), Work(6, 6, 6)]]


def test_a_profile_is_without_what_collectives_displaced() -> None:
    """T is 30, of which 10 are displaced: a third of 6 until the wait, and nothing after it."""
    launch = Launch("a", 30, displaced_ns=10)
    moves = [End(), Mark("forward", "0"), Work(9), launch, Work(6), Wait("a"), Work(9), End()]
    (step,) = work_profile([moves], nothing, sharded=False).ranks[0]
    assert step.passes == [[Mark("forward", "0"), Work(9), Work(4), Work(9)]]


def test_updates_of_a_server_are_everybodys() -> None:
    worker = [move for move in PROGRAM if move != Work(8) and not (isinstance(move, Mark) and "update" in move.word)]
    profile = work_profile([PROGRAM, worker], nothing, sharded=False, served=True)
    assert [(steps[0].updates_ns, steps[0].overhead_ns) for steps in profile.ranks] == [({"u": 8}, 1)] * 2


def test_updates_of_parts_add_up() -> None:
    profile = work_profile([PROGRAM, PROGRAM], nothing, sharded=True)
    assert [steps[0].updates_ns for steps in profile.ranks] == [{"u": 16}] * 2


def test_what_a_rank_owns_of_flat_buffers() -> None:
    """Ten elements for three ranks: four each, the last has two."""
    sizes = {"a": 3, "b": 7, "c": 3}
    parameters = {
        name: Parameter(name=name, shape=(count,), dtype="float32", bytes=4 * count) for name, count in sizes.items()
    }
    model = RecordedModel(
        manifest=Manifest(format_version=1, world_size=3),
        parameters=parameters,
        units={"u": ("a", "b"), "v": ("c",)},
        uses=["u", "v"],
        order=list(sizes),
    )
    parts = [owned_elements(model, [["a", "b"], ["c"]], rank, 3) for rank in range(3)]
    assert parts == [{"a": 3, "b": 1, "c": 1}, {"a": 0, "b": 4, "c": 1}, {"a": 0, "b": 2, "c": 1}]
    assert [model.share(part, "u") for part in parts] == [0.4, 0.4, 0.2]
    assert model.share(parts[0], "") == 5 / 13


def test_caps_are_those_given_or_recorded_or_ddps_own(bucketed: overlaplab.Run) -> None:
    """DDP's first bucket is smaller only where nobody gives a cap."""
    naive = sample_run("naive")
    assert naive.manifest is not None
    assert bucketed.manifest is not None
    recorded = bucketed.manifest.bucket_cap_mb or 0
    for run, setting, caps in (
        (naive, Setting(strategy="torch-ddp"), (dist._DEFAULT_FIRST_BUCKET_BYTES, 25 * MIB)),
        (naive, Setting(strategy="torch-ddp", bucket_cap_mb=3), (3 * MIB,)),
        (naive, Setting(strategy="bucketed"), (25 * MIB,)),
        (bucketed, Setting(strategy="torch-ddp"), (int(recorded * MIB),)),
        (bucketed, Setting(first_bucket_mb=0.5), (MIB // 2, int(recorded * MIB))),
    ):
        assert run.manifest is not None
        assert strategy_options(run, run.manifest, setting).caps == caps


@pytest.mark.parametrize(
    ("sample", "setting", "words"),
    [
        ("bucketed", Setting(strategy="nobodys"), "no strategy nobodys is known. Known: naive, "),
        ("bucketed", Setting(prefetch=2), "bucketed gathers no units ahead"),
        ("naive", Setting(bucket_cap_mb=2), "naive sends no buckets"),
        ("torch-ddp", Setting(first_bucket_mb=2), "torch-ddp has no option for its first bucket"),
        ("bucketed", Setting(caps_mb=(4, 1), bucket_cap_mb=2), "a list of caps leaves no room for another cap"),
        ("bucketed", Setting(caps_mb=(4, 1), first_bucket_mb=2), "a list of caps leaves no room for another cap"),
        ("bucketed", Setting(accumulate=0), "accumulate must be above 0, not 0"),
        ("bucketed", Setting(ranks=65), "no more than 64 ranks"),
        ("bucketed", Setting(strategy="zero3"), "where units' passes begin and end. Record it anew"),
        ("naive", Setting(strategy="tensor"), "tensor cuts layers: from its recording only another link"),
        ("dp-tp", Setting(ranks=8), "(dp 2 × tp 2): of such a run another link is predicted, nothing else"),
        ("tensor", Setting(straggler=False), "(tp 2): of such a run another link is predicted, nothing else"),
        ("parameter-server", Setting(), "its workers do not wait for each other, which is not predicted. Predict from"),
        ("torch-ddp-gloo", Setting(strategy="bucketed"), "how long its all_reduce of other sizes take is not known"),
        ("ddp-lessons/one-order", Setting(bucket_cap_mb=1), "predict takes --edit of it"),
        ("ddp-lessons/one-order", Setting(caps_mb=(4, 1), bucket_cap_mb=2), "a list of caps leaves no room"),
    ],
)
def test_what_cannot_be_told_is_one_line(sample: str, setting: Setting, words: str) -> None:
    with pytest.raises(OverlaplabError) as refused:
        all_programs(sample_run(sample), setting)
    assert words in str(refused.value)
    assert str(TRACES / sample) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_runs_that_tell_too_little_are_refused(tmp_path: Path) -> None:
    plain, gpu, one = (tmp_path / name for name in ("plain", "gpu", "one"))
    plain.mkdir()
    shutil.copytree(TRACES / "naive", one, ignore=shutil.ignore_patterns("rank1*"))
    for run, words in (
        (overlaplab.load_run(unlabelled(TRACES / "naive", plain)), "its traces do not show what every rank launched"),
        (overlaplab.load_run(one), "1 of 2 ranks are there"),
        (run_of(gpu, on_a_gpu(), backend="nccl"), "only runs on a CPU"),
    ):
        with pytest.raises(OverlaplabError, match=words):
            all_programs(run, Setting(link=Link(emulated=True, bandwidth_gbps=1, latency_us=1, world_size=2)))


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"world_size": 1}, "run.json says 1, and there are traces of 2 ranks"),
        ({"param_dtype": "nf4"}, "how large its type nf4 is, is not known"),
        ({"reduce_dtype": "nf4"}, "how large its type nf4 is, is not known"),
    ],
)
def test_a_run_json_that_cannot_be_is_refused(tmp_path: Path, written: dict[str, Any], words: str) -> None:
    shutil.copytree(TRACES / "zero3", tmp_path / "run")
    manifest = json.loads((TRACES / "zero3" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(manifest | written))
    run = overlaplab.load_run(tmp_path / "run")
    with pytest.raises(OverlaplabError, match=words):
        all_programs(run, Setting(prefetch=2))
    simulate.remedies(run)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("$^", "", 0), None),
        (("Optimizer.step#[A-Za-z.]+", "DistributedDataParallel.forward", 0), "a step has 2 forward passes"),
        (("engine::bucket_launch", "user::bucket_launch", 7), "in some steps no gradients are sent"),
        (
            ("engine::bucket_launch bucket=3", "user::bucket_launch bucket=3", 0),
            "its steps have collectives beside those of gradients",
        ),
    ],
)
def test_a_recorders_loop_is_made_anew_where_its_steps_are_plain(
    change: tuple[str, str, int], reason: str | None, tmp_path: Path
) -> None:
    pattern, other, count = change
    for path in with_recorders_labels("torch-ddp", tmp_path).glob("rank*"):
        path.write_text(re.sub(pattern, other, path.read_text(), count=count))
    manifest = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({key: manifest[key] for key in manifest if key != "accumulate"}))
    run = overlaplab.load_run(tmp_path)
    assert run.manifest is not None
    assert run.manifest.link is not None
    slower = replace(run.manifest.link, bandwidth_gbps=0.01)
    assert all_programs(run, Setting(link=slower))
    if reason is None:
        assert all_programs(run, Setting(accumulate=2))
        return
    with pytest.raises(OverlaplabError, match=f"{reason}: its strategy is not made anew"):
        all_programs(run, Setting(accumulate=2))


def test_caps_are_played_behind_a_link_where_no_other_sizes_were_recorded() -> None:
    """Over plain gloo; the run has broadcasts of buffers beside its buckets, so that no other strategy is made."""
    run = sample_run("ddp-lessons/buffers")
    assert run.manifest is not None
    run = replace(run, manifest=replace(run.manifest, accumulate=None))
    link = Link(emulated=True, bandwidth_gbps=1.0, latency_us=10.0, world_size=2)
    with pytest.raises(OverlaplabError, match="how long its all_reduce of other sizes take is not known"):
        all_programs(run, Setting(bucket_cap_mb=0.01))
    programs = all_programs(run, Setting(bucket_cap_mb=0.01, link=link))
    buckets = find_launches(programs[0], "bucket")
    assert len(buckets) > 1
    assert all(launch.transfer_ns == transfer_ns("all_reduce", launch.bytes, link) for launch in buckets)
