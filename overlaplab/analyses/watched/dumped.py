"""What Flight Recorder dumps tell: each group's collectives across the ranks, and which rank lacks one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from overlaplab.analyses.watched.stopped import STOPPED_COLUMNS, group_word
from overlaplab.load.flight_recorder import DumpEntry, FlightDumps
from overlaplab.words import ms_to_ns

_COLLECTIVES = {
    "group": "object",
    "sequence": "int64",
    "kinds": "object",
    "arrived": "object",
    "missing": "object",
    **dict.fromkeys(("late_rank", "late_ns", "duration_ns"), "Int64"),
    "completed": "bool",
}


def dumped_collectives(dumps: FlightDumps) -> pd.DataFrame:
    """One row per collective of each group, in order of groups and numbers; messages are left out.

    Columns: `group` (its description), `sequence` (its number in the group, from 1), `kinds` (more than one where ranks
    disagree), `arrived` (the ranks that launched it), `missing` (ranks of the group that did not, though their dumps
    hold what came before), `late_rank` and `late_ns` (which rank launched it last, and how long after the first: by
    the clock of each rank's host; null unless all arrived), `duration_ns` (the longest rank's; null where it was not
    timed, as over gloo) and `completed` (whether it is over on all ranks that arrived). Collectives that a ring has
    already forgotten on some rank have no row.
    """
    rows = []
    for group, ranks in _entries(dumps):
        firsts = [min(entries) for entries in ranks.values() if entries]
        numbers = {number for entries in ranks.values() for number in entries}
        for number in sorted(number for number in numbers if number >= max(firsts)):
            entries = {rank: of_rank[number] for rank, of_rank in ranks.items() if number in of_rank}
            rows.append({"group": group_word(*group), "sequence": number} | _collective(entries, set(ranks)))
    return pd.DataFrame(rows, columns=list(_COLLECTIVES)).astype(_COLLECTIVES)


def dumped_groups(dumps: FlightDumps) -> int:
    """How many groups have collectives in the dumps; several may have one description."""
    return len(_entries(dumps))


def dumped_stopped(dumps: FlightDumps) -> pd.DataFrame:
    """The ranks that lack a group's collective which others have launched, with the columns of `watched_stopped`."""
    rows: dict[int, dict[str, Any]] = {}
    for group, ranks in _entries(dumps):
        last = {rank: max(entries, default=0) for rank, entries in ranks.items()}
        least = min(last.values())
        over = [n for entries in ranks.values() for n, entry in entries.items() if entry.is_over and n <= least]
        wait = max(over, default=least) + 1  # a host may run ahead of the collective that its group waits in
        for rank, enqueued in last.items():
            if enqueued < wait <= max(last.values()) and rank not in rows:
                rows[rank] = {"rank": rank, "answers": True, "group": group_word(*group), "enqueued": enqueued}
                rows[rank] |= {"others_wait_in": wait, "ended": False}
    return pd.DataFrame([rows[rank] for rank in sorted(rows)], columns=list(STOPPED_COLUMNS)).astype(STOPPED_COLUMNS)


def _entries(dumps: FlightDumps) -> list[tuple[tuple[str, str], dict[int, dict[int, DumpEntry]]]]:
    """The collectives by group, rank and number. A rank of a group that has launched nothing in it has no entries."""
    entries: dict[tuple[tuple[str, str], tuple[int, ...]], dict[int, dict[int, DumpEntry]]] = {}
    for rank in dumps.ranks:
        for entry in rank.entries:
            if not entry.is_p2p and entry.collective_seq_id > 0:
                members = rank.members.get(entry.process_group[0], ())  # of others a name may be another group's
                of_group = entries.setdefault((entry.process_group, members), {})
                of_group.setdefault(rank.rank, {}).setdefault(entry.collective_seq_id, entry)
    for (_, members), ranks in entries.items():
        begun_ns = min(entry.time_created_ns for of_rank in ranks.values() for entry in of_rank.values())
        for rank in dumps.ranks:
            if rank.rank in members and rank.entries and rank.entries[0].time_created_ns <= begun_ns:
                ranks.setdefault(rank.rank, {})  # its ring reaches back so far: it has launched nothing in the group
    return [(group, ranks) for (group, _), ranks in entries.items()]


def _collective(entries: Mapping[int, DumpEntry], ranks: set[int]) -> dict[str, Any]:
    arrivals = {rank: entry.time_created_ns for rank, entry in entries.items()}
    missing = sorted(ranks - set(entries))
    late_rank = max(arrivals, key=lambda rank: (arrivals[rank], rank))
    all_came = not missing and len(entries) > 1
    durations = [entry.duration_ms for entry in entries.values() if entry.duration_ms is not None]
    return {
        "kinds": tuple(sorted({entry.kind for entry in entries.values()})),
        "arrived": tuple(sorted(entries)),
        "missing": tuple(missing),
        "late_rank": late_rank if all_came else None,
        "late_ns": max(arrivals.values()) - min(arrivals.values()) if all_came else None,
        "duration_ns": ms_to_ns(max(durations)) if durations else None,
        "completed": all(entry.is_over for entry in entries.values()),
    }
