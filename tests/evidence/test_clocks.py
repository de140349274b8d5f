"""The offsets between ranks' clocks."""

from __future__ import annotations

import random
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made.ranks import carried_all
from made.traces import op, run_of, step

import overlaplab
from overlaplab import Run
from overlaplab.event_columns import EVENT_COLUMNS
from overlaplab.events import Group, Tables, Trace, empty_table
from overlaplab.evidence.recorded import RECORDED_COLUMNS, recorded_collectives
from overlaplab.findings import run_warnings
from overlaplab.timeline.timeline import timeline_events

ENDS = [1000, 2100, 3050, 4700, 5500]


def ranks_with_clocks(folder: Path, *ahead_us: list[float]) -> Run:
    """Ranks that end each of five collectives so much later, by their clocks, than at `ENDS`."""
    ranks: list[list[dict[str, Any]]] = []
    for ahead in ahead_us:
        spans = [(end - 400 + late, end + late) for end, late in zip(ENDS, ahead, strict=True)]
        start = ahead[0]
        ranks.append([step(0, start, start + 6000), op("mm", start, start + 10), *carried_all(spans)])
    return run_of(folder, *ranks)


def test_the_offset_is_the_median_difference_of_ends(tmp_path: Path) -> None:
    run = ranks_with_clocks(tmp_path, [0] * 5, [2300, 2310, 2320, 2290, 2310], [-20, 10, -30, 0, 5])
    assert overlaplab.clocks(run).to_dict("list") == {
        "rank": [0, 1, 2],
        "offset_ns": [0, 2_310_000, 0],
        "iqr_ns": [0, 10_000, 25_000],
        "collectives": [0, 5, 5],
        "applied": [False, True, False],
        "error_ns": [0, 10_000, 25_000],
    }
    assert run_warnings(run) == (
        "rank 1's clock was 2.31 ms ahead of rank 0's; corrected (by 5 collectives, ± 0.010 ms)",
    )


@pytest.mark.parametrize(
    ("ahead", "applied", "error_us"),
    [
        ([201, 201, 201, 201, 201], True, 0),
        ([-201, -201, -201, -201, -201], True, 0),
        ([200, 200, 200, 200, 200], False, 200),  # not above 200 µs
        ([500, 600, 700, 800, 900], True, 200),
        ([300, 420, 600, 630, 900], False, 600),  # not above 3 × 210 µs; left as it is, all of it is an error
    ],
)
def test_only_what_is_clear_is_corrected(tmp_path: Path, ahead: list[float], applied: bool, error_us: float) -> None:
    run = ranks_with_clocks(tmp_path, [0] * 5, ahead)
    row = overlaplab.clocks(run).iloc[1]
    assert (row["applied"], row["error_ns"]) == (applied, 1000 * error_us)


def test_two_collectives_have_no_meaningful_spread(tmp_path: Path) -> None:
    late = [[*carried_all([(0, 10), (20, 30)])], [*carried_all([(5000, 5010), (5020, 5030)])]]
    run = run_of(tmp_path, *late)
    row = overlaplab.clocks(run).iloc[1]
    assert (row["offset_ns"], row["applied"], row["error_ns"]) == (5_000_000, False, 5_000_000)


def test_ranks_are_compared_by_corrected_clocks(tmp_path: Path) -> None:
    run = ranks_with_clocks(tmp_path, [0] * 5, [5000] * 5)
    assert overlaplab.summary(run)["start_ns"].tolist() == [0, 0]
    table = overlaplab.collectives(run)
    assert table["start_ns"].tolist() == [1000 * (end - 400) for end in ENDS for _ in range(2)]
    assert table["wait_ns"].tolist() == [0] * 10
    timeline = timeline_events(run)
    assert timeline.steps["start_ns"].tolist() == [0, 0]
    exposed = timeline.lanes[timeline.lanes["label"].str.endswith("exposed")]["lane"]
    marks = [timeline.events[timeline.events["lane"] == lane] for lane in exposed]
    drawn = [
        own.loc[~own["start_ns"].isin(own["end_ns"]), "start_ns"].tolist() for own in marks
    ]  # causes follow causes
    assert drawn[0] == drawn[1] == [1000 * (end - 400) for end in ENDS]


def test_a_rank_that_shares_nothing_with_the_first_is_placed_by_another(tmp_path: Path) -> None:
    """Ranks 0 and 1 are one group, 1 and 2 another."""
    spans = [(end - 400, end) for end in ENDS]

    def late(by: float) -> list[tuple[float, float]]:
        return [(start + by, end + by) for start, end in spans]

    here = [
        carried_all(spans, group="a"),
        carried_all(late(3000), group="a") + carried_all(late(13000), group="b"),
        carried_all(late(14000), group="b"),
        carried_all(late(0), group="c"),
    ]
    table = overlaplab.clocks(run_of(tmp_path, *here))
    assert table["offset_ns"].tolist() == [0, 3_000_000, 4_000_000, pd.NA]
    assert table["error_ns"].tolist() == [0, 0, 0, 200_000]


def test_against_medians_and_quartiles_of_the_ends(tmp_path: Path) -> None:
    for case in range(8):
        chance = random.Random(case)
        ends = [sorted(chance.sample(range(10**6), 9)) for _ in range(3)]
        ranks = [carried_all([(end - 5, end) for end in one]) for one in ends]
        table = overlaplab.clocks(run_of(tmp_path / str(case), *ranks))
        for rank in (1, 2):
            differences = [1000 * (a - b) for a, b in zip(ends[rank], ends[0], strict=True)]
            low, _, high = statistics.quantiles(differences, n=4, method="inclusive")
            assert table["offset_ns"][rank] == statistics.median(differences)
            assert table["iqr_ns"][rank] == pytest.approx(high - low, abs=1)


def run_of_ends(groups: list[dict[int, list[int]]]) -> Run:
    """A run in which these ranks of each group end its all-reduces then, in ns."""
    held = sorted({rank for group in groups for rank in group})
    named = [Group(name=str(number), ranks=tuple(sorted(ends))) for number, ends in enumerate(groups)]
    tables: dict[int, list[pd.DataFrame]] = {rank: [] for rank in held}
    for number, group in enumerate(groups):
        for rank, ends in group.items():
            rows = {name: [0 if dtype == "int64" else ""] * len(ends) for name, dtype in RECORDED_COLUMNS.items()}
            of_group = {"group": str(number), "kind": "all_reduce", "kind_known": True, "sequence": range(len(ends))}
            of_group |= {"source": -1, "destination": -1, "root": -1, "comms_id": -1}
            times = {"start_ns": np.array(ends) - 5, "arrived_ns": np.array(ends) - 5, "end_ns": ends}
            tables[rank].append(pd.DataFrame(rows | of_group | times))
    empty = Tables(**{name: empty_table(EVENT_COLUMNS) for name in ("events", "collectives", "inputs")})
    name = f"{recorded_collectives.__module__}.{recorded_collectives.__qualname__}"
    traces = [
        Trace(
            path=f"rank{rank}.json",
            rank=rank,
            tables=empty,
            precomputed={name: pd.concat(own).sort_values("start_ns", ignore_index=True).astype(RECORDED_COLUMNS)},
            groups=tuple(group for group in named if rank in group.ranks),
        )
        for rank, own in tables.items()
    ]
    return Run(path="made", manifest=None, traces=tuple(traces))


def offsets_by_search(ranks: int, groups: list[dict[int, list[int]]]) -> list[int | None]:
    """Each rank's offset, where every pair of a placed and a new rank is looked at to find the next."""
    offsets: dict[int, int] = {0: 0}

    def shared(old: int, new: int) -> list[int]:
        both = (zip(group[old], group[new], strict=True) for group in groups if old in group and new in group)
        return [theirs - mine for pairs in both for mine, theirs in pairs]

    while True:
        pairs = [pair for pair in product(offsets, set(range(ranks)) - offsets.keys()) if shared(*pair)]
        if not pairs:
            return [offsets.get(rank) for rank in range(ranks)]
        old, new = max(pairs, key=lambda pair: (pair[0] == 0, len(shared(*pair)), -pair[0], -pair[1]))
        offsets[new] = round(statistics.median(shared(old, new))) + offsets[old]


def test_each_rank_is_compared_with_the_placed_one_that_shares_most() -> None:
    for case in range(16):
        chance = random.Random(case)
        ranks = chance.randint(3, 9)
        groups: list[dict[int, list[int]]] = []
        for _ in range(chance.randint(2, 7)):
            members = chance.sample(range(ranks), chance.randint(2, min(4, ranks)))
            count = chance.choice((1, 2, 3, 5))
            groups.append({rank: sorted(chance.sample(range(0, 10**6, 2), count)) for rank in members})
        groups.append({rank: [] for rank in range(ranks)})
        found = overlaplab.clocks(run_of_ends(groups))["offset_ns"]
        assert [None if pd.isna(one) else one for one in found] == offsets_by_search(ranks, groups), case


@pytest.mark.timeout(60)
def test_five_hundred_ranks_are_placed() -> None:
    """Groups of a hundred, joined by a chain of pairs: looking at every pair each time takes two minutes."""
    groups = [{rank: [100 + rank] for rank in range(first, first + 100)} for first in range(0, 500, 100)]
    groups += [{first: [200 + first], first + 100: [300 + first]} for first in range(0, 400, 100)]
    assert overlaplab.clocks(run_of_ends(groups))["offset_ns"].tolist() == list(range(500))
