"""Pipelines predicted from one recording: actions and messages in the engine's order; what cannot be is one line."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import unquote

import pytest
from msgspec.structs import replace
from ranks.warm_ranks import run_warm
from samples import sample_run

import overlaplab
from overlaplab.analyses import pipeline
from overlaplab.costs import link_attained
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, step_windows
from overlaplab.evidence.labels import engine_labels
from overlaplab.manifest import Link, Pipeline, Stage
from overlaplab.report.predicted_run import write_run
from overlaplab.simulate.player import Launch, Mark, Program, play
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.programs import all_programs
from overlaplab.simulate.programs.pipelined import changed_pipeline
from overlaplab.simulate.programs.setting import Setting

COMMON = (
    *("--strategy", "pipeline", "--device", "cpu", "--layers", "5", "--width", "16", "--vocab", "32", "--seq", "4"),
    *("--batch", "1", "--steps", "2", "--warmup", "1", "--attempts", "1", "--compute", "sleep:4ms,8ms,1ms"),
    *("--link", "1Gbps,500us"),
)
SCRIPT = Path(__file__).parents[2] / "support" / "programs" / "patient_ranks.py"
SETTINGS = (
    Setting(schedule="gpipe", microbatches=2, stages=(2, 2, 1)),
    Setting(schedule="gpipe", microbatches=4, stages=(1, 3, 1)),
    Setting(schedule="1f1b", microbatches=3, stages=(2, 1, 2)),
    Setting(schedule="1f1b", microbatches=5, stages=(1, 2, 2)),
)


def told(setting: Setting) -> str:
    return f"{setting.schedule}-{setting.microbatches}"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[Setting, Run]:
    """Each setting's run; one start of the three ranks makes all."""
    out = {setting: tmp_path_factory.mktemp("run") for setting in SETTINGS}
    lines = [[*COMMON, *options(setting), "--out", str(folder)] for setting, folder in out.items()]
    for rank in run_warm(3, str(SCRIPT), json.dumps(lines)):
        assert rank.code == 0, rank.stderr
    return {setting: overlaplab.load_run(folder) for setting, folder in out.items()}


def options(setting: Setting) -> list[str]:
    stages = ",".join(map(str, setting.stages or ()))
    return ["--schedule", str(setting.schedule), "--microbatches", str(setting.microbatches), "--stages", stages]


def labelled(run: Run) -> list[list[tuple[str, ...]]]:
    """What each rank's actions and posted messages were, in order."""
    found = []
    for trace in run.traces:
        begin, end = step_windows(trace)[0].start_ns, step_windows(trace)[-1].end_ns
        own: list[tuple[str, ...]] = []
        for label in engine_labels(trace):
            if begin <= label.start_ns < end and label.word in ("stage_forward", "stage_backward"):
                own.append((label.word, label.fields["stage"], label.fields["microbatch"]))
            elif begin <= label.start_ns < end and label.word == "launch":
                own.append(("launch", unquote(label.fields["group"])))
        found.append(own)
    return found


def made(program: Program) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for move in program:
        if isinstance(move, Launch) and move.lane is not None:
            found.append(("launch", "0:{}-{}".format(*move.lane)))
        elif isinstance(move, Mark) and move.word in ("stage_forward", "stage_backward"):
            found.append((move.word, *move.name.split(" ")))
    return found


@pytest.mark.parametrize("target", SETTINGS, ids=told)
@pytest.mark.parametrize("source", SETTINGS, ids=told)
def test_the_engine_acts_and_sends_in_the_order_predicted(
    source: Setting, target: Setting, recorded: dict[Setting, Run]
) -> None:
    programs = all_programs(recorded[source], target)
    assert [made(program) for program in programs] == labelled(recorded[target])


@pytest.mark.parametrize("target", SETTINGS, ids=told)
def test_a_predicted_run_reads_as_it_was_played(target: Setting, recorded: dict[Setting, Run], tmp_path: Path) -> None:
    source = recorded[SETTINGS[1]]
    programs = all_programs(source, target)
    found = predict(source, target)
    write_run(tmp_path / "predicted", found.manifest, found.ranks)
    run = overlaplab.load_run(tmp_path / "predicted")
    assert labelled(run) == [made(program) for program in programs]
    played = play(programs)
    spans = [[window.end_ns - window.start_ns for window in step_windows(trace)] for trace in run.traces]
    assert spans == [played.spans_ns(rank) for rank in range(3)]
    assert found.step_ns == round(fmean(ns for own in spans for ns in own))
    known = recorded[target].manifest
    assert run.manifest is not None
    assert known is not None
    assert (run.manifest.pipeline, run.manifest.mesh) == (known.pipeline, known.mesh)
    table = pipeline(run)
    assert not table["wait_ns"].isna().any()  # the ends of its messages are matched
    assert set(table["held"]) == set(pipeline(recorded[target])["held"])


def test_messages_are_along_the_pipeline(recorded: dict[Setting, Run]) -> None:
    table = overlaplab.collectives(recorded[SETTINGS[0]])
    assert set(table.loc[table["kind"] == "send_recv", "axis"]) == {"pp"}


def test_played_unchanged_it_is_the_recording(recorded: dict[Setting, Run]) -> None:
    for run in recorded.values():
        found = predict(run, Setting())
        assert run.manifest is not None
        kept = link_attained(run.manifest) and not any(one["busy"] for one in run.manifest.raw["machine"])
        # On a busy machine messages come late for reasons that the player does not know.
        assert found.step_ns == pytest.approx(found.recorded_step_ns, rel=0.1 if kept else 0.5)


def test_a_slower_link_makes_messages_slower(recorded: dict[Setting, Run]) -> None:
    run = recorded[SETTINGS[0]]
    link = Link(emulated=True, bandwidth_gbps=1, latency_us=20_500, world_size=3)
    before, after = (predict(run, setting).step_ns for setting in (Setting(), Setting(link=link)))
    assert after - before >= 4 * 20_000_000  # two forward and two back are on the critical path


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            Setting(schedule="dualpipe"),
            "the schedule dualpipe is not predicted. Known: gpipe, 1f1b, interleaved-1f1b, zbv",
        ),
        (Setting(schedule="zbv"), "6 stages do not divide 5 layers. Say with --stages how many each has"),
        (Setting(schedule="interleaved-1f1b", microbatches=7, stages=(1,) * 5), "takes rounds of 3 microbatches"),
        (Setting(schedule="1f1b"), "1f1b takes as many microbatches as stages or more: 2 is less than 3"),
        (Setting(microbatches=0), "microbatches must be from 1 to 4096, not 0"),
        (Setting(microbatches=5000), "microbatches must be from 1 to 4096, not 5000"),
        (Setting(stages=(2, 2)), "--stages 2,2 does not share 5 layers out among 3 stages"),
        (Setting(stages=(5, 0, 0)), "--stages 5,0,0 does not share 5 layers out among 3 stages"),
        (Setting(ranks=4), "of a pipeline schedule, microbatches, stages and link are predicted, not ranks"),
        (
            Setting(strategy="bucketed"),
            "of a pipeline schedule, microbatches, stages and link are predicted, not strat",
        ),
    ],
)
def test_what_cannot_be_is_one_line(setting: Setting, said: str, recorded: dict[Setting, Run]) -> None:
    with pytest.raises(OverlaplabError) as caught:
        predict(recorded[SETTINGS[0]], setting)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_link_is_refused_where_none_was_recorded() -> None:
    run = sample_run(Path(__file__).parents[2] / "situations" / "recorded" / "few-microbatches")
    link = Link(emulated=True, bandwidth_gbps=10.0, latency_us=50.0, world_size=4)
    with pytest.raises(OverlaplabError, match="how long its messages take behind another link is not known"):
        all_programs(run, Setting(microbatches=8, link=link))


def test_unlabelled_stages_stay_where_the_schedule_does() -> None:
    """Three on each of two ranks."""
    run = overlaplab.Run(path="here", manifest=None, traces=(), warnings=())
    stages = tuple(Stage(rank=rank, units=()) for rank in (0, 1) * 3)
    plan = Pipeline(schedule="interleaved-1f1b", microbatches=2, stages=stages)
    assert changed_pipeline(run, plan, Setting(microbatches=4)) == replace(plan, microbatches=4)
    for setting in (Setting(schedule="zbv"), Setting(stages=(1,) * 6)):
        with pytest.raises(OverlaplabError, match="names the layers of its stages, which would be shared out"):
            changed_pipeline(run, plan, setting)


def test_the_command_writes_the_predicted_run(command: Any, recorded: dict[Setting, Run], tmp_path: Path) -> None:
    source = Path(recorded[SETTINGS[0]].path)
    for file in source.glob("rank*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    known = json.loads((source / "run.json").read_text())
    undisturbed = {"machine": None, "link_steps": None, "collectives": None, "link_attained": True}
    (tmp_path / "run.json").write_text(json.dumps(known | undisturbed))
    options = ("--schedule", "1f1b", "--microbatches", 4, "--stages", "1,3,1", "--out", tmp_path / "predicted")
    code, out, err = command("predict", tmp_path, *options, "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["changes"] == {"schedule": "1f1b", "microbatches": 4, "stages": "1,3,1"}
    assert document["predicted"]["step_ns"] > document["recorded"]["step_ns"]  # of twice as many samples
    code, out, _ = command("pipeline", tmp_path / "predicted", "--json")
    assert code == 0
    assert {(row["stages"], row["microbatches"]) for row in json.loads(out)["steps"]} == {(3, 4)}
