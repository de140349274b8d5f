"""Pipelines with several stages on a rank, and beside data parallelism: predicted from recordings of each other."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote

import pytest
from ranks.warm_ranks import run_warm

import overlaplab
from overlaplab.analyses import pipeline
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, step_windows
from overlaplab.evidence.labels import engine_labels
from overlaplab.manifest import Link
from overlaplab.report.predicted_run import write_run
from overlaplab.simulate.player import Launch, Mark, Program, play
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.programs import all_programs
from overlaplab.simulate.programs.setting import Setting
from overlaplab.vocabulary import STAGE_WORDS

pytestmark = pytest.mark.slow

COMMON = (
    *("--strategy", "pipeline", "--device", "cpu", "--layers", "4", "--width", "16", "--vocab", "32", "--seq", "4"),
    *("--batch", "1", "--steps", "2", "--warmup", "1", "--attempts", "1", "--compute", "sleep:4ms,8ms,1ms"),
    *("--link", "1Gbps,500us"),
)
SCRIPT = Path(__file__).parents[2] / "support" / "programs" / "patient_ranks.py"
SEVERAL = (
    Setting(schedule="1f1b", microbatches=4, stages=(2, 2)),
    Setting(schedule="interleaved-1f1b", microbatches=4, stages=(1, 1, 1, 1)),
    Setting(schedule="interleaved-1f1b", microbatches=2, stages=(1, 1, 1, 1)),
    Setting(schedule="zbv", microbatches=3, stages=(1, 1, 1, 1)),
    Setting(schedule="zbv", microbatches=5, stages=(1, 1, 1, 1)),
)
REPLICATED = (Setting(schedule="1f1b", microbatches=3), Setting(schedule="gpipe", microbatches=2))
PAIRS = [(a, b) for a in SEVERAL for b in SEVERAL]


def told(setting: Setting) -> str:
    return f"{setting.schedule}-{setting.microbatches}"


def recorded(folder: Path, settings: tuple[Setting, ...], ranks: int, *more: str) -> dict[Setting, Run]:
    """Each setting's run; one start of the ranks makes all."""
    lines = []
    for setting in settings:
        own = ["--schedule", str(setting.schedule), "--microbatches", str(setting.microbatches)]
        own += ["--stages", ",".join(map(str, setting.stages))] if setting.stages else []
        lines.append([*COMMON, *own, *more, "--out", str(folder / told(setting))])
    for rank in run_warm(ranks, str(SCRIPT), json.dumps(lines)):
        assert rank.code == 0, rank.stderr
    return {setting: overlaplab.load_run(folder / told(setting)) for setting in settings}


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> dict[Setting, Run]:
    return recorded(tmp_path_factory.mktemp("several"), SEVERAL, 2)


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> dict[Setting, Run]:
    return recorded(tmp_path_factory.mktemp("replicated"), REPLICATED, 4, "--dp", "2", "--pp", "2")


def labelled(run: Run) -> list[list[tuple[str, ...]]]:
    """What each rank's actions, posted messages and averages were, in order; messages by places along the pipeline."""
    found = []
    for trace in run.traces:
        begin, end = step_windows(trace)[0].start_ns, step_windows(trace)[-1].end_ns
        own: list[tuple[str, ...]] = []
        for label in engine_labels(trace):
            if not begin <= label.start_ns < end:
                continue
            if label.word in STAGE_WORDS:
                own.append((label.word, label.fields["stage"], label.fields["microbatch"]))
            elif label.word == "launch":
                own.append(("launch", unquote(label.fields["group"]).partition(":")[2] or "average"))
        found.append(own)
    return found


def made(program: Program, replicas: int = 1) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for move in program:
        if isinstance(move, Launch):
            lane = "average" if move.lane is None else "{}-{}".format(*(rank // replicas for rank in move.lane))
            found.append(("launch", lane))
        elif isinstance(move, Mark) and move.word in STAGE_WORDS:
            found.append((move.word, *move.name.split(" ")))
    return found


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=[f"{told(a)} to {told(b)}" for a, b in PAIRS])
def test_several_stages_on_a_rank_act_and_send_in_the_order_predicted(
    source: Setting, target: Setting, several: dict[Setting, Run]
) -> None:
    programs = all_programs(several[source], target)
    assert [made(program) for program in programs] == labelled(several[target])


@pytest.mark.parametrize("target", SEVERAL, ids=told)
def test_a_predicted_run_reads_as_it_was_played(target: Setting, several: dict[Setting, Run], tmp_path: Path) -> None:
    found = predict(several[SEVERAL[1]], target)
    write_run(tmp_path / "predicted", found.manifest, found.ranks)
    run = overlaplab.load_run(tmp_path / "predicted")
    assert run.manifest is not None
    known = several[target].manifest
    assert known is not None
    assert run.manifest.pipeline == known.pipeline
    assert labelled(run) == labelled(several[target])
    table = pipeline(run)
    assert not table["wait_ns"].isna().any()
    assert set(table["held"]) == set(pipeline(several[target])["held"])


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_stages_of_a_zbv_run_are_put_together(schedule: str, several: dict[Setting, Run]) -> None:
    """Embedding, layers and head of 4 and 8 ms on two ranks: 3 units on each, which work for 36 ms a microbatch."""
    found = predict(several[SEVERAL[4]], Setting(schedule=schedule, microbatches=4))
    assert [(stage["rank"], *stage["units"]) for stage in found.manifest["pipeline"]["stages"]] == [
        (0, "embedding", "layers.0", "layers.1"),
        (1, "layers.2", "layers.3", "head"),
    ]
    assert found.step_ns > (4 + 1) * 36e6 * 0.9  # without messages, hosts and updates


@pytest.mark.parametrize("target", REPLICATED, ids=told)
@pytest.mark.parametrize("source", REPLICATED, ids=told)
def test_replicas_act_and_average_in_the_order_predicted(
    source: Setting, target: Setting, replicated: dict[Setting, Run], tmp_path: Path
) -> None:
    programs = all_programs(replicated[source], target)
    assert [made(program, 2) for program in programs] == labelled(replicated[target])
    found = predict(replicated[source], target)
    write_run(tmp_path / "predicted", found.manifest, found.ranks)
    run = overlaplab.load_run(tmp_path / "predicted")
    spans = [[window.end_ns - window.start_ns for window in step_windows(trace)] for trace in run.traces]
    played = play(programs)
    assert spans == [played.spans_ns(rank) for rank in range(4)]
    assert set(pipeline(run)["pipeline"]) == {0, 1}


def test_a_slower_link_makes_averages_slower(replicated: dict[Setting, Run]) -> None:
    run = replicated[REPLICATED[0]]
    link = Link(emulated=True, bandwidth_gbps=1, latency_us=20_500, world_size=4)
    before, after = (all_programs(run, setting) for setting in (Setting(), Setting(link=link)))
    averages = [
        [move.transfer_ns for move in programs[0] if isinstance(move, Launch) and move.kind == "all_reduce"]
        for programs in (before, after)
    ]
    rounds = 2  # of two replicas
    assert [late - soon for soon, late in zip(*averages, strict=True)] == [rounds * 20_000_000] * len(averages[0])


def test_replicas_keep_their_stages(replicated: dict[Setting, Run]) -> None:
    with pytest.raises(OverlaplabError, match="the ranks keep their stages"):
        predict(replicated[REPLICATED[0]], Setting(stages=(1, 3)))
