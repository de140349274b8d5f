"""Actions of pipelines that nobody labelled, against the engine's labels and by literals."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from made.ranks import carried
from made.strangers import one_f_one_b
from made.strangers import run_of as run_of_strangers
from made.traces import event, op, run_of, step
from samples import TRACES, sample_run

import overlaplab
from overlaplab.evidence.labels import Span
from overlaplab.evidence.pipelines import find_plan, idle_by_schedule, pipelines
from overlaplab.evidence.stages import _are_passed_on, stage_labels
from overlaplab.simulate.advice.pipelines import pipeline_remedies

FUNCTION = "autograd::engine::evaluate_function: MulBackward0"


def test_messages_tell_the_actions_that_the_engine_labels(tmp_path: Path) -> None:
    for path in (TRACES / "pipeline").glob("rank*.gz"):
        text = gzip.decompress(path.read_bytes()).decode().replace("engine::stage_", "user::stage_")
        (tmp_path / path.stem).write_text(text)
    labelled, run = sample_run("pipeline"), overlaplab.load_run(tmp_path)
    for trace, unlabelled in zip(labelled.traces, run.traces, strict=True):
        pairs = list(zip(stage_labels(trace), stage_labels(unlabelled), strict=True))
        assert len(pairs) > 10
        for label, derived in pairs:
            assert (derived.word, derived.fields["microbatch"]) == (label.word, label.fields["microbatch"])
            assert derived.start_ns == pytest.approx(label.start_ns, abs=2_000_000)
            assert derived.end_ns == pytest.approx(label.end_ns, abs=2_000_000)
    assert overlaplab.pipeline(run)["stage"].tolist() == overlaplab.pipeline(labelled)["stage"].tolist()
    for rank in (0, 2):  # then which stages the others are is unknown
        (tmp_path / f"rank{rank}.pt.trace.json").rename(tmp_path / f"rank{rank}.json.away")
        assert overlaplab.pipeline(overlaplab.load_run(tmp_path)).empty
        (tmp_path / f"rank{rank}.json.away").rename(tmp_path / f"rank{rank}.pt.trace.json")


@pytest.mark.parametrize("missing", [0, 3])
def test_without_a_stage_the_schedule_is_unknown_and_no_other_is_blamed(tmp_path: Path, missing: int) -> None:
    folder = shutil.copytree(TRACES / "pipeline", tmp_path / "run")
    assert len(idle_by_schedule(overlaplab.load_run(folder))) == 4
    (folder / f"rank{missing}.pt.trace.json.gz").unlink()
    run = overlaplab.load_run(folder)
    assert idle_by_schedule(run) == {}
    assert set(overlaplab.exposed(run)["cause"]) == {"waiting for send"}


NEXT, BACK, CAME, LEFT = ("0", "1"), ("1", "0"), ("2", "0"), ("0", "2")
F0, F1, B0, B1 = (0, 10), (20, 30), (50, 60), (80, 90)


@pytest.mark.parametrize(
    ("messages", "passes", "are"),
    [
        # the first stage, the last, and one between
        ([(11, NEXT), (31, NEXT), (40, BACK), (70, BACK)], (F0, F1, B0, B1), True),
        ([(-1, BACK), (12, BACK), (61, NEXT), (91, NEXT)], (F0, F1, B0, B1), True),
        (
            [(-1, CAME), (11, NEXT), (12, CAME), (31, NEXT), (40, BACK), (61, LEFT), (70, BACK), (91, LEFT)],
            (F0, F1, B0, B1),
            True,
        ),
        # ring attention: what is sent to one rank never comes back, or of two ranks at once
        ([(11, NEXT), (11, CAME), (31, NEXT), (31, CAME)], (F0, F1, B0, B1), False),
        ([(11, NEXT), (12, BACK), (61, BACK), (62, NEXT)], (F0, F1, B0, B1), False),
        # its message is called within a function of autograd
        ([(11, NEXT), (12, BACK), (55, BACK), (57, NEXT)], (F0, F1, B0, B1), False),
        # parameters or gradients that two ranks exchange before the step, or after it
        ([(-2, NEXT), (-1, BACK)], (F0, B0), False),
        ([(61, NEXT), (62, BACK)], (F0, B0), False),
        ([(11, NEXT), (40, BACK)], (F0, B0), True),
    ],
)
def test_what_is_passed_on(
    messages: list[tuple[int, tuple[str, str]]], passes: tuple[tuple[int, int], ...], are: bool
) -> None:
    """Microbatches, forward and backward."""
    spans = [Span(start_ns=start, end_ns=end, thread=1) for start, end in passes]
    forwards, backwards = spans[: len(spans) // 2], spans[len(spans) // 2 :]
    called = np.array([at for at, _ in messages])
    assert _are_passed_on([way for _, way in messages], called, forwards, backwards) == are


def test_torchs_ranges_begin_with_waiting(tmp_path: Path) -> None:
    """A schedule with several stages on each rank; two pairs of ranks have a pipeline each."""
    ranks = []
    for first in (0, 2):
        name = f"0%3A{first}-{first + 1}"
        message = [
            event(f"engine::launch seq=0 group={name}", 20, 20.5, cat="user_annotation"),
            *carried(0, 20, 30, kind="send_recv", group=name),
        ]
        ranks += [
            [step(0, 0, 90), event("PP:0F0", 5, 20, cat="user_annotation"), op("mm", 6, 18), *message],
            [step(0, 0, 90), event("PP:3I0", 5, 60, cat="user_annotation"), op("mm", 31, 55), *message],
        ]
    run = run_of(tmp_path, *ranks)
    assert pipelines(run) == [[0, 1], [2, 3]]
    actions = [
        [(label.word, label.fields, (label.end_ns - label.start_ns) // 1000) for label in stage_labels(trace)]
        for trace in run.traces
    ]
    assert actions == 2 * [
        [("stage_forward", {"stage": "0", "microbatch": "0"}, 12)],
        [("stage_backward_input", {"stage": "3", "microbatch": "0"}, 24)],
    ]


def test_actions_are_of_one_step_though_a_rank_lacks_the_first(tmp_path: Path) -> None:
    ranks = [
        [
            each
            for number in steps
            for each in (
                step(number, 100 * number, 100 * number + 100),
                event(f"engine::stage_forward stage={stage} microbatch=0", 100 * number + 10, 100 * number + 20),
                op("mm", 100 * number + 10, 100 * number + 20),
            )
        ]
        for stage, steps in enumerate([(1, 2), (0, 1, 2)])
    ]
    table = overlaplab.pipeline(run_of(tmp_path, *ranks))
    assert table[["rank", "step", "start_ns"]].to_numpy().tolist() == [[0, 1, 0], [0, 2, 0], [1, 1, 0], [1, 2, 0]]


def test_a_step_without_actions_says_nothing_of_the_schedule(tmp_path: Path) -> None:
    """As an evaluation has."""
    text = {
        number: gzip.decompress(path.read_bytes()).decode()
        for number, path in enumerate(sorted((TRACES / "pipeline").glob("rank*.gz")))
    }
    for rank, trace in text.items():
        events = json.loads(trace)
        first = min(each["ts"] + each["dur"] for each in events["traceEvents"] if each["name"].startswith("ProfilerS"))
        events["traceEvents"] = [
            each
            for each in events["traceEvents"]
            if not (each["name"].startswith("engine::stage_") and each["ts"] < first)
        ]
        (tmp_path / f"rank{rank}.pt.trace.json").write_text(json.dumps(events))
    run = overlaplab.load_run(tmp_path)
    labelled = find_plan(sample_run("pipeline"))
    assert labelled is not None
    plan = find_plan(run)
    assert plan is not None
    assert (plan.schedule, plan.microbatches, len(plan.stages)) == ("1f1b", labelled.microbatches, len(labelled.stages))


def test_messages_of_nccl_tell_them_too(tmp_path: Path) -> None:
    """By the device's times; a kernel carries two messages, and without its ends' names they tell nothing."""
    for names_peers in (True, False):
        ranks = one_f_one_b(steps=2, names_peers=names_peers)
        for rank, backwards in zip(ranks, ((11, 14), (4, 12)), strict=True):
            rank.events += [event(FUNCTION, at + host, at + host + 0.5) for at in (0, 200) for host in backwards]
        run = run_of_strangers(tmp_path / str(names_peers), *ranks)
        table = overlaplab.pipeline(run)
        assert pipeline_remedies(run).empty
        if not names_peers:
            assert table.empty
            continue
        actions = table[["stage", "step", "action", "microbatch", "start_ns", "took_ns"]].to_numpy().tolist()
        assert actions[:4] == [
            [0, 3, "forward", 0, 0, 10_000],
            [0, 3, "forward", 1, 14_000, 10_000],
            [0, 3, "backward", 0, 60_000, 20_000],
            [0, 3, "backward", 1, 96_000, 20_000],
        ]
        assert actions[8:12] == [
            [1, 3, "forward", 0, 14_000, 10_000],
            [1, 3, "backward", 0, 24_000, 20_000],
            [1, 3, "forward", 1, 60_000, 10_000],
            [1, 3, "backward", 1, 70_000, 20_000],
        ]


@pytest.mark.parametrize(("at", "others", "steps"), [(160, 1, {3, 4, 5}), (110, 1, {3, 4}), (110, 2, set())])
def test_an_evaluation_takes_nothing_from_the_other_steps(
    tmp_path: Path, at: int, others: int, steps: set[int]
) -> None:
    """A message after the optimizer's step, or before it, in the last of three steps, or in two."""
    first, second = one_f_one_b(steps=3)
    for rank, backwards in ((first, (11, 14)), (second, (4, 12))):
        for begun in (0, 200, 400):
            rank.events += [event(FUNCTION, begun + host, begun + host + 0.5) for host in backwards]
            rank.events.append(event("Optimizer.step#SGD.step", begun + 140, begun + 150, cat="user_annotation"))
        for begun in (400, 200)[:others]:
            rank.message(("send", 1) if rank is first else ("recv", 0), begun + at, begun + 130, begun + 135)
    table = overlaplab.pipeline(run_of_strangers(tmp_path, first, second))
    assert set(table["step"]) == steps


def test_a_step_that_a_rank_does_not_have_is_nobodys(tmp_path: Path) -> None:
    """In the last of four steps the first rank alone sends something else."""
    first, second = one_f_one_b(steps=4)
    for rank, backwards in ((first, (11, 14)), (second, (4, 12))):
        rank.events += [event(FUNCTION, at + host, at + host + 0.5) for at in range(0, 800, 200) for host in backwards]
    first.message(("send", 1), 710, 730, 735)
    run = run_of_strangers(tmp_path, first, second)
    assert len(stage_labels(run.traces[1])) == 4 * len(stage_labels(run.traces[0])) // 3
    table = overlaplab.pipeline(run)
    assert table.groupby("step")["rank"].nunique().to_dict() == {3: 2, 4: 2, 5: 2}
