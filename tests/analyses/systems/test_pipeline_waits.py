"""Anybody's pipeline: bubbles, causes, axes and lanes of traces without our labels."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from made.strangers import Groups, Rank, one_f_one_b, run_of
from made.traces import op
from made.traces import run_of as plain_run

import overlaplab
from overlaplab.analyses.systems.pipeline_waits import pipeline_waits
from overlaplab.evidence.collective_facts import collective_facts
from overlaplab.findings import exposed_by_axis, pipeline_waits_lead
from overlaplab.report.documents import pipeline_document
from overlaplab.sections.run_tables import RunTables
from overlaplab.selection import Selection
from overlaplab.timeline.timeline import timeline_events


@pytest.mark.parametrize("description", ["PIPELINE_MODEL_PARALLEL_GROUP", "mesh_pp", "pp"])
def test_the_bubble_is_what_receives_leave_idle(tmp_path: Path, description: str) -> None:
    """Rank 0 computes 60 of 116 µs: it waits 36 in the batch, of which rank 1 has not come for 20, and then 16 (10)."""
    run = run_of(tmp_path, *one_f_one_b(steps=2, description=description))
    expected = {
        "rank": 0,
        "place": 0,
        "step": 3,
        "span_ns": 116_000,
        "busy_ns": 60_000,
        "bubble_ns": 52_000,
        "bubble": pytest.approx(52 / 116),
        "wait_ns": 30_000,
        "transfer_ns": 22_000,
        "sending_ns": 4000,
        "other_ns": 0,
        "fill_ns": 0,
        "received": 2,
        "sent": 2,
    }
    table = pipeline_waits(run)
    assert table.to_dict("records")[:2] == [expected, expected | {"step": 4}]
    second = expected | {"rank": 1, "place": 1, "span_ns": 76_000, "bubble_ns": 16_000, "fill_ns": 12_000}
    second |= {"bubble": pytest.approx(16 / 76), "wait_ns": 0, "transfer_ns": 16_000, "sending_ns": 0}
    assert table.to_dict("records")[2:] == [second, second | {"step": 4}]
    assert pipeline_waits(run, Selection(ranks=[1], steps=[4])).to_dict("records") == [second | {"step": 4}]


def test_the_parts_add_up_to_the_span(tmp_path: Path) -> None:
    table = pipeline_waits(run_of(tmp_path, *one_f_one_b()))
    parts = table[["busy_ns", "bubble_ns", "sending_ns", "other_ns"]].sum(axis=1)
    assert parts.tolist() == table["span_ns"].tolist()


def test_without_the_other_rank_its_parts_are_unknown(tmp_path: Path) -> None:
    (row,) = pipeline_waits(run_of(tmp_path, one_f_one_b()[0], world_size=2)).to_dict("records")
    assert row["bubble_ns"] == 52_000
    assert pd.isna(row["wait_ns"])
    assert pd.isna(row["transfer_ns"])


def test_where_directions_are_unknown_all_messages_count_as_received(tmp_path: Path) -> None:
    """The batch's kernel, which nothing names, is no message that is known to be the pipeline's."""
    table = pipeline_waits(run_of(tmp_path, *one_f_one_b(names_peers=False)))
    first = table.iloc[0]
    assert (first["bubble_ns"], first["sending_ns"], first["other_ns"]) == (4000 + 16_000, 0, 36_000)
    assert pd.isna(first["received"])


def test_there_is_none_without_a_pipeline(tmp_path: Path) -> None:
    assert pipeline_waits(plain_run(tmp_path, [op("mm", 0, 9)])).empty


def test_what_is_said(tmp_path: Path) -> None:
    run = run_of(tmp_path, *one_f_one_b())
    assert pipeline_waits_lead(pipeline_waits(run)) == (
        "Rank 0 computes nothing while it waits for messages of the pipeline for 45\N{NO-BREAK SPACE}% of the time"
        " from its first computation in the step to its last, the most of 2 ranks here: 0.030 ms before the sender had"
        " begun, 0.022 ms after."
    )
    document = json.loads(json.dumps(pipeline_document(RunTables(run=run)), allow_nan=False))
    assert [row["bubble_ns"] for row in document["waits"]] == [52_000, 16_000]
    assert (document["steps"], document["ranks"], document["actions"]) == ([], [], [])


@pytest.mark.parametrize("names_peers", [True, False])
def test_exposed_messages_of_a_pipeline_wait_for_sends(tmp_path: Path, names_peers: bool) -> None:
    """Whether or not they are matched; of the batch's kernel without arguments nothing is known."""
    table = overlaplab.exposed(run_of(tmp_path, *one_f_one_b(names_peers=names_peers)), Selection(ranks=[0]))
    sums = table.groupby(["cause", "axis"], dropna=False)["exposed_ns"].sum().to_dict()
    if names_peers:
        assert sums == {("waiting for send", "pp"): 56_000}
    else:
        assert table.loc[table["cause"] == "waiting for send", "exposed_ns"].sum() == 20_000
        assert "waiting for send" not in set(table.loc[table["axis"].isna(), "cause"])
        assert table["exposed_ns"].sum() == 56_000


TWO_AXES: Groups = {"2": ("TENSOR_MODEL_PARALLEL_GROUP", (0, 1)), "3": ("DATA_PARALLEL_GROUP_WITH_CP", (0, 1))}


def two_axes(tensor_at: float) -> Rank:
    """A gradients' all-reduce beside computation until 60, and one of activations launched at 10, on other streams."""
    rank = Rank(0, TWO_AXES)
    rank.step(3, 0, 200)
    rank.compute(1, 2, 40)
    rank.all_reduce("3", 3, 20, 60, stream=24)
    rank.all_reduce("2", 10, tensor_at, tensor_at + 40, stream=20)
    rank.compute(15, tensor_at + 40, tensor_at + 80)
    return rank


def test_each_axis_has_its_exposed_time_and_its_lane(tmp_path: Path) -> None:
    """Of the 40 µs from 40 on, the first 20 are both groups'; a moment's one cause is that of what began first."""
    run = run_of(tmp_path, two_axes(40), world_size=2)
    by_axis = overlaplab.communication_by(run).set_index("axis")["exposed_ns"].to_dict()
    assert by_axis == {"tp": 40_000, "dp": 20_000}
    table = overlaplab.exposed(run)
    assert table["exposed_ns"].sum() == overlaplab.summary(run)["exposed_comm_ns"].sum() == 40_000
    assert exposed_by_axis(table) == (
        "Exposed by axis, all these ranks and steps together: dp 0.020 ms and tp 0.020 ms."
    )
    labels = timeline_events(run).lanes["label"]
    assert {label[label.index("(") :] for label in labels if "NCCL" in label} == {"(NCCL, tp)", "(NCCL, dp)"}


@pytest.mark.parametrize(("tensor_at", "queued_ns"), [(60, 20_000), (65, 20_000), (90, 0)])
def test_streams_queue_only_where_one_begins_at_the_others_end(
    tmp_path: Path, tensor_at: float, queued_ns: int
) -> None:
    """That of activations could begin at 40. Where it began soon after 60, it queued behind that of gradients, on
    another stream; at 90 it waited for something else.
    """
    (facts,) = collective_facts(run_of(tmp_path, two_axes(tensor_at), world_size=2))
    tensor = facts["axis"] == "tp"
    assert (facts["asked_ns"][tensor][0], facts["queued_ns"][tensor][0]) == (40_000, queued_ns)


def test_what_is_behind_on_the_same_stream_queued(tmp_path: Path) -> None:
    rank = Rank(0, TWO_AXES)
    rank.step(3, 0, 200)
    rank.compute(1, 2, 40)
    rank.all_reduce("3", 3, 20, 60, stream=20)
    rank.all_reduce("2", 10, 90, 130, stream=20)
    rank.compute(15, 130, 170)
    (facts,) = collective_facts(run_of(tmp_path, rank, world_size=2))
    assert facts["queued_ns"][facts["axis"] == "tp"].tolist() == [20_000]
