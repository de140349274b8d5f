"""Collectives made by hand: their hops, their buckets, what they send, and which chunk is where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made.traces import event, op, run_of, step
from samples import sample_run

import overlaplab
from overlaplab.analyses import chunks_after_hops, hops, volume
from overlaplab.costs import hop_count, hops_ns, transfer_ns, tree_until
from overlaplab.findings import hops_remark, hops_title
from overlaplab.manifest import Link
from overlaplab.sections.blocks import Chart
from overlaplab.sections.run import collectives_section
from overlaplab.sections.run_tables import RunTables
from overlaplab.simulate import advise, gains, remedies
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.programs.setting import Setting
from overlaplab.traits import TRAITS


def message(seq: int, sender: int, receiver: int, at: float, until: float, rank: int) -> list[dict[str, Any]]:
    """On the thread of hops a launch, and on its lane's the message itself."""
    group = f"group=0:{sender}-{receiver}"
    text = f"engine::comm seq={seq} kind=send_recv dtype=float32 bytes=8 {group} link=1Gbps,1us modelled_ns=5"
    lane = 6 if sender == rank else 7
    return [event(f"engine::launch seq={seq} {group}", at, at + 0.5, tid=5), event(text, at, until, tid=lane)]


def hop(rank: int, number: int, at: float, until: float, seq: int) -> list[dict[str, Any]]:
    kind, other = ("reduce_scatter", "all_gather")[number], 1 - rank
    sends, receives = (other, rank) if number == 0 else (rank, other)
    text = f"engine::hop bucket=0 kind={kind} hop={number} bytes=8 sends={sends} to={other} receives={receives}"
    return [
        event(f"{text} source={other}", at, until, tid=5),
        *message(seq, rank, other, at + 1, until - 3, rank),
        *message(seq, other, rank, at + 2, until - 3, rank),
        op("add_", until - 2, until - 1, tid=5),
    ]


def one_rank(rank: int) -> list[dict[str, Any]]:
    """Two steps of 100 µs: a bucket of 16 bytes is ready at 30, and its hops are from 32 to 52 and from 53 to 73."""
    events = []
    for number in range(2):
        start = 100 * number
        steps = [
            step(number, start, start + 100),
            event("engine::backward microbatch=0 sync=1", start + 10, start + 60),
            event("engine::gradient_ready parameter=w", start + 29, start + 30),
            event("engine::bucket_ready bucket=0 bytes=16 parameters=w", start + 30, start + 31),
            event("engine::bucket_launch bucket=0", start + 31, start + 32),
            op("mm", start + 20, start + 60),
        ]
        first = hop(rank, 0, start + 32, start + 52, 2 * number)
        events += [*steps, *first, *hop(rank, 1, start + 53, start + 73, 2 * number + 1)]
    return events


@pytest.fixture
def run(tmp_path: Path) -> overlaplab.Run:
    manifest = {"strategy": "ring", "traits": {"buckets": True, "hops": "ring"}}
    return run_of(tmp_path, one_rank(0), one_rank(1), manifest=manifest)


def test_hops_are_told_by_their_labels(run: overlaplab.Run) -> None:
    table = hops(run)
    assert len(table) == 2 * 2 * 2
    first = {"rank": 0, "step": 0, "bucket": 0, "kind": "reduce_scatter", "hop": 0, "sends": 1, "to": 1}
    first |= {"receives": 0, "source": 1, "bytes": 8, "start_ns": 32_000, "end_ns": 52_000}
    assert table.iloc[0].to_dict() == first
    own = table[table["step"] == 1]
    assert hops_remark(own) == (
        "Bucket 0 of step 1: 2 hops in 0.041 ms, in which each rank sent 16 B."
        " The longest, hop 0 of rank 0, took 0.020 ms."
    )


def test_a_bucket_lasts_as_long_as_its_hops(run: overlaplab.Run) -> None:
    """Between two hops nothing communicates, so that what is exposed adds up to the step's."""
    table = overlaplab.buckets(run)
    assert (
        table[["launch_ns", "start_ns", "end_ns", "exposed_ns"]].to_numpy().tolist() == [[31e3, 32e3, 73e3, 10e3]] * 4
    )


def test_messages_are_communication_of_their_bucket(run: overlaplab.Run) -> None:
    """The additions are no computation, and what of the messages is exposed is the bucket's tail."""
    summary = overlaplab.summary(run)
    assert summary[["compute_ns", "exposed_comm_ns"]].to_numpy().tolist() == [[40_000, 10_000]] * 4
    exposed = overlaplab.exposed(run)
    assert exposed["exposed_ns"].sum() == 4 * 10_000
    assert set(exposed["what"]) == {"bucket 0"}
    assert set(exposed["cause"]) == {"tail"}


def test_a_rank_sends_what_leaves_it(run: overlaplab.Run) -> None:
    table = volume(run)
    assert table[["kind", "count", "bytes", "sent_bytes"]].to_numpy().tolist() == [["send_recv", 4, 32, 16]] * 4


def test_pages_show_the_hops_where_there_are_any(run: overlaplab.Run) -> None:
    found = RunTables(run=run)
    lanes = found.timeline.lanes
    assert lanes.loc[lanes["kind"] == "labels", "label"].tolist() == [
        *("rank 0 buckets", "rank 0 hops", "rank 1 buckets", "rank 1 hops")
    ]
    assert "bucket 0, all-gather hop 1: sends chunk 0 to rank 1, receives chunk 1 from rank 1" in {
        *found.timeline.events["name"]
    }
    for table in (found.hops, found.hops.head(0)):
        vars(found)["hops"] = table
        section = collectives_section(found, found.diagnosis, None)
        assert section is not None
        drawn = [block for block in section.blocks if isinstance(block, Chart) and block.key == "hops_chart"]
        assert len(drawn) == (len(table) > 0)
        for chart in drawn:
            title = chart.draw(dark=True, note=None).to_dict()["title"]["text"]
            assert "and after hop 1 on all ranks" in (title if isinstance(title, str) else " ".join(title))


@pytest.mark.parametrize("sample", ["ring", "course/tree", "course/server"])
def test_the_librarys_collectives_gain_what_predict_says(sample: str) -> None:
    run = sample_run(sample)
    advised = gains(run).set_index("remedy").loc["library_collectives"]
    assert advised["what"] == "bucketed"
    assert advised["step_ns"] == predict(run, Setting(strategy="bucketed")).step_ns


def test_caps_of_a_ring_take_what_predict_says() -> None:
    run = sample_run("ring")
    rows = advise(run).to_dict("records")
    assert len(rows) > 1
    for row in rows:
        assert predict(run, Setting(bucket_cap_mb=row["bucket_cap_mb"])).step_ns == row["step_ns"]
    balanced = remedies(run)["remedy"].isin(["balance", "even_work"])
    assert balanced.any(), "edits of other moves apply, too"


def ring_rows(n: int) -> pd.DataFrame:
    """The hops of a ring, as the engine makes them."""
    rows = []
    for rank in range(n):
        for number in range(2 * (n - 1)):
            adding = number < n - 1
            sends = (rank - number - 1) % n if adding else (rank - number + n - 1) % n
            row = {"rank": rank, "hop": number, "kind": "reduce_scatter" if adding else "all_gather", "sends": sends}
            rows.append(row | {"to": (rank + 1) % n, "receives": (sends - 1) % n, "source": (rank - 1) % n})
    return pd.DataFrame(rows)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_chunks_go_around_the_ring(n: int) -> None:
    """Beside numbers that are really added up."""
    table = ring_rows(n)
    moments = chunks_after_hops(table)
    held = np.ones((n, n), dtype=int)
    for number in range(2 * (n - 1)):
        before = held.copy()
        for row in table[table["hop"] == number].to_dict("records"):
            came = before[row["source"], row["receives"]]
            held[row["rank"], row["receives"]] = came + before[row["rank"], row["receives"]] * (number < n - 1)
        own = moments[moments["hop"] == number].pivot(index="rank", columns="chunk", values="ranks").to_numpy()
        assert (own == held).all()
    assert (held == n).all()
    first = f"After hop {n - 2} the sum is complete, each part of it on a rank of its own,"
    assert hops_title(moments) == f"{first} and after hop {2 * n - 3} on all ranks"
    assert chunks_after_hops(table[table["rank"] > 0]).empty


def test_a_tree_costs_less_latency_and_more_bytes() -> None:
    link = Link(emulated=True, bandwidth_gbps=1.0, latency_us=1000.0, world_size=8)
    assert hops_ns(1_000_000, link, "ring") == 14 * 1_000_000 + 14_000_000  # 14 hops of 125 kB, each 1 ms
    assert hops_ns(1_000_000, link, "tree") == 6 * (1_000_000 + 8_000_000)
    assert transfer_ns("all_reduce", 1_000_000, link, "tree") == hops_ns(1_000_000, link, "tree")
    assert [hop_count(ranks, "tree") for ranks in (1, 2, 3, 4, 5, 8)] == [0, 2, 4, 4, 6, 6]
    until = tree_until(link)
    assert until == pytest.approx(8 * 1000 / (4.25 * 8) * 1000, rel=1e-3)
    assert hops_ns(until, link, "tree") <= hops_ns(until, link, "ring")
    assert tree_until(Link(emulated=True, bandwidth_gbps=1.0, latency_us=1000.0, world_size=3)) == 0
    with pytest.raises(ValueError, match="no model of star"):
        hops_ns(8, link, "star")


def test_only_ring_and_tree_hop() -> None:
    assert {name for name, traits in TRAITS.items() if traits.hops} == {"ring", "tree"}
