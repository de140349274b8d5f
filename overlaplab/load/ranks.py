"""The rank of each file, the traces in a merged file, and the choice among several recordings."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from overlaplab.errors import OverlaplabError
from overlaplab.events import Tables, Trace, extent, matching, runtime_calls
from overlaplab.intervals import Integers, Mask
from overlaplab.load.file.trace_file import TraceFile
from overlaplab.load.limits import MAX_TRACES
from overlaplab.load.places import Located
from overlaplab.vocabulary import DEVICE_KERNEL_CATEGORIES

_RANK_IN_NAME = re.compile(r".*rank[-_ ]?(\d{1,18})(?!\d)|worker(\d{1,18})(?:_|(?:\.\d+)?\.pt\.trace\.json)", re.I)
"""`worker` counts only at the beginning, where torch's `tensorboard_trace_handler` has it; else it may be a machine."""
_MOST = 10**18
"""Ranks are below it: numbers of 18 digits fit into 64 bits."""
_EARLY = 0.02
"""If a larger share of launches come after what they would have launched, the process is not the launching one."""


def names_rank(file: str) -> bool:
    """Whether a file of this name is of one rank."""
    return _RANK_IN_NAME.match(file) is not None


def find_file(files: Sequence[Located], wanted: str) -> Located | None:
    """The file that the user means by its name or its path."""
    for file in files:
        if wanted in (file.name, file.path) or os.path.abspath(wanted) == os.path.abspath(file.path):
            return file
    return None


def assign_ranks_by_path(files: Sequence[Located], ranks: Mapping[str, int]) -> dict[str, int]:
    """The ranks that the user assigns, by path; files may be given by name or path.

    Raises `OverlaplabError` for an unknown file or an impossible rank.
    """
    rank_of_path: dict[str, int] = {}
    for wanted, rank in ranks.items():
        meant = find_file(files, wanted)
        if meant is None:
            names = ", ".join(file.name for file in files[:4]) + (" …" if len(files) > 4 else "")
            raise OverlaplabError("no such trace to assign a rank to", path=wanted, remedy=f"There is {names}.")
        if not 0 <= rank < _MOST:
            raise OverlaplabError(f"{rank} is not a rank", path=wanted, remedy="Ranks count from 0.")
        rank_of_path[meant.path] = rank
    return rank_of_path


def split_ranks(file: Located, content: TraceFile, assigned: int | None) -> tuple[list[Trace], list[str]]:
    """The file's traces, one per rank, and warnings about them.

    The rank is the one that the user assigned, else the one in the file, else the one in its name, else None.
    """
    masks = _rank_masks(file, content)
    if masks and assigned is not None:
        raise OverlaplabError(f"holds ranks {', '.join(map(str, masks))}, so it cannot be assigned one", path=file.path)
    if masks:
        listed = ", ".join(map(str, masks))
        return [_trace(file, content, rank, mask) for rank, mask in masks.items()], [f"holds the ranks {listed}"]
    stored = _find_rank(file, content)
    if assigned is not None and content.rank not in (None, assigned):
        return [_trace(file, content, assigned)], [f"says rank {content.rank}, and is taken for rank {assigned}"]
    return [_trace(file, content, stored if assigned is None else assigned)], []


def _find_rank(file: Located, content: TraceFile) -> int | None:
    if content.rank is not None:
        return content.rank
    if content.event_ranks is not None and (content.event_ranks >= 0).any():
        return int(content.event_ranks.max())
    match = _RANK_IN_NAME.match(file.name)
    return int(match[match.lastindex or 0]) if match else None


def _trace(file: Located, content: TraceFile, rank: int | None, mask: Mask | None = None) -> Trace:
    return Trace(
        path=file.path,
        rank=rank,
        tables=Tables(
            events=content.events if mask is None else content.events[mask].reset_index(drop=True),
            collectives=content.collectives if mask is None else _select_rows(content.collectives, mask),
            inputs=content.inputs if mask is None else _select_rows(content.inputs, mask),
            syncs=content.syncs if mask is None else _select_rows(content.syncs, mask),
        ),
        groups=content.groups,
        world_size=content.world_size,
        backend=content.backend,
        devices=content.devices,
        unknown_device=content.unknown_device,
        host=content.host,
    )


def _select_rows(table: pd.DataFrame, mask: Mask) -> pd.DataFrame:
    """The rows of some events, renumbered."""
    events = table["event"].to_numpy()
    selected: pd.DataFrame = table[mask[events]].reset_index(drop=True)
    places = np.cumsum(mask) - 1
    return selected.assign(event=places[events[mask[events]]].astype(events.dtype))


def one_recording(traces: Sequence[Trace], wanted: int | None, path: str) -> tuple[list[Trace], list[str]]:
    """The traces of one recording in order of rank, at most one per rank; the last recording unless one is chosen.

    Traces of a rank at disjoint times are recordings; across ranks, what overlaps in time is one recording. Raises
    `OverlaplabError` where a rank is unknown, or a rank's traces overlap, or there is no such recording.
    """
    _require_known_ranks(traces)
    twice = len({trace.rank for trace in traces}) < len(traces)
    recordings = _split_by_time(traces) if twice else [list(traces)]
    if wanted is not None and not 1 <= wanted <= len(recordings):
        has = f"It holds {len(recordings)}, from 1." if len(recordings) > 1 else "It holds one."
        raise OverlaplabError(f"no recording {wanted}", path=path, remedy=has)
    chosen = recordings[(wanted or 0) - 1]
    notes = []
    if len(recordings) > 1 and wanted is None:
        notes = [f"holds {len(recordings)} recordings, this is the last: --recording 1 opens the first"]
    return sorted(chosen, key=lambda trace: -1 if trace.rank is None else trace.rank), notes


def _require_known_ranks(traces: Sequence[Trace]) -> None:
    unknown = next((trace for trace in traces if trace.rank is None), None)
    if unknown is not None and len(traces) > 1:
        name = Path(unknown.path).name
        remedy = f"Say it with --assign-rank {name}=N, put it into the name (rank3.json.gz), or open the file alone."
        raise OverlaplabError("several files, and this one does not state its rank", path=unknown.path, remedy=remedy)


def _split_by_time(traces: Sequence[Trace]) -> list[list[Trace]]:
    """Groups of traces that overlap in time, directly or through others; no group has a rank twice."""
    spans = sorted(((*(extent(trace) or (0, 0)), place) for place, trace in enumerate(traces)))
    groups: list[list[Trace]] = []
    reached = 0
    for start, end, place in spans:
        trace = traces[place]
        if not groups or start > reached:
            groups.append([])
            reached = end
        for other in groups[-1]:
            if other.rank == trace.rank:
                _refuse(other, trace)
        groups[-1].append(trace)
        reached = max(reached, end)
    return groups


def _refuse(first: Trace, second: Trace) -> None:
    first, second = sorted((first, second), key=lambda trace: trace.path)
    starts, ends = zip(*(extent(trace) or (0, 0) for trace in (first, second)), strict=True)
    overlapping = max(starts) <= min(ends)
    how = "overlapping times" if overlapping else "times that another rank's trace connects"
    what = f"the same rank as {Path(first.path).name}, at {how}"
    remedy = f"Keep one recording per folder, or say the rank with --assign-rank {Path(second.path).name}=N."
    raise OverlaplabError(what, path=second.path, rank=second.rank, remedy=remedy)


def _rank_masks(file: Located, content: TraceFile) -> dict[int, Mask]:
    """Mark each rank's events, in order of rank; empty if the file is of one. Raises `OverlaplabError` for too many.

    Several ranks are in files merged from several processes' traces, and in those of one process that drives several
    GPUs. Ranks come from the events' arguments, else from the devices. A host process belongs to the rank whose device
    it drives: its launches and the device's events share correlation numbers. Different processes may use the same
    numbers, so the right one is that whose launches precede what they launched. A process that drives several devices
    belongs to all of their ranks.
    """
    ranks = content.event_ranks
    owners = np.full(len(content.events), -1) if ranks is None else np.asarray(ranks, dtype=np.int64)
    if len(_ranks_of_owners(owners)) < 2:
        owners = _devices(content, names_rank(file.name))
    count = len(_ranks_of_owners(owners))
    if count < 2:
        return {}
    if count > MAX_TRACES.value:
        what = f"holds {count:,} ranks, and at most {MAX_TRACES.value:,} are opened"
        raise MAX_TRACES.error(what, path=file.path, remedy="No training writes so many into one file.", enough=count)
    pids = content.events["pid"].cat.codes.to_numpy().astype(np.int64)
    ranks_of_pid = _processes(content.events, owners, pids)
    masks = {}
    for rank in _ranks_of_owners(owners).tolist():
        shared = np.isin(pids, [pid for pid, theirs in ranks_of_pid.items() if rank in theirs])
        masks[int(rank)] = (owners == rank) | (shared & (owners < 0))
    return masks


def _ranks_of_owners(owners: Integers) -> Integers:
    return np.unique(owners[owners >= 0])


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
    rank_known = named or (content.rank is not None and (content.world_size or 1) > 1)
    one_rank = rank_known and events["pid"][runtime_calls(events)].nunique() < 2
    return np.where(np.isin(owners, computing) & (not one_rank), owners, -1)


def _processes(events: pd.DataFrame, owners: Integers, pids: Integers) -> dict[int, frozenset[int]]:
    """The ranks that each process's events without a rank belong to, by the code of its `pid`."""
    owning = np.unique(pids[owners >= 0]).tolist()
    of_pid = {pid: frozenset(_ranks_of_owners(owners[pids == pid]).tolist()) for pid in owning}
    for rank in _ranks_of_owners(owners).tolist():
        launcher = _launcher(events, owners == rank, owners < 0, pids)
        if launcher is not None and not (launcher in of_pid and (owners[pids == launcher] >= 0).any()):
            of_pid[launcher] = of_pid.get(launcher, frozenset()) | {rank}
    # With one host process, what other pids have is its own.
    if len({pid for pid in of_pid if (owners[pids == pid] < 0).all()}) == 1:
        everyone = frozenset(_ranks_of_owners(owners).tolist())
        of_pid = {int(pid): of_pid.get(int(pid), everyone) for pid in np.unique(pids)}
    return of_pid


def _launcher(events: pd.DataFrame, on_device: Mask, unowned: Mask, pids: Integers) -> int | None:
    """The process that launched these device events.

    Of those with at most `_EARLY` calls after what they would have launched, the one with most of the events' numbers,
    then with the shortest delay.
    """
    numbered = (events["correlation"] >= 0).to_numpy()
    launched = events[["correlation", "ts_ns"]].assign(pid=pids)
    is_call = runtime_calls(events)
    calls = launched[is_call & unowned & numbered].drop_duplicates(["pid", "correlation"])
    ran = launched.loc[on_device & numbered & ~is_call, ["correlation", "ts_ns"]]
    pairs = calls.merge(ran, on="correlation", suffixes=("_call", "_ran"))
    pairs["delay_ns"] = pairs["ts_ns_ran"] - pairs["ts_ns_call"]
    delays = {int(str(pid)): of_process["delay_ns"].to_numpy() for pid, of_process in pairs.groupby("pid")}
    in_time = [(-len(each), np.median(each), pid) for pid, each in delays.items() if (each < 0).mean() <= _EARLY]
    return min(in_time)[2] if in_time else None
