"""The page of a watched training: charts over all its steps, and its ranks."""

from __future__ import annotations

from functools import partial

from overlaplab import charts, findings
from overlaplab.analyses import watched_strip
from overlaplab.formats import as_held
from overlaplab.sections.blocks import Block, Chart, Folded, Section
from overlaplab.sections.watched import WatchedTables, watched_ranks_block

MAX_STRIP_RANKS = 16
"""If there are more ranks, those are drawn that were late most often."""


def live_section(tables: WatchedTables) -> Section:
    """What stands under the sentences of a watched training: charts over all its steps, and its ranks."""
    recordings, series = findings.watched_recordings(tables.watched), tables.series
    blocks: list[Block] = []
    if len(series):
        held = as_held(series, "watched_series")
        blocks.append(Chart("watched_times", partial(charts.watched_times, series, recordings), None, held))
    if series["exposed_share"].notna().any():
        blocks.append(Chart("watched_shares", partial(charts.watched_shares, series), None))
    ranks, left_out = _strip_ranks(tables)
    strip = watched_strip(tables.watched, tables.late, ranks)
    if len(strip) and tables.watched.world_size > 1:
        held = as_held(strip, "watched_strip")
        blocks.append(Chart("watched_late", partial(charts.watched_late, strip), left_out, held))
    every = watched_ranks_block(tables)
    blocks.append(Folded(key="ranks_fold", heading="Every rank", blocks=lambda: [every]))
    return Section(title="Live", lead=tables.sentences[0], blocks=blocks, advice=())


def _strip_ranks(tables: WatchedTables) -> tuple[list[int], str | None]:
    """The ranks of the strip, and a note on which these are, unless they are all."""
    ranks = [rank.header.rank for rank in tables.watched.ranks]
    times = tables.late.loc[tables.late["late"], "late_rank"].value_counts()
    most = sorted(sorted(ranks, key=lambda rank: -int(times.get(rank, 0)))[:MAX_STRIP_RANKS])
    left_out = f"The {len(most)} of {len(ranks):,} ranks that were late most often." if len(most) < len(ranks) else None
    return most, left_out
