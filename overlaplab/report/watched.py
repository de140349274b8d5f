"""A watched training in a terminal, and as a JSON document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from overlaplab.report.records import records
from overlaplab.report.terminal import Printed, terminal_table
from overlaplab.sections.watched import WatchedTables, watched_ranks_block
from overlaplab.words import sentence


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
    for note in tables.notes:
        yield f"note: {sentence(note)}"
