"""Tables of a report: texts on the left, numbers on the right with as many digits as their column needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pandas as pd

from overlaplab.words import count, shorten, size_exact

__all__ = ["Cells", "Column", "cells", "sentences"]

As: TypeAlias = Literal["text", "count", "ms", "bytes", "GB/s", "%"]
"""What a column holds: ns are shown in `ms`, `bytes` each in the unit that suits it, ratios in `%`."""
_SCALE = {"ms": 1e6, "%": 0.01, "GB/s": 1.0}
MOST_ROWS = 60
"""A longer table is cut: whoever wants all of it has the command line's `--json`."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its header without the unit, and what it holds."""

    header: str
    shown: As = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """A table as it is shown."""

    caption: str
    headers: tuple[str, ...]
    right: tuple[bool, ...]
    """Which columns stand on the right."""
    rows: tuple[tuple[str, ...], ...]
    left_out: str = ""
    """What the table does not show; empty where it shows all."""
    note: str = ""


def cells(
    table: pd.DataFrame, columns: Mapping[str, Column], caption: str, *, note: str = "", most: int = MOST_ROWS
) -> Cells:
    """The first `most` rows of a table; columns in which nothing is known are left out."""
    known = {name: column for name, column in columns.items() if table[name].notna().any()}
    shown = table.head(most)
    texts = [_column(shown[name], column.shown) for name, column in known.items()]
    more = len(table) - len(shown)
    return Cells(
        caption=caption,
        headers=tuple(_header(column) for column in known.values()),
        right=tuple(column.shown != "text" for column in known.values()),
        rows=tuple(zip(*texts, strict=True)),
        left_out=f"{count(more, 'more row')}, which the command line tells with --json." if more else "",
        note=note,
    )


def sentences(notes: Iterable[str]) -> str:
    """Notes, which begin small and end without a full stop, as text."""
    return " ".join(f"{note[:1].upper()}{note[1:]}." for note in notes)


def _header(column: Column) -> str:
    return f"{column.header} ({column.shown})" if column.shown in ("ms", "GB/s") else column.header


def _column(values: pd.Series[Any], shown: As) -> list[str]:
    """The column's texts; an en dash for what is unknown."""
    if shown == "text":
        return ["–" if pd.isna(value) else shorten(str(value), 80) for value in values]
    if shown == "count":
        return [
            "–" if pd.isna(value) else f"{value:,g}" if isinstance(value, float) else f"{value:,}" for value in values
        ]
    if shown == "bytes":
        return ["–" if pd.isna(value) else size_exact(round(value)) for value in values]
    numbers = values.astype("Float64") / _SCALE[shown]
    largest = numbers.abs().max()
    digits = 1 if shown == "%" or pd.isna(largest) or largest >= 1000 else 2 if largest >= 10 else 3
    return ["–" if pd.isna(number) else f"{number:,.{digits}f}" if number else "0" for number in numbers]
