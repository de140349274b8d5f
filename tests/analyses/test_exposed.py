"""Why communication was exposed: each rule on a trace written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made.exposed import backward, bucket, gather, label, scatter
from made.ranks import carried, group, groups_of
from made.traces import event, launched, op, run_of, step

import overlaplab
from overlaplab.analyses import rows_of, worst_step
from overlaplab.analyses.exposed import CAUSES
from overlaplab.errors import OverlaplabError
from overlaplab.selection import Selection


def found(run: overlaplab.Run, **chosen: Any) -> list[tuple[str, Any, Any, int]]:
    """Cause, collective, what and exposed µs of rank 0, in order of time."""
    table = overlaplab.exposed(run, Selection(ranks=[0], **chosen)).sort_values(["start_ns", "collective"])
    return [
        (row["cause"], row["collective"], row["what"], row["exposed_ns"] // 1000) for row in table.to_dict("records")
    ]


def alone(folder: Path, *events: dict[str, Any]) -> overlaplab.Run:
    """A run of two ranks that do the same at the same time: nobody waits."""
    return run_of(folder, list(events), list(events))


def test_straggler_wait_names_the_late_rank(tmp_path: Path) -> None:
    """Rank 0 arrives at 100, rank 1 at 300. Both end at 450, and compute longer than they transfer."""
    ranks = [[op("mm", 0, last), *carried(0, last, 450, launch=last), op("mm", 450, 900)] for last in (100, 300)]
    run = run_of(tmp_path, *ranks)
    table = overlaplab.exposed(run)
    assert table.to_dict("records")[0] == {
        "rank": 0,
        "step": None,
        "cause": "straggler wait",
        "collective": 0,
        "kind": "all_reduce",
        "what": None,
        "axis": None,
        "late_rank": 1,
        "exposed_ns": 200_000,
        "start_ns": 100_000,
        "end_ns": 300_000,
    }
    assert table["late_rank"].isna().tolist() == [False, True, True]
    assert found(run) == [("straggler wait", 0, None, 200), ("blocking", 0, None, 150)]


def owners(folder: Path, *ranks: list[dict[str, Any]]) -> dict[int, int]:
    """µs of rank 0 by collective, of two groups called a and b."""
    groups = [group(name, (0, 1)) for name in "ab"]
    table = overlaplab.exposed(groups_of(folder, *((events, groups) for events in ranks)), Selection(ranks=[0]))
    return {int(index): int(took) // 1000 for index, took in table.groupby("collective")["exposed_ns"].sum().items()}


def test_of_two_at_once_the_one_that_transfers_goes_before_the_one_that_waits(tmp_path: Path) -> None:
    """a, which started first, waits for rank 1 until 500; b transfers from 200 to 400."""
    rank0 = [op("mm", 0, 100), *carried(0, 100, 600, group="a"), *carried(0, 200, 400, group="b")]
    rank1 = [op("mm", 0, 500), *carried(0, 500, 600, group="a"), *carried(0, 200, 400, group="b")]
    assert owners(tmp_path, rank0, rank1) == {0: 300, 1: 200}


def test_of_two_at_once_the_one_that_compute_waits_for_goes_first(tmp_path: Path) -> None:
    """a started first, but compute resumes at 410, when b has ended. Until 200 there is only a."""
    rank = [op("mm", 0, 100), op("mm", 410, 900), *carried(0, 100, 800, group="a"), *carried(0, 200, 400, group="b")]
    assert owners(tmp_path, rank, rank) == {0: 110, 1: 200}


def test_of_two_alike_the_one_that_started_first_goes_first(tmp_path: Path) -> None:
    rank = [op("mm", 0, 100), op("mm", 610, 900), *carried(0, 100, 400, group="a"), *carried(0, 200, 600, group="b")]
    assert owners(tmp_path, rank, rank) == {0: 300, 1: 200}


def test_within_clock_error_no_rank_is_late(tmp_path: Path) -> None:
    """The ends differ by 0, 0, 80 and 80, so clocks may differ by 80. Rank 1 arrives 60 later."""
    ranks = []
    for rank in range(2):
        events = [op("mm", 0, 5)]
        for seq, apart in enumerate((0, 0, 80, 80)):
            at = 1000 * seq + 100
            events += carried(seq, at + 60 * rank, at + 500 + apart * rank, launch=at + 60 * rank)
        ranks.append(events)
    table = overlaplab.exposed(run_of(tmp_path, *ranks))
    waits = table[table["cause"] == "straggler wait"]
    assert waits["exposed_ns"].sum() == 4 * 60_000
    assert waits["late_rank"].isna().all()


def test_what_exceeds_the_steps_compute_is_bound_by_the_link(tmp_path: Path) -> None:
    """700 of transfer, 400 of compute, which hides 100 of it: the last 300 cannot be hidden."""
    run = alone(tmp_path, op("mm", 0, 400), *carried(0, 300, 1000, launch=300), op("x", 1100, 1100))
    assert found(run) == [("tail", 0, None, 300), ("link-bound", 0, None, 300)]


def test_a_gap_of_compute_that_waits_for_nobody(tmp_path: Path) -> None:
    """Compute pauses from 200 to 300, and goes on while the bucket is on the link until 700."""
    busy = [op("mm", 0, 200), op("mm", 300, 900)]
    run = alone(tmp_path, backward(0, 900), *busy, *bucket(0, 100, 100, 100, 700))
    assert found(run) == [("compute gap", 0, "bucket 0", 100)]


def test_compute_that_goes_on_microseconds_before_the_end_had_waited(tmp_path: Path) -> None:
    for wakes, cause in ((685, "blocking"), (675, "compute gap")):
        busy = [op("mm", 0, 500), op("mm", wakes, 2000)]
        run = alone(tmp_path / str(wakes), backward(0, 2000), *busy, *bucket(0, 100, 100, 100, 700))
        assert found(run) == [(cause, 0, "bucket 0", wakes - 500)]


@pytest.mark.parametrize(
    ("resumes", "cause"), [(12_000, "tail"), (7_900, "compute gap"), (12_990, "tail"), (9_000, "compute gap")]
)
def test_a_thread_may_end_a_range_late(tmp_path: Path, resumes: float, cause: str) -> None:
    """Bucket 0 ends at 13 ms, by its thread's range. The rank, which has waited for it since the backward pass was over
    at 5 ms, computes again up to 5 ms earlier, and has waited for longer than that.
    """
    busy = [op("mm", 0, 5000), op("mm", resumes, 30_000)]
    run = alone(tmp_path, backward(0, 5000), *busy, *bucket(0, 100, 100, 100, 13_000))
    assert found(run) == [(cause, 0, "bucket 0", resumes - 5000)]


GOES_ON = label("first_use unit=a phase=backward microbatch=0", 510, 511)
"""Whoever launched begins something else."""


def test_compute_that_goes_on_long_after_the_end_had_not_waited(tmp_path: Path) -> None:
    """Bucket 1 ends at 900, which is what a host that pauses until later does not wait for, nor for bucket 0."""
    for wakes, expected in ((1890, [("blocking", 200), ("queued", 200)]), (1910, [("compute gap", 200)] * 2)):
        busy = [op("mm", 0, 500), op("mm", wakes, 9000), GOES_ON]
        buckets = bucket(0, 100, 100, 100, 700) + bucket(1, 500, 500, 700, 900)
        run = alone(tmp_path / str(wakes), backward(0, 9000), *busy, *buckets)
        assert sorted((cause, took) for cause, _, _, took in found(run)) == expected


@pytest.mark.parametrize(
    ("calls", "paused"),
    [
        ([], False),
        ([label("wait", 510, 905)], False),
        ([GOES_ON, label("wait", 520, 650)], True),
    ],
    ids=("right after its launch", "in a labelled wait", "which is over before"),
)
def test_a_host_in_a_blocking_call_has_not_paused(tmp_path: Path, calls: list[dict[str, Any]], paused: bool) -> None:
    """Compute resumes 3 ms after bucket 1, for which the host waited."""
    busy = [op("mm", 0, 500), op("mm", 3900, 9000), *calls]
    buckets = bucket(0, 100, 100, 100, 700) + bucket(1, 500, 500, 700, 900)
    causes = {cause for cause, _, _, _ in found(alone(tmp_path, backward(0, 9000), *busy, *buckets))}
    assert causes == ({"compute gap"} if paused else {"blocking", "queued"})


def test_blocking_by_design_is_launched_after_the_backward_pass(tmp_path: Path) -> None:
    """As `naive` does it: ready at 100, but launched after the backward pass, during which the link was free."""
    busy = [op("mm", 0, 600), op("mm", 800, 900)]
    run = alone(tmp_path, backward(0, 600), *busy, *bucket(0, 100, 610, 620, 790))
    assert found(run) == [("blocking", 0, "bucket 0", 170)]


def test_blocking_is_communication_during_which_nothing_computes(tmp_path: Path) -> None:
    """Its purpose is unknown. Nothing computes from when it could have started to its end; afterwards the rank does."""
    run = alone(tmp_path, op("mm", 0, 600), *carried(0, 610, 790, launch=605), op("mm", 800, 900))
    assert found(run) == [("blocking", 0, None, 180)]


def test_gradients_awaited_within_the_backward_pass_block(tmp_path: Path) -> None:
    busy = [op("mm", 0, 600), op("mm", 805, 1500)]
    run = alone(tmp_path, backward(0, 1500), *busy, *bucket(0, 500, 500, 500, 800))
    assert found(run) == [("blocking", 0, "bucket 0", 200)]


def test_late_launch_is_what_launching_when_ready_would_have_saved(tmp_path: Path) -> None:
    """Bucket 1 was ready 120 before its launch at 800, of which the link was free for 70: bucket 0 held it until 730.
    Its last 70 come from there; it queued for no one.
    """
    events = [backward(0, 900), op("mm", 0, 900), op("mm", 1100, 1400)]
    events += bucket(0, 400, 400, 400, 730) + bucket(1, 680, 800, 805, 1095)
    assert found(alone(tmp_path, *events)) == [("tail", 1, "bucket 1", 125), ("late launch", 1, "bucket 1", 70)]


def test_a_rank_that_was_not_last_launched_in_time_enough(tmp_path: Path) -> None:
    """Both ranks launch late, rank 0 by 200, rank 1 by 50, but rank 1 is last: 50 could have been saved."""
    busy = [backward(0, 700), op("mm", 0, 700), op("mm", 1000, 1400)]
    run = run_of(tmp_path, [*busy, *bucket(0, 300, 500, 500, 990)], [*busy, *bucket(0, 550, 600, 600, 990)])
    assert found(run) == [("tail", 0, "bucket 0", 240), ("late launch", 0, "bucket 0", 50)]


def test_queued_is_what_a_free_link_would_have_saved(tmp_path: Path) -> None:
    """Bucket 1 is launched at 500, and 200 later the link is free of bucket 0."""
    events = [backward(0, 600), op("mm", 0, 600), op("mm", 1200, 2000)]
    events += bucket(0, 300, 300, 300, 700) + bucket(1, 500, 500, 700, 1190)
    assert found(alone(tmp_path, *events)) == [
        ("tail", 0, "bucket 0", 100),
        ("tail", 1, "bucket 1", 290),
        ("queued", 1, "bucket 1", 200),
    ]


def test_a_rank_that_queued_but_was_not_last_could_have_saved_nothing(tmp_path: Path) -> None:
    """Rank 0's bucket 1 queues from 500 to 700, but rank 1, which launches in time, at 800, arrives last."""
    own = [backward(0, 900), op("mm", 0, 900), op("mm", 1200, 2000), *bucket(0, 300, 300, 300, 700)]
    run = run_of(tmp_path, [*own, *bucket(1, 500, 500, 700, 1190)], [*own, *bucket(1, 800, 800, 800, 1190)])
    assert found(run) == [("tail", 1, "bucket 1", 290)]


def test_the_last_of_a_kind_of_which_others_were_hidden_is_the_tail(tmp_path: Path) -> None:
    """Their purpose is unknown. Nothing computes during the last one, but that is not blocking by design."""
    events = [op("mm", 0, 600), *carried(0, 100, 300, launch=100), *carried(1, 610, 790, launch=605)]
    assert found(alone(tmp_path, *events, op("mm", 800, 900))) == [("tail", 1, None, 180)]


def test_tail_is_gradients_when_the_backward_pass_is_over(tmp_path: Path) -> None:
    run = alone(tmp_path, backward(0, 600), op("mm", 0, 600), *bucket(0, 500, 500, 500, 900), op("mm", 910, 1000))
    assert found(run) == [("tail", 0, "bucket 0", 300)]


def test_a_gather_launched_when_it_is_needed_is_late(tmp_path: Path) -> None:
    """Without prefetching: while layer 0 computes from 200 to 400, the link is free and layer 1 could be gathered."""
    events = [step(0, 0, 2000), op("mm", 200, 400), op("mm", 570, 1900)]
    events += gather(0, 10, 10, 190) + gather(1, 400, 410, 560)
    assert found(alone(tmp_path, *events)) == [
        ("tail", 0, "layers.0", 170),
        ("late launch", 0, "layers.0", 10),  # it could have been launched when the step began
        ("late launch", 1, "layers.1", 150),
    ]


def test_a_gather_longer_than_the_compute_that_could_hide_it_is_bound_by_the_link(tmp_path: Path) -> None:
    """Layer 1 is gathered while layer 0 computes, which takes 100."""
    events = [step(0, 0, 2000), op("mm", 200, 300), op("mm", 710, 1900)]
    events += gather(0, 10, 10, 190) + gather(1, 200, 200, 700)
    assert found(alone(tmp_path, *events)) == [
        ("tail", 0, "layers.0", 170),
        ("late launch", 0, "layers.0", 10),
        ("link-bound", 1, "layers.1", 390),
        ("late launch", 1, "layers.1", 10),
    ]


def test_a_gather_behind_gradients_that_nobody_needs_yet_is_queued(tmp_path: Path) -> None:
    """The scatter is on the link from 300 to 500, the gather, launched at 310, to 600: compute waits for it."""
    events = [step(0, 0, 2000), backward(100, 1500), op("mm", 0, 300), op("mm", 610, 1900)]
    events += gather(0, 20, 20, 90) + scatter(1, 300, 300, 500) + gather(2, 310, 500, 600, phase="backward")
    # Of the gather's own 100, all could have been saved: the link was free from 90 to 300.
    assert found(alone(tmp_path, *events)) == [
        ("blocking", 1, "layers.1", 10),
        ("queued", 2, "layers.2", 190),
        ("late launch", 2, "layers.2", 100),
    ]


def test_nothing_is_guessed_of_ranks_whose_traces_are_missing(tmp_path: Path) -> None:
    """It lasts longer than the compute beside it, but may have waited for a rank. The last of its kind is the tail."""
    events = [op("mm", 0, 300), *carried(0, 200, 500, launch=200), op("mm", 510, 800), op("mm", 1100, 1900)]
    events += carried(1, 700, 1000, launch=700)
    run_of(tmp_path, events, events)
    (tmp_path / "rank1.pt.trace.json.gz").unlink()
    assert found(overlaplab.load_run(tmp_path)) == [("unknown", 0, None, 200), ("tail", 1, None, 200)]


def test_communication_of_no_collective_is_unknown(tmp_path: Path) -> None:
    """A range that is communication by its name, but whose label lacks a number."""
    run = alone(tmp_path, op("mm", 0, 300), event("engine::comm", 200, 500, cat="user_annotation", tid=7))
    assert found(run) == [("unknown", None, None, 200)]


def test_buckets_of_one_parameter_each_are_called_by_it(tmp_path: Path) -> None:
    events = [backward(0, 900), op("mm", 0, 400), op("mm", 950, 1900)]
    for seq, name in enumerate(("head.weight", "a%20b")):
        events += [label(f"bucket_ready bucket={seq} bytes=8 parameters={name}", 100, 100.001)]
        events += [label(f"bucket_launch bucket={seq}", 410, 411)] if seq == 0 else []
    events += carried(0, 500, 940, launch=410.2)
    assert found(alone(tmp_path, *events))[0][2] == "head.weight"


def test_on_a_gpu_readiness_is_the_devices_time(tmp_path: Path) -> None:
    """The host launches everything by 30. The bucket's gradients are there when gemm 2 ends, at 500; the link is busy
    until 600 with what was launched before: it queued for 100.
    """
    events = [event("ProfilerStep#0", 0, 50, cat="user_annotation"), backward(1, 40)]
    events += launched("gemm_1", 2, 100, 300, correlation=1)
    events += [label("bucket_ready bucket=0 bytes=8 parameters=a,b", 3, 3.1), label("bucket_launch bucket=0", 4, 6)]
    events += launched("ncclDevKernel_AllReduce", 5, 300, 600, stream=9, correlation=2)
    events += launched("gemm_2", 7, 300, 500, correlation=3)
    events += [label("bucket_ready bucket=1 bytes=8 parameters=a,b", 8, 8.1), label("bucket_launch bucket=1", 9, 11)]
    events += launched("ncclDevKernel_AllReduce", 10, 600, 750, stream=9, correlation=4)
    events += launched("adam", 45, 760, 900, correlation=5)
    run = run_of(tmp_path, events, backend="nccl")
    assert found(run) == [
        ("tail", 0, "bucket 0", 100),
        ("tail", 1, "bucket 1", 50),
        ("queued", 1, "bucket 1", 100),
    ]


def test_it_is_cut_at_the_steps_borders_as_summary_cuts_it(tmp_path: Path) -> None:
    events = [
        step(0, 0, 300),
        step(1, 300, 600),
        op("mm", 0, 100),
        *carried(0, 200, 500, launch=200),
        op("mm", 500, 600),
    ]
    run = alone(tmp_path, *events)
    table = overlaplab.exposed(run)
    assert table.groupby(["rank", "step"])["exposed_ns"].sum().tolist() == [100_000, 200_000] * 2
    assert overlaplab.exposed(run, Selection(steps=[1]))["step"].unique().tolist() == [1]
    assert overlaplab.exposed(run, Selection(ranks=[1], skip_steps=1))[
        ["rank", "step"]
    ].drop_duplicates().to_numpy().tolist() == [[1, 1]]
    with pytest.raises(OverlaplabError, match="not in this run"):
        overlaplab.exposed(run, Selection(ranks=[7]))


def test_without_communication_or_device_activity_there_is_no_row(tmp_path: Path) -> None:
    computing = run_of(tmp_path / "a", [op("mm", 0, 9)])
    unrecorded = run_of(tmp_path / "b", [event("cudaLaunchKernel", 0, 1, cat="cuda_runtime", correlation=1)])
    for run in (computing, unrecorded):
        table = overlaplab.exposed(run)
        assert table.empty
        assert table["exposed_ns"].dtype == "int64"


def test_the_worst_step_is_the_median_one_of_the_worst_rank() -> None:
    table = pd.DataFrame({"rank": [0, 0, 0, 1], "step": [1, 2, 3, 1], "exposed_comm_ns": [90, 20, 10, 5]}).assign(
        span_ns=99
    )
    worst = worst_step(table)
    assert (worst["rank"], worst["step"], worst["exposed_comm_ns"]) == (0, 2, 20)
    assert rows_of(table, worst)["exposed_comm_ns"].tolist() == [20]
    assert worst_step(table[table["step"] < 3])["step"] == 1, "of an even number the higher"
    unknown = table.assign(rank=pd.array([None] * 4, dtype="Int64"), step=pd.array([None] * 4, dtype="Int64"))
    assert len(rows_of(unknown, worst_step(unknown))) == 4


def test_every_cause_has_its_rule_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "exposed.md").read_text().partition("## The rules")[2]
    assert [cause for cause in CAUSES if f". *{cause.capitalize()}*" not in text] == []
