"""Whether the machine was busy in a step (docs/design.md, "Machine busy"): own threads are told from other processes.

The kernel counts how long all cores were busy (`/proc/stat`, in ticks of 10 ms), how long this process used them, and
how long the thread that computes waited for one (`recording.processor`). What the ranks of a machine did not use
themselves, others did.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from overlaplab_engine.alarm import core_time

BUSY_DELAY_SHARE = 0.20
"""If the computation waits for a core for a larger share of a step, the machine is busy, whoever has the cores."""
SHARED_DELAY_SHARE = 0.05
"""This share of a step is usual where the link's threads share the cores."""
BUSY_FOREIGN_SHARE = 0.25
"""If other processes used more of the cores' time in a step, `SHARED_DELAY_SHARE` is enough."""
SHORT_NS = 250_000_000
"""In shorter steps ticks of 10 ms tell little: for these, others' use is that of all recorded steps together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the kernel has counted at a moment, in ns; None where it does not tell."""

    at_ns: int
    used_ns: int
    """All threads of this process."""
    busy_ns: int | None
    """The cores that this process may use, whoever used them."""
    ran_ns: int | None
    """This thread, on a core."""
    delayed_ns: int | None
    """This thread, waiting for a core."""

    @classmethod
    def take(cls) -> "Reading":
        counts = core_time()
        return cls(
            at_ns=time.perf_counter_ns(),
            used_ns=time.process_time_ns(),
            busy_ns=_busy_ns(),
            ran_ns=counts and counts.ran_ns,
            delayed_ns=counts and counts.delayed_ns,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineStep:
    """One rank's machine in one recorded step; times in ns, None where the kernel does not tell."""

    rank: int
    step: int
    """The profiler's number of the step."""
    took_ns: int
    """The step itself."""
    cores: int
    """How many this rank may use."""
    ran_ns: int | None
    """The thread that computes, on a core."""
    delayed_ns: int | None
    """The thread that computes, waiting for a core."""
    used_ns: int
    """All threads of this rank."""
    busy_ns: int | None
    """The cores, whoever used them."""
    foreign_ns: int | None = None
    """The part of `busy_ns` that none of the machine's ranks used."""
    busy: bool = False
    """Whether the machine was busy with something else."""


def machine_step(rank: int, step: int, since: Reading, until: Reading) -> MachineStep:
    """Return the step between two readings, before `mark_busy`."""
    return MachineStep(
        rank=rank,
        step=step,
        took_ns=until.at_ns - since.at_ns,
        cores=len(usable_cores()),
        ran_ns=_difference(until.ran_ns, since.ran_ns),
        delayed_ns=_difference(until.delayed_ns, since.delayed_ns),
        used_ns=until.used_ns - since.used_ns,
        busy_ns=_difference(until.busy_ns, since.busy_ns),
    )


def mark_busy(rows: Sequence[MachineStep], hosts: Mapping[int, str] | None = None) -> list[MachineStep]:
    """Add to all ranks' rows what others used and whether the machine was busy; `hosts` names ranks' machines."""
    used: dict[tuple[str, int], int] = {}
    for row in rows:
        key = (_host(row, hosts), row.step)
        used[key] = used.get(key, 0) + row.used_ns
    with_foreign = [
        row if row.busy_ns is None else replace(row, foreign_ns=max(row.busy_ns - used[_host(row, hosts), row.step], 0))
        for row in rows
    ]
    return [
        replace(row, busy=_is_busy(row, [other for other in with_foreign if other.rank == row.rank]))
        for row in with_foreign
    ]


def _is_busy(row: MachineStep, steps_of_rank: Sequence[MachineStep]) -> bool:
    if row.delayed_ns is None:
        return False
    judged = [row] if row.took_ns >= SHORT_NS else steps_of_rank
    foreign_ns = sum(step.foreign_ns or 0 for step in judged)
    foreign = foreign_ns > BUSY_FOREIGN_SHARE * sum(step.cores * step.took_ns for step in judged)
    return row.delayed_ns > (SHARED_DELAY_SHARE if foreign else BUSY_DELAY_SHARE) * row.took_ns


def _host(row: MachineStep, hosts: Mapping[int, str] | None) -> str:
    return "" if hosts is None else hosts[row.rank]


def _difference(until: int | None, since: int | None) -> int | None:
    return None if until is None or since is None else until - since


def usable_cores() -> set[int]:
    """The cores that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _busy_ns() -> int | None:
    """How long this process' cores have been busy, guests' time and time stolen by a hypervisor included."""
    names = {f"cpu{core}".encode() for core in usable_cores()}
    try:
        with open("/proc/stat", "rb") as lines:
            words = [line.split() for line in lines if line.startswith(b"cpu")]
    except OSError:
        return None
    # user, nice, system, idle, iowait, irq, softirq, steal; guests' time is in user's (man 5 proc_stat)
    ticks = sum(int(n) for cpu, *times in words if cpu in names for n in (*times[:3], *times[5:8]))
    return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
