"""Actions of pipelines that nobody labelled, against the engine's labels and by literals."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made.ranks import carried
from made.strangers import one_f_one_b
from made.strangers import run_of as run_of_strangers
from made.traces import event, op, run_of, step
from samples import TRACES, sample_run

import overlaplab
from overlaplab.evidence.pipelines import _backward_passes, pipelines, stage_labels

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


@pytest.mark.parametrize(
    ("ways", "found"),
    [
        ([(0, 1), (0, 1), (1, 0), (1, 0)], [(50, 60), (80, 90)]),
        # ring attention of two ranks: each layer of either pass sends and receives
        ([(0, 1), (1, 0), (1, 0), (0, 1)], []),
        ([(0, 1), (0, 1), (0, 1), (1, 0)], []),
        # of more ranks: what is sent to one never comes back
        ([(0, 1), (2, 0), (0, 1), (2, 0)], []),
    ],
)
def test_what_no_pipeline_sends(ways: list[tuple[int, int]], found: list[tuple[int, int]]) -> None:
    """Functions of autograd between the third message and the fourth, and after it; the first two are sent before."""
    functions = pd.DataFrame({"start_ns": [50, 55, 80], "end_ns": [52, 60, 90], "thread": 1})
    texts = [(str(sender), str(receiver)) for sender, receiver in ways]
    passes = _backward_passes(functions, np.array([10, 20, 40, 70]), texts)
    assert [(span.start_ns, span.end_ns) for span in passes] == found


def test_torchs_ranges_begin_with_waiting(tmp_path: Path) -> None:
    """Of a schedule with several stages on each rank; two pairs of ranks have a pipeline each."""
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
    found = [
        [(label.word, label.fields, (label.end_ns - label.start_ns) // 1000) for label in stage_labels(trace)]
        for trace in run.traces
    ]
    assert found == 2 * [
        [("stage_forward", {"stage": "0", "microbatch": "0"}, 12)],
        [("stage_backward_input", {"stage": "3", "microbatch": "0"}, 24)],
    ]


def test_messages_of_nccl_tell_them_too(tmp_path: Path) -> None:
    """By the device's times; a kernel carries two messages, and without its ends' names they tell nothing."""
    for names_peers in (True, False):
        ranks = one_f_one_b(steps=2, names_peers=names_peers)
        for rank, backwards in zip(ranks, ((11, 14), (4, 12)), strict=True):
            rank.events += [event(FUNCTION, at + host, at + host + 0.5) for at in (0, 200) for host in backwards]
        run = run_of_strangers(tmp_path / str(names_peers), *ranks)
        table = overlaplab.pipeline(run)
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
