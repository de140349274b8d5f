"""Hops of a predicted collective by hand: what each rank sends ends as the sum on all ranks."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from overlaplab.analyses import chunks_after_hops
from overlaplab.costs import hop_count
from overlaplab.simulate.player import Launch
from overlaplab.simulate.predictions.by_hand import HopEvents, chunk_bytes, rank_hops
from overlaplab.vocabulary import label_fields

RING, TREE = (Launch("bucket", 600, "all_reduce", 56, what="3", hops=hops) for hops in ("ring", "tree"))


def rows(launch: Launch, ranks: int) -> pd.DataFrame:
    """As `analyses.hops` has them."""
    found: list[dict[str, Any]] = []
    for rank in range(ranks):
        for hop in rank_hops(launch, rank, ranks):
            sends, to = hop.sends or (None, None)
            receives, source = hop.receives or (None, None)
            row = {"rank": rank, "hop": hop.number, "kind": hop.kind, "sends": sends, "to": to}
            found.append(row | {"receives": receives, "source": source})
    return pd.DataFrame(found)


@pytest.mark.parametrize("launch", [RING, TREE], ids=["ring", "tree"])
@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
def test_all_ranks_have_the_sum_in_the_end(launch: Launch, ranks: int) -> None:
    table = rows(launch, ranks)
    sent = {(row["hop"], row["rank"], row["to"], row["sends"]) for row in table.to_dict("records") if row["to"] >= 0}
    got = [row for row in table.to_dict("records") if row["source"] >= 0]
    assert sent == {(row["hop"], row["source"], row["rank"], row["receives"]) for row in got}
    moments = chunks_after_hops(table)
    last = moments[moments["hop"] == hop_count(ranks, launch.hops or "") - 1]
    assert set(last["rank"]) == set(range(ranks))
    assert set(last["ranks"]) == {ranks}


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_chunks_of_a_ring_hold_the_whole(ranks: int) -> None:
    """Of 14 elements of 4 bytes; they differ by an element at most."""
    sizes = [chunk_bytes(RING, chunk, ranks, 4) for chunk in range(ranks)]
    assert sum(sizes) == RING.bytes
    assert max(sizes) - min(sizes) <= 4
    assert chunk_bytes(TREE, 0, ranks, 4) == TREE.bytes


def test_hops_share_the_time_of_their_collective() -> None:
    """Three ranks: four hops of 150 ns around a ring, each of two messages on lanes of their own."""
    events = list(HopEvents(0, 3, "float32", 4, None).events(RING, (1000, 1600)))
    told = [(event, label_fields(event.name)) for event in events]
    hops = [(event.start_ns, event.end_ns) for event, label in told if label and label[0] == "hop"]
    assert hops == [(1000, 1150), (1150, 1300), (1300, 1450), (1450, 1600)]
    comms = [
        (label[1]["group"], label[1]["seq"], label[1]["bytes"]) for _, label in told if label and label[0] == "comm"
    ]
    assert comms == [
        *(("0%3A0-1", "0", "16"), ("0%3A2-0", "0", "20")),
        *(("0%3A0-1", "1", "20"), ("0%3A2-0", "1", "20")),
        *(("0%3A0-1", "2", "20"), ("0%3A2-0", "2", "16")),
        *(("0%3A0-1", "3", "16"), ("0%3A2-0", "3", "20")),
    ]


def test_a_chunk_without_elements_is_not_sent() -> None:
    """One element for three ranks: chunk 0 alone is sent."""
    tiny = Launch("bucket", 600, "all_reduce", 4, what="0", hops="ring")
    names = [event.name for event in HopEvents(1, 3, "float32", 4, None).events(tiny, (0, 600))]
    assert {label[1]["bytes"] for name in names if (label := label_fields(name)) and label[0] == "comm"} == {"4"}
