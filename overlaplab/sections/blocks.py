"""What a section is made of: charts, tables and lines of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import altair as alt
import pandas as pd

from overlaplab.columns import Column

__all__ = ["Block", "Chart", "Lines", "Section", "TableBlock"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart that is drawn when it is known for which theme."""

    key: str
    """Names it, and the files in which a reader keeps it."""
    draw: Callable[..., alt.LayerChart]
    """Takes `dark` and `note`."""
    note: str | None
    """The line about the run or its link that stands under the chart's title."""
    table: pd.DataFrame | None = None
    """What it shows, for a CSV file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBlock:
    """A table of which these columns are shown."""

    key: str
    caption: str
    frame: pd.DataFrame
    columns: Sequence[Column]
    wide: Sequence[Column] = ()
    """The columns of a table that scrolls, the most asked for on the left; none where they are the same."""
    notes: Sequence[str] = ()
    """What a reader of the table must know: each begins small and ends without a full stop."""
    most: int | None = None
    """How many rows a page that does not scroll shows, where it is not as many as usual."""

    @property
    def note(self) -> str:
        """The notes as text."""
        return " ".join(f"{note[:1].upper()}{note[1:]}." for note in self.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Sentences, one to a line."""

    key: str
    heading: str
    lines: tuple[str, ...]


Block: TypeAlias = Chart | TableBlock | Lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a page: begins with what was found, ends with what to do about it."""

    title: str
    lead: str
    """What was found, in a sentence or two."""
    shows: str = ""
    """What there is to see, for a page on which the section stands among others; empty where the lead tells it."""
    blocks: Sequence[Block]
    advice: Sequence[str]
