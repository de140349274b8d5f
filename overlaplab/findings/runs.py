"""What the tables say, as sentences: plain text for screens and reports, not Markdown, not HTML."""

from __future__ import annotations

from typing import Any

import pandas as pd

from overlaplab.analyses.settings import group_words, link_words
from overlaplab.findings.verdict import verdict
from overlaplab.manifest import Manifest
from overlaplab.words import count, gradient_word, ms, shorten

__all__ = ["late_sentences", "link_note", "note", "verdict"]


def note(manifest: Manifest | None) -> str | None:
    """The line about a run that stands under its charts: strategy, ranks, device, prefetch depth or bucket cap, each
    where it has one, and the link if emulated.
    """
    if manifest is None:
        return None
    parts = [shorten(manifest.strategy or ""), group_words(manifest), shorten(manifest.device or "")]
    if manifest.prefetch is not None:
        parts.append(f"prefetch {manifest.prefetch}")
    elif manifest.bucket_cap_mb is not None:
        parts.append(f"bucket_cap_mb {manifest.bucket_cap_mb:g}")
    return ", ".join(part for part in (*parts, link_words(manifest)) if part)


def link_note(manifest: Manifest | None) -> str | None:
    """The emulated link and group alone, where there is no room for the whole `note`; None without one."""
    if manifest is None or not (link := link_words(manifest)):
        return None
    return f"{link}, one rank of a group of {manifest.world_size}" if manifest.phantom_ranks else link


def late_sentences(late: pd.DataFrame, limit: int = 8) -> list[str]:
    """`overlaplab.analyses.late_buckets` in words, a line per bucket."""
    lines = [_late_sentence(row) for row in late.head(limit).to_dict("records")]
    if len(late) > limit:
        lines.append(f"{count(len(late) - limit, 'more late bucket')} in the table below.")
    return lines


def _late_sentence(row: dict[Any, Any]) -> str:
    """Which gradient came last and when; whether the bucket was held by it or by the link; what it cost."""
    name = gradient_word(row["parameter"], row["arrival"], row["shape"])
    gap = "the only one in it"
    if not _missing(row["gap_ns"]):
        gap = f"{ms(row['gap_ns'])} after the one before it"
    if row["link_ns"] > max(0 if _missing(row["gap_ns"]) else row["gap_ns"], row["held_ns"]):
        line = f"waited {ms(row['link_ns'])} for the busy link; its last gradient was {name}, {gap}"
    else:
        came = "which came last" if _missing(row["parameter"]) else "whose gradient came last"
        line = f"was held by {name}, {came}, {gap}"
    if row["held"]:
        upto = "up to " if len(row["held"]) > 1 else ""
        line += f"; {_these(row['held'])} stood ready and waited {upto}{ms(row['held_ns'])} for it"
    return f"Bucket {row['index']} {line}. Exposed: {ms(row['exposed_ns'])}."


def _missing(value: Any) -> bool:
    return bool(pd.isna(value))


def _these(indices: tuple[int, ...]) -> str:
    if len(indices) == 1:
        return f"bucket {indices[0]}"
    if len(indices) > 6:
        return f"{len(indices)} buckets"
    return f"buckets {', '.join(str(index) for index in indices[:-1])} and {indices[-1]}"
