"""A watched training, or Flight Recorder dumps of one, in a terminal, and as a JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from overlaplab.analyses import dumped_collectives, dumped_stopped
from overlaplab.analyses.watched.ranks import COLUMNS
from overlaplab.columns import columns
from overlaplab.findings.watched import dumped_notes, dumped_sentences
from overlaplab.load.flight_recorder import FlightDumps
from overlaplab.report.documents import records
from overlaplab.report.terminal import Printed, terminal_table
from overlaplab.sections.blocks import TableBlock
from overlaplab.sections.watched import WatchedTables, watched_ranks_block
from overlaplab.words import sentence

MAX_ROWS = 20
"""The last ones of more collectives are printed; JSON has all."""
_COLUMNS = columns(
    "dumped_collectives",
    *("group", "sequence", "kinds", "arrived", "missing", "late_rank", "late_ns", "duration_ns", "completed"),
)


def watched_document(tables: WatchedTables) -> dict[str, Any]:
    """What `overlaplab watch --json` prints."""
    headers = [rank.header for rank in tables.watched.ranks]
    return {
        "source": "watch",
        "world_size": tables.watched.world_size,
        "ended": all(header.ended for header in headers),
        "sentences": tables.sentences,
        "ranks": records(tables.ranks),
        "kinds": records(tables.kinds),
        "changes": records(tables.changes),
        "late": records(tables.late),
        "stopped": records(tables.stopped),
        "collectives": [],
        "recordings": [
            {"rank": header.rank, "step": recording.step, "path": recording.path, "reason": recording.reason}
            for header in headers
            for recording in header.recordings
        ],
        "notes": tables.notes,
    }


def watched_terminal(tables: WatchedTables) -> Iterator[Printed]:
    """The sentences, each rank's medians, and what is not watched."""
    yield from tables.sentences
    yield terminal_table(watched_ranks_block(tables))
    yield from _notes(tables.notes)


def _notes(notes: Iterable[str]) -> Iterator[str]:
    return (f"note: {sentence(note)}" for note in notes)


def dumped_document(dumps: FlightDumps) -> dict[str, Any]:
    """What `overlaplab watch --json` prints of dumps: the keys of a watched training, of which steps are unknown."""
    collectives, stopped = dumped_collectives(dumps), dumped_stopped(dumps)
    return {
        "source": "flight recorder",
        "world_size": _world_size(dumps),
        "ended": False,
        "sentences": dumped_sentences(dumps, collectives, stopped),
        "ranks": [dict.fromkeys(COLUMNS) | {"rank": rank.rank, "steps": 0} for rank in dumps.ranks],
        "kinds": [],
        "changes": [],
        "late": [],
        "stopped": records(stopped),
        "collectives": records(collectives),
        "recordings": [],
        "notes": dumped_notes(dumps, collectives),
    }


def dumped_terminal(dumps: FlightDumps) -> Iterator[Printed]:
    """The sentences, the last collectives, and what dumps do not tell."""
    collectives = dumped_collectives(dumps)
    yield from dumped_sentences(dumps, collectives, dumped_stopped(dumps))
    key, caption = "dumped_collectives", f"The last collectives, {MAX_ROWS} at most"
    last = collectives.tail(MAX_ROWS)
    yield terminal_table(TableBlock(key=key, caption=caption, frame=last, columns=_COLUMNS))
    yield from _notes(dumped_notes(dumps, collectives))


def _world_size(dumps: FlightDumps) -> int:
    members = [member for rank in dumps.ranks for group in rank.members.values() for member in group]
    return max([*members, *(rank.rank for rank in dumps.ranks)]) + 1
