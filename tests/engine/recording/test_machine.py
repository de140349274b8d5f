"""Whether the machine was busy: the link's own threads are told from other processes."""

from dataclasses import replace

import pytest
from overlaplab_engine.recording.machine import MachineStep, Reading, machine_step, mark_busy

MS = 1_000_000
STEP = MachineStep(
    rank=0,
    step=2,
    took_ns=300 * MS,
    cores=2,
    ran_ns=250 * MS,
    delayed_ns=30 * MS,
    used_ns=280 * MS,
    busy_ns=570 * MS,
)
"""Of two ranks on two cores: 10 ms are not theirs."""


def two_ranks(**changes: int | None) -> list[MachineStep]:
    return [replace(STEP, rank=rank, **changes) for rank in (0, 1)]


def test_what_the_ranks_did_not_use_others_did() -> None:
    rows = mark_busy(two_ranks())
    assert [row.foreign_ns for row in rows] == [10 * MS, 10 * MS]
    assert not any(row.busy for row in rows)  # 10 % of the step, by the link's threads
    apart = mark_busy(two_ranks(), {0: "a", 1: "b"})
    assert [row.foreign_ns for row in apart] == [290 * MS, 290 * MS]
    assert all(row.busy for row in apart)
    assert mark_busy([replace(STEP, used_ns=600 * MS)])[0].foreign_ns == 0  # ticks are coarse


@pytest.mark.parametrize(
    ("changes", "busy"),
    [
        ({"delayed_ns": 60 * MS}, False),
        ({"delayed_ns": 61 * MS}, True),  # over 20 %, whoever has the cores
        ({"used_ns": 210 * MS}, False),  # others used exactly 25 % of the cores
        ({"used_ns": 209 * MS}, True),
        ({"used_ns": 100 * MS, "delayed_ns": 15 * MS}, False),  # others are there, and nobody minds
        ({"used_ns": 100 * MS, "delayed_ns": None, "ran_ns": None}, False),
        ({"busy_ns": None}, False),
        ({"busy_ns": None, "delayed_ns": 70 * MS}, True),
    ],
)
def test_the_rule(changes: dict[str, int | None], busy: bool) -> None:
    assert [row.busy for row in mark_busy(two_ranks(**changes))] == [busy, busy]


def test_short_steps_go_by_what_others_used_in_all() -> None:
    """60 ms are 2 × 2 ticks: one of them looks as if others had used all, and together they did not."""
    short = replace(STEP, took_ns=60 * MS, ran_ns=50 * MS, delayed_ns=6 * MS, used_ns=60 * MS, busy_ns=60 * MS)
    rows = [replace(short, step=step, busy_ns=(120 if step == 3 else 60) * MS) for step in range(2, 8)]
    assert [row.foreign_ns for row in mark_busy(rows)] == [0, 60 * MS, 0, 0, 0, 0]
    assert not any(row.busy for row in mark_busy(rows))
    assert all(row.busy for row in mark_busy([replace(row, busy_ns=100 * MS) for row in rows]))


def test_the_kernel_is_read() -> None:
    since = Reading.take()
    total = 0
    while total < 3_000_000:
        total += 1
    until = Reading.take()
    row = machine_step(1, 4, since, until)
    assert (row.rank, row.step, row.took_ns) == (1, 4, until.at_ns - since.at_ns)
    assert 0 < row.used_ns <= row.took_ns * 1.2
    assert row.cores >= 1
    if row.busy_ns is not None:
        assert row.busy_ns >= 0
    if row.ran_ns is not None and row.delayed_ns is not None:
        assert row.ran_ns + row.delayed_ns <= row.took_ns * 1.05 + 20 * MS
