"""The rank of each file, the traces in a merged file, and the choice among several recordings."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from overlaplab.errors import OverlaplabError
from overlaplab.events import Tables, Trace, extent
from overlaplab.intervals import Mask
from overlaplab.load.file import TraceFile
from overlaplab.load.merged import rank_masks
from overlaplab.load.places import Located

_RANK_IN_NAME = re.compile(r".*rank[-_ ]?(\d{1,18})(?!\d)|worker(\d{1,18})(?:_|(?:\.\d+)?\.pt\.trace\.json)", re.I)
"""torch's `tensorboard_trace_handler` writes the worker's name first; elsewhere it may be a machine's."""
_MOST = 10**18
"""Numbers of 18 digits fit into 64 bits."""


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
    masks = rank_masks(content, named=names_rank(file.name))
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
    _all_known(traces)
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


def _all_known(traces: Sequence[Trace]) -> None:
    unknown = next((trace for trace in traces if trace.rank is None), None)
    if unknown is not None and len(traces) > 1:
        name = Path(unknown.path).name
        raise OverlaplabError(
            "several files, and this one does not state its rank",
            path=unknown.path,
            remedy=f"Say it with --assign-rank {name}=N, put it into the name (rank3.json.gz), or open the file alone.",
        )


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
    raise OverlaplabError(
        f"the same rank as {Path(first.path).name}, at {how}",
        path=second.path,
        rank=second.rank,
        remedy=f"Keep one recording per folder, or say the rank with --assign-rank {Path(second.path).name}=N.",
    )
