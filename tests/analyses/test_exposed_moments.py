"""Why communication was exposed: all rules against plain Python that looks at every moment."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st
from made.exposed import backward, bucket, gather, scatter
from made.ranks import carried
from made.traces import op, run_of, step

import overlaplab
from overlaplab.analyses import exposed_moments

UNIT = 100  # µs: longer than the grain below which nothing is told apart
BORDER, LAST = 40, 80  # of two steps, in units
NEVER = 10**6
PAUSE = 10  # units that a pause after communication may last before something else holds the rank up
GRADIENTS = ("bucket", "scatter")


@dataclass
class Drawn:
    """A collective of all ranks, in units: what it is, and per rank how long after the launch of the one before it was
    ready, how long then until its launch and until its start; and how long it took from its last start on.
    """

    what: str
    ranks: list[tuple[int, int, int]]
    took: int


@dataclass
class Seen:
    """A collective of one rank; `moves` is when its last rank arrived."""

    number: int
    what: str
    start: int
    end: int
    asked: int
    ready: int | None
    matched: bool
    moves: int
    late: int = 0
    queued: int = 0


drawn = st.builds(
    Drawn,
    what=st.sampled_from(["bucket", "bucket", "gather", "gather", "scatter", "other", "unknown"]),
    ranks=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 8), st.integers(0, 8)), min_size=2, max_size=2),
    took=st.integers(1, 9),
)


def ranks_of(collectives: Sequence[Drawn]) -> list[list[Seen]]:
    """When each ran. They may overlap, but start in order of launch, and end at once on all ranks: clocks agree."""
    found: list[list[Seen]] = [[], []]
    at, begun = [1, 1], [0, 0]
    for number, one in enumerate(collectives):
        ready = [at[rank] + one.ranks[rank][0] for rank in range(2)]
        at = [ready[rank] + one.ranks[rank][1] for rank in range(2)]
        begun = [max(begun[rank] + 1, at[rank] + one.ranks[rank][2]) for rank in range(2)]
        for rank, own in enumerate(found):
            known = ready[rank] if one.what == "bucket" else None
            end = max(begun) + one.took
            own.append(Seen(number, one.what, begun[rank], end, at[rank], known, one.what != "unknown", 0))
    return found


def events_of(own: Sequence[Seen], computing: set[int], ends: int) -> list[dict[str, Any]]:
    events = [step(0, 0, BORDER * UNIT), step(1, BORDER * UNIT, LAST * UNIT), backward(0, ends * UNIT)]
    events += [op("mm", at * UNIT, (at + 1) * UNIT) for at in sorted(computing)]
    for one in own:
        asked, start, end = one.asked * UNIT, one.start * UNIT, one.end * UNIT
        if one.what == "bucket":
            assert one.ready is not None
            events += bucket(one.number, one.ready * UNIT - 0.01, asked, start, end)
        elif one.what in ("gather", "scatter"):
            events += (gather if one.what == "gather" else scatter)(one.number, asked, start, end)
        else:
            kind = "" if one.what == "unknown" else "all_to_all"
            events += carried(one.number, start, end, launch=asked, kind=kind)
    return events


def expected(ranks: Sequence[list[Seen]], computing: Sequence[set[int]], ends: int) -> list[Counter[Any]]:
    """How many moments each step, cause and collective has, by rank."""
    for own, compute in zip(ranks, computing, strict=True):
        delays(own, compute)
    for same in zip(*ranks, strict=True):
        arrived = [arrival(one, ranks[rank]) for rank, one in enumerate(same)]
        if same[0].matched:
            in_time = max(at - one.late for at, one in zip(arrived, same, strict=True))
            free = max(at - one.late - one.queued for at, one in zip(arrived, same, strict=True))
            for one in same:
                one.moves = min(max(max(arrived), one.start), one.end)
                one.late, one.queued = max(arrived) - in_time, in_time - free
        else:
            for one in same:
                one.moves = one.start
    found = []
    for own, compute in zip(ranks, computing, strict=True):
        counts: Counter[Any] = Counter()
        for number, window in enumerate((range(BORDER), range(BORDER, LAST))):
            for cause, collective in of_window(own, compute, window, ends):
                counts[number, cause, collective] += 1
        found.append(counts)
    return found


def arrival(one: Seen, own: Sequence[Seen]) -> int:
    """When it arrives on the emulated link: launched, and the previous collective over."""
    before = own[one.number - 1].end if one.number else 0
    return min(max(one.asked, before), one.start)


def delays(own: list[Seen], compute: set[int]) -> None:
    link = {at for one in own for at in range(one.start, one.end)}
    for one in own:
        if one.what == "gather":
            one.ready = BORDER if one.asked > BORDER else 0  # its label begins 1 ns before
            earlier = [other.start for other in own if other.what == "gather" and other.number < one.number]
            one.ready = max([one.ready, *earlier])
        if one.ready is not None:
            one.late = sum(at not in link for at in range(one.ready, one.asked))
        ended = [other.end for other in own if other.end <= one.start]
        one.queued = max([0, *(end - one.asked for end in ended)])


def of_window(own: list[Seen], compute: set[int], window: range, ends: int) -> list[tuple[str, int | None]]:
    edges = {one.number: is_edge(one, own, compute, ends) for one in own}
    owners = {}
    for at in window:
        active = [one for one in own if one.start <= at < one.end]
        if at not in compute and active:
            owners[at] = min(
                active, key=lambda one: (does(one, at), one.end > resumes(compute, at), one.start, one.number)
            )
    moving = {at for one in own if one.matched for at in range(one.moves, one.end)}
    excess = max(0, sum(at in moving for at in window) - sum(at in compute for at in window))
    moves = [at for at, one in owners.items() if does(one, at) == 0]
    bound = set(moves[len(moves) - excess :]) if excess else set()
    behind = Counter(
        follower.number
        for at, one in owners.items()
        if at not in bound and (follower := behind_which(one, at, own, compute, ends, edges)) is not None
    )
    found: list[tuple[str, int | None]] = []
    for at, one in owners.items():
        after = resumes(compute, at)
        follower = behind_which(one, at, own, compute, ends, edges)
        early = one.end - one.late
        if does(one, at) == 2:
            cause = "straggler wait"
        elif at in bound:
            cause = "link-bound"
        elif one.end > after or is_held_up(one, after, own, compute, edges[one.number]):
            cause = "compute gap"
        elif is_blocking(one, compute, ends, edges[one.number]):
            cause = "blocking"
        elif follower is not None:
            found.append(("queued", follower.number))
            continue
        elif at >= early:
            cause = "late launch"
        elif at >= early - max(0, one.queued - behind[one.number]):
            cause = "queued"
        elif edges[one.number]:
            cause = "tail"
        elif one.what in GRADIENTS:
            cause = "blocking"
        else:
            cause = "link-bound" if one.matched else "unknown"
        found.append((cause, one.number))
    return found


def does(one: Seen, at: int) -> int:
    return 1 if not one.matched else 2 if at < one.moves else 0


def resumes(compute: set[int], at: int) -> int:
    return min((later for later in compute if later >= at), default=NEVER)


def is_held_up(one: Seen, after: int, own: list[Seen], compute: set[int], edge: bool) -> bool:
    """Whether something else than communication kept the rank from computing again."""
    ended = max((other.end for other in own if other.end <= after), default=0)
    blocked = any(other.asked < one.end <= other.end and is_waited_for(other, own, compute) for other in own)
    return one.what in GRADIENTS and not edge and after != NEVER and after - ended > PAUSE and not blocked


def is_waited_for(one: Seen, own: list[Seen], compute: set[int]) -> bool:
    """Whether its host begins nothing from its launch to its end, and computes nothing."""
    begun = {BORDER, *(at for other in own for at in (other.asked, other.ready if other.what == "bucket" else None))}
    return not {*range(one.asked + 1, one.end)} & begun and not {*range(one.asked, one.end)} & compute


def is_blocking(one: Seen, compute: set[int], ends: int, edge: bool) -> bool:
    if one.what in GRADIENTS:
        return one.asked > ends  # its label begins 1 ns before
    return one.what != "gather" and not edge and not compute & set(range(one.asked, one.end))


def is_edge(one: Seen, own: list[Seen], compute: set[int], ends: int) -> bool:
    if one.what in GRADIENTS:
        return one.end >= ends
    same = [other for other in own if other.what == one.what]
    if one.what == "gather":
        return one.asked < min(other.end for other in same if (other.asked >= BORDER) == (one.asked >= BORDER))
    alike = [other for other in same if (other.start >= BORDER) == (one.start >= BORDER)]
    hidden = any(compute & set(range(other.start, other.end)) for other in alike)
    return hidden and one.start == max(other.start for other in alike)


def behind_which(
    one: Seen, at: int, own: list[Seen], compute: set[int], ends: int, edges: dict[int, bool]
) -> Seen | None:
    """The collective for which the rank waits while the link carries gradients whose sum is not needed yet."""
    after = resumes(compute, at)
    needless = one.what in GRADIENTS and not edges[one.number] and one.asked <= ends
    if not needless or does(one, at) == 2 or one.end > after:
        return None
    follower = min((other for other in own if other.start >= one.end), key=lambda other: other.start, default=None)
    return follower if follower is not None and follower.end <= after and follower.asked <= at else None


@settings(max_examples=int(os.environ.get("FUZZ", "12")), deadline=None)
@given(
    st.lists(drawn, min_size=1, max_size=6),
    st.lists(st.sets(st.integers(0, LAST - 1), max_size=60), min_size=2, max_size=2),
    st.integers(5, LAST),
)
def test_every_moment_has_the_cause_that_the_rules_give_it(
    collectives: list[Drawn], computing: list[set[int]], ends: int
) -> None:
    ranks = ranks_of(collectives)
    with tempfile.TemporaryDirectory() as folder:
        run = run_of(Path(folder), *(events_of(own, busy, ends) for own, busy in zip(ranks, computing, strict=True)))
        table, moments = overlaplab.exposed(run), exposed_moments(run)
        summary = overlaplab.summary(run)
        index = overlaplab.collectives(run)
    check_moments(moments, table)
    sums = table.groupby(["rank", "step"])["exposed_ns"].sum()
    for row in summary.to_dict("records"):
        assert sums.get((row["rank"], row["step"]), 0) == row["exposed_comm_ns"]
        if not pd.isna(row["exposed_wait_ns"]):
            own = table[(table["rank"] == row["rank"]) & (table["step"] == row["step"])]
            assert own.loc[own["cause"] == "straggler wait", "exposed_ns"].sum() == row["exposed_wait_ns"]
    names = dict(zip(zip(index["rank"], index["start_ns"], strict=True), index["index"], strict=True))
    for rank, counts in enumerate(expected(ranks, computing, ends)):
        number = {names[rank, one.start * UNIT * 1000]: one.number for one in ranks[rank]}
        told = {  # a bucket is ready 10 ns before its moment, so that the label comes before that of its launch
            (row["step"], row["cause"], number[row["collective"]]): units
            for row in table[table["rank"] == rank].to_dict("records")
            if (units := round(row["exposed_ns"] / (UNIT * 1000)))
        }
        assert told == dict(counts)


def check_moments(moments: pd.DataFrame, table: pd.DataFrame) -> None:
    """The moments add up to the table's rows, one by one, and no rank has two at once."""
    keys = ["rank", "step", "cause", "collective"]
    found = moments.assign(exposed_ns=moments["end_ns"] - moments["start_ns"]).groupby(keys, dropna=False)
    sums = found.agg({"exposed_ns": "sum", "start_ns": "min", "end_ns": "max"}).reset_index()
    columns = [*keys, "exposed_ns", "start_ns", "end_ns"]
    assert sorted(map(tuple, sums[columns].astype(object).to_numpy())) == sorted(
        map(tuple, table[columns].astype(object).to_numpy())
    )
    for _, own in moments.groupby("rank"):
        starts, ends = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
        assert (starts[1:] >= ends[:-1]).all()
        again = (own[keys].iloc[1:].to_numpy() == own[keys].iloc[:-1].to_numpy()).all(axis=1)
        assert not (again & (starts[1:] == ends[:-1])).any()  # these would be one
