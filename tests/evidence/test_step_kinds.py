"""Kinds of steps: what is sent and done in each, and how often each comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made.step_rows import summary_rows
from made.traces import event, gloo, op, run_of, step

import overlaplab
from overlaplab.analyses import worst_step
from overlaplab.analyses.worst import costliest_kind, outlier_steps
from overlaplab.events import empty_table
from overlaplab.evidence.step_kinds import kind_period, step_kinds
from overlaplab.findings.diagnosis.step_kinds import kind_name, kinds_finding


def training(folder: Path, *steps: int, length: int = 100) -> overlaplab.Run:
    """Two ranks; each step has so many all-reduces."""
    events: list[dict[str, Any]] = []
    for number, collectives in enumerate(steps):
        at = number * length
        events += [step(number, at, at + length - 1), op("mm", at, at + 20)]
        events += [gloo(at + 20 + 10 * place, at + 30 + 10 * place) for place in range(collectives)]
    return run_of(folder, events, events)


def test_steps_that_send_the_same_are_of_one_kind(tmp_path: Path) -> None:
    run = training(tmp_path, 0, 0, 3, 0, 0, 3)
    assert step_kinds(run) == {0: 0, 1: 0, 2: 1, 3: 0, 4: 0, 5: 1}
    assert overlaplab.summary(run)["step_kind"].tolist() == [0, 0, 1, 0, 0, 1] * 2


@pytest.mark.parametrize(("first", "second"), [((0, 6), (2, 8)), ((0, 8), (0, 7))])
def test_a_step_that_a_rank_has_not_recorded_is_of_the_others_kind(
    tmp_path: Path, first: tuple[int, int], second: tuple[int, int]
) -> None:
    """Every third step sends more."""
    ranks = [
        [step(number, 100 * number, 100 * number + 99) for number in range(*recorded)]
        + [gloo(100 * number, 100 * number + 9) for number in range(*recorded)]
        + [gloo(100 * number + 20, 100 * number + 29) for number in range(*recorded) if number % 3 == 2]
        for recorded in (first, second)
    ]
    assert step_kinds(run_of(tmp_path, *ranks)) == {number: int(number % 3 == 2) for number in range(8)}


def test_steps_that_differ_freely_are_of_one_kind(tmp_path: Path) -> None:
    assert set(step_kinds(training(tmp_path, 0, 1, 2, 3, 4)).values()) == {0}


def test_optimizer_steps_tell_kinds_apart(tmp_path: Path) -> None:
    events = [step(number, 100 * number, 100 * number + 99) for number in range(4)]
    events += [event("Optimizer.step#SGD.step", at, at + 5, cat="user_annotation") for at in (50, 250)]
    assert step_kinds(run_of(tmp_path, events)) == {0: 0, 1: 1, 2: 0, 3: 1}


def test_what_the_host_does_by_name_tells_kinds_apart(tmp_path: Path) -> None:
    """Every other step saves; loading has a number in its name."""
    events = [step(number, 1000 * number, 1000 * number + 999) for number in range(6)]
    for number in range(6):
        begun = 1000 * number
        events += [event("DistributedDataParallel.forward", begun + 100, begun + 200, cat="user_annotation")]
        events += [event(f"load {number}", begun + 10, begun + 20, cat="user_annotation")]
        events += [event("engine::forward microbatch=0", begun + 100, begun + 200, cat="user_annotation")]
        events += [event("saving", begun + 800, begun + 900, cat="user_annotation")] * (number % 2)
    assert step_kinds(run_of(tmp_path, events)) == {number: number % 2 for number in range(6)}


@pytest.mark.parametrize(
    ("lengths", "kinds"),
    [
        ((586, 618, 590, 622, 584, 616), [0, 1, 0, 1, 0, 1]),
        ((586, 618, 590, 622, 584), [0] * 5),  # of five it may be chance
        ((586, 618, 600, 622, 584, 616), [0] * 6),  # short ones differ by as much
        ((586, 590, 586, 590, 586, 590), [0] * 6),  # hardly longer
        ((586, 618, 616, 588, 584, 616), [0] * 6),
    ],
)
def test_steps_that_alternate_are_of_two_kinds(tmp_path: Path, lengths: tuple[int, ...], kinds: list[int]) -> None:
    at, events = 0, list[dict[str, Any]]()
    for number, length in enumerate(lengths):
        events += [step(number, at, at + length), op("mm", at, at + length)]
        at += length
    assert list(step_kinds(run_of(tmp_path, events, events)).values()) == kinds


@pytest.mark.parametrize(
    ("steps", "recorded", "period"),
    [
        *[([3, 7], range(2, 10), 4), ([3, 7], range(2, 9), None), ([3], range(2, 10), None)],
        *[([2, 4, 7], range(9), None), ([2, 3], range(2, 6), None)],
    ],
)
def test_how_often_a_kind_comes_is_known_from_two_periods_on(
    steps: list[int], recorded: range, period: int | None
) -> None:
    assert kind_period(steps, recorded) == period


AVERAGES = [number % 4 == 3 for number in range(8)]
UNKNOWN = empty_table({"rank": "Int64", "step": "Int64", "phase": "object", "what": "object", "took_ns": "int64"})
UNKNOWN["number"] = pd.Series(dtype="float64")
STEPS = summary_rows(*[(0, number, *((280, 220) if averages else (60, 0))) for number, averages in enumerate(AVERAGES)])
KINDS = STEPS.assign(step_kind=list(map(int, AVERAGES)))


def test_the_kind_that_costs_most_speaks() -> None:
    assert costliest_kind(KINDS) == 1
    assert worst_step(KINDS)["step"] in (3, 7)
    assert outlier_steps(KINDS) == (), "they are no exception"
    assert outlier_steps(STEPS) == (3, 7)
    assert kind_name(KINDS, 3) == "one step in 4"
    assert kind_name(STEPS, 3) == ""
    assert kinds_finding(KINDS, UNKNOWN) == (
        "Its steps are of 2 kinds: 6 of 8 steps with 60.0 ms, 0 ms of it exposed; one step in 4 (3 and 7) with"
        " 280.0 ms, 220.0 ms of it exposed. A mean step takes 115.0 ms."
    )


def test_a_single_step_of_its_kind_does_not_speak() -> None:
    once = KINDS[KINDS["step"] < 7]
    assert costliest_kind(once) == 0
    assert outlier_steps(once) == (3,)
