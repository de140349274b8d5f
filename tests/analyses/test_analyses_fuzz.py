"""Whatever a trace holds, the five analyses give tables that add up, or the loader one error that names the file.

`FUZZ=20000 pytest --timeout 6000 tests/analyses/test_analyses_fuzz.py` tries so many mutations; FUZZ_FROM gives the
number of the first.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hostile.mutations import mutated
from made.exposed import backward, bucket, gather, scatter
from made.gpu import bucketed, fsdp2, zero3
from made.ranks import group
from made.runs import engine_events
from made.strangers import one_f_one_b
from made.traces import document, event, gloo, op, step
from samples import TRACES, late_gradients, sample_run

from overlaplab import (
    OverlaplabError,
    Run,
    buckets,
    collectives,
    exposed,
    load_run,
    schedule,
    stragglers,
    summary,
    totals,
)
from overlaplab.analyses import PARTS, communication_by, each_collective, gathered_bytes
from overlaplab.analyses.collectives import time_spent
from overlaplab.events import activity
from overlaplab.intervals import subtract, total

COUNT = int(os.environ.get("FUZZ", "42"))
FIRST = int(os.environ.get("FUZZ_FROM", "0"))
ANALYSES: tuple[Callable[[Run], pd.DataFrame], ...] = (summary, exposed, buckets, schedule, collectives)
PIPELINE_CAUSES = {"pipeline bubble", "stage imbalance", "waiting for send"}
NUMBERS = (-1, 0, 1, 0.5, 10**6, 2**31, 2**53, 1.7e15)

Event = dict[str, Any]


@cache
def seeds() -> list[list[Event]]:
    """One rank's events: of the engine on a link and on a GPU, DDP, FSDP2, a pipeline, and plain loops; of a GAN, whose
    second model has a Recorder and sends its bucket twice.
    """
    plain = [step(0, 0, 90), op("mm", 1, 30), gloo(20, 60), step(1, 90, 180), op("mm", 95, 120), gloo(130, 170)]
    labelled = [step(0, 0, 90), backward(0, 60), op("mm", 1, 30), op("mm", 50, 80)]
    labelled += [*bucket(0, 5, 8, 10, 40), *scatter(1, 42, 45, 55), *gather(2, 60, 62, 70)]
    made = (bucketed(steps=1), bucketed(ddp=True, labelled=False, steps=1), zero3(1, steps=1), fsdp2(steps=1))
    return [plain, labelled, engine_events(), *made, one_f_one_b()[0].events, gan()]


def gan() -> list[Event]:
    """Backward passes of a model without labels, and twice, after one forward pass, of one with."""
    events = [step(0, 0, 90), op("mm", 1, 3), op("mm", 70, 80)]
    for start in (0, 30):
        events.append(event("DistributedDataParallel.forward", start, start + 4, cat="user_annotation"))
    for number, at in enumerate((10, 40, 60)):
        name = "torch::autograd::AccumulateGrad"
        events += [event(f"autograd::engine::evaluate_function: {name}", at, at + 9), event(name, at + 1, at + 2)]
        events += [event("c10d::allreduce_", at + 4, at + 5), gloo(at + 6, at + 10, tid=7 + number)]
        if number:
            events.append(event("engine::gradient_ready parameter=w", at + 1.5, at + 1.5))
            events.append(event("engine::bucket_ready bucket=0 bytes=8 parameters=w", at + 3, at + 3))
            events.append(event("engine::bucket_launch bucket=0", at + 3.5, at + 5.5))
    return events


def changed(events: list[Event], chance: random.Random) -> list[Event]:
    """The events with a few things amiss: other times, numbers and names, some twice, some gone, some out of order."""
    found = [dict(event) for event in events]
    for _ in range(chance.randint(1, 6)):
        event, other = chance.choice(found), chance.choice(found)
        match chance.randrange(7):
            case 0:
                found.remove(event)
            case 1:
                found.append(event | {"ts": (event.get("ts") or 0) + chance.choice((0, 1, -50, 7.5))})
            case 2:
                key = chance.choice(("ts", "dur", "tid", "pid"))
                event[key] = chance.choice((*NUMBERS, other.get(key), None))
            case 3:
                key = chance.choice(("name", "cat", "ph"))
                event[key] = other.get(key)
            case 4:
                told = {**event.get("args", {})}
                key = chance.choice([*told, "correlation", "stream", "External id", "Seq"])
                event["args"] = told | {key: chance.choice((*NUMBERS, other.get("args", {}).get(key), "x", None))}
            case 5:
                words = str(event["name"]).split(" ")
                words[chance.randrange(len(words))] = chance.choice(("", "seq=-1", "bucket=9", "kind=", "unit=%2", "x"))
                event["name"] = " ".join(words)
            case _:
                event["ts"], other["ts"] = other["ts"], event["ts"]
        if not found:
            return events
    return found


def write(folder: Path, number: int) -> None:
    """Two ranks of one seed, with something amiss in the first one's events, or in its text."""
    chance, events = random.Random(number), seeds()[number % len(seeds())]
    for rank in range(2):
        info = {"rank": rank, "world_size": 2, "backend": "nccl", "pg_config": [group("0", range(2))]}
        own = changed(events, chance) if rank == 0 and number % 4 else events
        text = json.dumps(document(own, distributedInfo=info)).encode()
        (folder / f"rank{rank}.json").write_bytes(mutated(text, number) if rank == 0 and not number % 4 else text)


def check(run: Run) -> None:
    """Tables that say the same of the same thing, in which each moment counts once."""
    tables = {analysis.__name__: analysis(run) for analysis in ANALYSES}
    steps, causes = (tables[name].to_dict("list") for name in ("summary", "exposed"))
    assert steps["span_ns"] == [sum(parts) for parts in zip(*(steps[part] for part in PARTS), strict=True)]
    assert all(ns >= 0 for part in PARTS for ns in steps[part])
    assert all(ns > 0 for ns in causes["exposed_ns"])
    bounds = zip(causes["start_ns"], causes["exposed_ns"], causes["end_ns"], strict=True)
    assert all(start + exposed <= end for start, exposed, end in bounds)
    split = zip(steps["exposed_wait_ns"], steps["exposed_transfer_ns"], steps["exposed_comm_ns"], strict=True)
    assert all(wait + transfer == exposed for wait, transfer, exposed in split if wait is not None)
    own, caused = _by_step(steps, "exposed_comm_ns"), _by_step(causes, "exposed_ns")  # two steps may have one number
    assert {key: sum(ns) for key, ns in own.items() if sum(ns)} == {key: sum(ns) for key, ns in caused.items()}
    assert all(late != rank for late, rank in zip(causes["late_rank"], causes["rank"], strict=True))  # but for another
    kinds = _by_step(causes, "cause")
    for key, waits in _by_step(steps, "exposed_wait_ns").items():
        waited = [ns for ns, cause in zip(caused[key], kinds[key], strict=True) if cause == "straggler wait"]
        staged = PIPELINE_CAUSES & {*kinds[key]}  # which explain waits, too
        assert None in waits or sum(waited) == sum(waits) or (staged and sum(waited) < sum(waits))
    _check_collectives(tables["collectives"])
    _check_units(tables["buckets"], tables["schedule"])
    _check_parts(run, tables["collectives"], tables["buckets"])


def _check_collectives(table: pd.DataFrame) -> None:
    """Each rank's part of a match once, exposed no longer than it took, and of one transfer."""
    table = table.assign(took_ns=table["end_ns"] - table["start_ns"])
    assert not table[table["wait_ns"].notna()].duplicated(["index", "rank"]).any()
    assert (table["took_ns"].dropna() >= 0).all()
    assert (table["wait_ns"].dropna() >= 0).all()
    assert (table["transfer_ns"].dropna() >= 0).all()
    exposed = table[["exposed_ns", "took_ns"]].dropna()
    assert exposed["exposed_ns"].between(0, exposed["took_ns"]).all()
    assert table.loc[table["doubtful"].fillna(False) | table["unmatched"].notna(), "wait_ns"].isna().all()


def _check_units(buckets_: pd.DataFrame, schedule_: pd.DataFrame) -> None:
    """Collectives end after they begin, and each gradient's moment is told; labels may say anything of the rest."""
    for table, before, after in (
        (buckets_, "start_ns", "end_ns"),
        (schedule_, "gather_start_ns", "gather_end_ns"),
    ):
        times = table[[before, after]].dropna().astype("int64")
        assert (times[before] <= times[after]).all(), f"{after} lies before {before}"
    for table, length in ((buckets_, "exposed_ns"), (schedule_, "wait_ns")):
        assert (table[length].dropna() >= 0).all(), length
    assert all(len(row.parameters) == len(row.gradient_ready_ns) for row in buckets_.itertuples() if row.parameters)
    assert late_gradients(buckets_) == []
    assert not (schedule_["resharded_bytes"] > schedule_["bytes"]).any()
    assert not (schedule_["resharded_until_ns"] < schedule_["free_ns"]).any()
    assert (gathered_bytes(schedule_)["resharded_bytes"].dropna() >= 0).all()


def _check_parts(run: Run, collectives_: pd.DataFrame, buckets_: pd.DataFrame) -> None:
    """No part is longer than its whole: waits and transfers than their collective, a bucket's exposed time than the
    bucket, and what a page adds up than what it is a part of.
    """
    spent = time_spent(collectives_)
    assert (collectives_["wait_ns"] <= spent).dropna().all()
    ended = collectives_.groupby("index")["end_ns"].transform("max")
    both = collectives_["wait_ns"] + collectives_["transfer_ns"]
    assert (both <= ended - collectives_["arrived_ns"]).dropna().all()
    each = each_collective(collectives_)
    for part in ("wait_ns", "transfer_ns", "exposed_ns"):
        assert (each[part] <= each["longest_ns"]).dropna().all(), part
    longest_first = collectives_[collectives_["wait_ns"].notna()].sort_values("wait_ns", ascending=False, kind="stable")
    kernels = longest_first.drop_duplicates(["rank", "start_ns", "end_ns"])  # one may carry several messages
    late = stragglers(run)
    assert late["cost_ns"].sum() <= kernels["wait_ns"].sum()
    assert late["alone_ns"].between(0, late["cost_ns"]).all()
    groups, whole = communication_by(run), totals(run).groupby("rank", dropna=False)["comm_ns"].sum()
    assert (groups["exposed_ns"] <= groups["busy_ns"]).all()
    longest = groups.groupby("rank", dropna=False)["busy_ns"].max()
    assert (longest <= whole.reindex(longest.index)).all()
    assert (buckets_["exposed_ns"] <= buckets_["end_ns"] - buckets_["start_ns"]).dropna().all()
    for trace in run.traces:
        own = buckets_[buckets_["rank"].eq(trace.rank).fillna(trace.rank is None)].dropna(subset=["exposed_ns"])
        if _sent_one_by_one(own):
            busy = activity(trace)
            assert own["exposed_ns"].sum() <= total(subtract(busy.communication, busy.compute))


def _sent_one_by_one(buckets_: pd.DataFrame) -> bool:
    """Whether no two of a step's buckets share a moment; those of different steps do not."""
    by = buckets_.sort_values("start_ns", kind="stable").groupby("step", dropna=False)
    return not any(
        (own["start_ns"].iloc[1:].to_numpy() < own["end_ns"].cummax().iloc[:-1].to_numpy()).any() for _, own in by
    )


def _by_step(rows: dict[str, list[Any]], name: str) -> dict[tuple[Any, Any], list[Any]]:
    """The values of a column, by rank and step."""
    values: defaultdict[tuple[Any, Any], list[Any]] = defaultdict(list)
    for *key, value in zip(rows["rank"], rows["step"], rows[name], strict=True):
        values[key[0], key[1]].append(value)
    return values


@pytest.mark.timeout(0 if COUNT > 100 else 300)
def test_any_mutation_gives_tables_that_add_up(tmp_path: Path) -> None:
    answers: Counter[str] = Counter()
    for number in range(FIRST, FIRST + COUNT):
        write(tmp_path, number)
        try:
            check(load_run(tmp_path, cache=False))
            answers["tables"] += 1
        except OverlaplabError as error:
            is_one_line = str(error).startswith(str(tmp_path)) and "\n" not in str(error)
            answers["errors" if is_one_line else "bad errors"] += 1
        except Exception as error:
            raise AssertionError(f"mutation {number}") from error
    print(f"{COUNT} mutations: {dict(answers)}")
    assert answers["bad errors"] == 0
    assert answers["tables"] > COUNT // 2


SAMPLES = sorted(path.parent for path in TRACES.rglob("run.json"))
OFTEN = ("course/hsdp", "course/tree", "ddp-lessons/buffers")
"""Of the folders of samples, those that are unlike the others."""


def is_slow(name: str) -> bool:
    return "/" in name and name not in OFTEN


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * is_slow(name))
        for name in (str(folder.relative_to(TRACES)) for folder in SAMPLES)
    ],
)
def test_the_samples_add_up(name: str) -> None:
    check(sample_run(name))
