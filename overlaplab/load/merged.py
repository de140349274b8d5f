"""One file with several ranks: merged from several processes' traces, or of one process that drives several GPUs.

Ranks come from the events' arguments, else from the devices. A host process belongs to the rank whose device it drives.
Its launches and the device's events share correlation numbers. Different processes may use the same numbers, so the
right process is the one whose launches precede what they launched. A process that drives several devices belongs to all
of their ranks.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from overlaplab.events import matching, runtime_calls
from overlaplab.intervals import Integers, Mask
from overlaplab.load.file import TraceFile
from overlaplab.vocabulary import DEVICE_KERNEL_CATEGORIES

_EARLY = 0.02
"""If a larger share of launches come after what they would have launched, the process is not the launching one."""


def rank_masks(content: TraceFile, *, named: bool = False) -> dict[int, Mask]:
    """Mark each rank's events, in order of rank; empty if the file is of one rank.

    `named`: the file's name contains a rank.
    """
    owners = _ranks_in_arguments(content)
    if len(_ranks_of_owners(owners)) < 2:
        owners = _devices(content, named)
    if len(_ranks_of_owners(owners)) < 2:
        return {}
    pids = content.events["pid"].cat.codes.to_numpy().astype(np.int64)
    of_pid = _processes(content.events, owners, pids)
    masks = {}
    for rank in _ranks_of_owners(owners).tolist():
        shared = np.isin(pids, [pid for pid, ranks in of_pid.items() if rank in ranks])
        masks[int(rank)] = (owners == rank) | (shared & (owners < 0))
    return masks


def _ranks_of_owners(owners: Integers) -> Integers:
    return np.unique(owners[owners >= 0])


def _ranks_in_arguments(content: TraceFile) -> Integers:
    ranks = content.event_ranks
    return np.full(len(content.events), -1) if ranks is None else np.asarray(ranks, dtype=np.int64)


def _devices(content: TraceFile, named: bool) -> Integers:
    """The device of every device event; all -1 if devices are not ranks.

    A process with a known rank in a job of several is one rank, whatever devices it uses.
    """
    events = content.events
    device = events["device"].to_numpy()
    on_device = (events["stream"].to_numpy() >= 0) & (device >= 0)
    owners = np.where(on_device, device, -1).astype(np.int64)
    kernels = matching(events["category"], DEVICE_KERNEL_CATEGORIES.__contains__)
    computing = _ranks_of_owners(np.where(kernels, owners, -1))  # copies alone do not make a device a rank
    hosts = runtime_calls(events)["pid"].nunique()
    rank_known = named or (content.rank is not None and (content.world_size or 1) > 1)
    one_rank = rank_known and hosts < 2
    return np.where(np.isin(owners, computing) & (not one_rank), owners, -1)


def _processes(events: pd.DataFrame, owners: Integers, pids: Integers) -> dict[int, frozenset[int]]:
    """The ranks that each process's events without a rank belong to, by the code of its `pid`."""
    of_pid = {
        int(pid): frozenset(_ranks_of_owners(owners[pids == pid]).tolist())
        for pid in np.unique(pids[owners >= 0]).tolist()
    }
    for rank in _ranks_of_owners(owners).tolist():
        launcher = _launcher(events, owners == rank, owners < 0, pids)
        if launcher is not None and not (launcher in of_pid and (owners[pids == launcher] >= 0).any()):
            of_pid[launcher] = of_pid.get(launcher, frozenset()) | {rank}
    if len({pid for pid in of_pid if (owners[pids == pid] < 0).all()}) == 1:  # one host process: the rest is its own
        everyone = frozenset(_ranks_of_owners(owners).tolist())
        of_pid = {int(pid): of_pid.get(int(pid), everyone) for pid in np.unique(pids)}
    return of_pid


def _launcher(events: pd.DataFrame, on_device: Mask, unowned: Mask, pids: Integers) -> int | None:
    """The process that launched these device events: most of their numbers, none too late, and soonest before."""
    numbered = (events["correlation"] >= 0).to_numpy()
    launched = pd.DataFrame(
        {"correlation": events["correlation"], "ts_ns": events["ts_ns"], "pid": pids}, index=events.index
    )
    is_call = np.isin(events.index.to_numpy(), runtime_calls(events).index.to_numpy())
    calls = launched[is_call & unowned & numbered].drop_duplicates(["pid", "correlation"])
    ran = launched.loc[on_device & numbered & ~is_call, ["correlation", "ts_ns"]]
    pairs = calls.merge(ran, on="correlation", suffixes=("_call", "_ran"))
    pairs["delay_ns"] = pairs["ts_ns_ran"] - pairs["ts_ns_call"]
    best: tuple[int, float, int] | None = None
    for pid, of_process in pairs.groupby("pid"):
        delays = of_process["delay_ns"].to_numpy()
        if (delays < 0).mean() <= _EARLY:
            candidate = (-len(delays), float(np.median(delays)), int(str(pid)))
            best = candidate if best is None else min(best, candidate)
    return None if best is None else best[2]
