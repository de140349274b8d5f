"""What a section is made of: charts, bars, tables and lines of text, some of them folded away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd
from msgspec import Struct
from msgspec.structs import replace

from overlaplab.columns import Column
from overlaplab.findings.first_screen import Tile
from overlaplab.words import sentence

if TYPE_CHECKING:
    import altair as alt  # takes longer to import than a terminal's tables take to print


class Chart(Struct, frozen=True):
    """A chart that is drawn once the theme is known."""

    key: str
    """Names it, and the files in which a reader keeps it."""
    draw: Callable[..., alt.LayerChart]
    """Takes `dark` and `note`."""
    note: str | None
    """The line about the run or its link that stands under the chart's title."""
    table: pd.DataFrame | None = None
    """What it shows, for a CSV file."""


MOST_ROWS = 50
"""A longer table is summed up where nobody can scroll through it or sort it."""
_FEW_ROWS = 20
"""So many rows remain of a longer table whose rows are ranked."""


class TableBlock(Struct, frozen=True, kw_only=True):
    """A table, with its columns for each width at which it is shown."""

    key: str
    caption: str
    frame: pd.DataFrame
    """A terminal shows the texts of a column `terse_NAME` in place of the column NAME."""
    columns: Sequence[Column] = ()
    """On a page that does not scroll sideways."""
    wide: Sequence[Column] = ()
    """In a table that scrolls, the most asked for on the left; empty where they are the same."""
    narrow: Sequence[Column] = ()
    """In a terminal of 80 characters; empty where they are the same."""
    lead: str = ""
    """What it tells, in sentences."""
    legend: str = ""
    """What the short headers of a terminal mean."""
    notes: Sequence[str] = ()
    """What a reader of a page must know: each begins with a small letter and ends without a full stop."""
    most: int | None = None
    """A table with more rows is long; None: `MOST_ROWS`."""
    ranked_by: str = ""
    """The column whose largest values name the rows that matter most; empty: the first rows do."""
    ranked_words: str = ""
    """What is said of the rows that matter most: `that were exposed most`."""
    summary: Sequence[TableBlock] = ()
    """What is shown in its place where it is too long; empty: some of its rows."""
    left_out: str = ""
    """The rows of a longer table that these are, in words: `the first 50 of 300`; empty where they are all."""

    @property
    def note(self) -> str:
        """The notes as text."""
        return " ".join(map(sentence, self.notes))

    @property
    def is_long(self) -> bool:
        """Whether it has too many rows to be read."""
        return len(self.frame) > (self.most or MOST_ROWS)

    def summed_up(self) -> list[TableBlock]:
        """What of it can be read: itself, where it is not too long, else its summary, or the rows that matter most."""
        number = len(self.frame)
        if not self.is_long:
            return [self]
        if self.summary:
            return [part for table in self.summary for part in table.summed_up()]
        if self.ranked_by:
            largest = self.frame[self.ranked_by].astype("Float64").nlargest(_FEW_ROWS).index
            frame = self.frame[self.frame.index.isin(largest)]
            return [replace(self, frame=frame, left_out=f"the {len(frame)} of {number:,} {self.ranked_words}")]
        frame = self.frame.head(self.most or MOST_ROWS)
        return [replace(self, frame=frame, left_out=f"the first {len(frame)} of {number:,}")]


class Lines(Struct, frozen=True, kw_only=True):
    """Sentences, one to a line."""

    key: str
    heading: str
    lines: tuple[str, ...]


class Tiles(Struct, frozen=True, kw_only=True):
    """A few figures side by side."""

    key: str
    tiles: Sequence[Tile]


class Bar(Struct, frozen=True, kw_only=True):
    """A bar with words of its own, which wrap where a chart's would be cut."""

    label: str
    value: str
    share: float
    """Share of the longest bar, 0 to 1."""
    colour: str
    """The name of a colour of `charts.theme.Palette`."""
    lines: Sequence[str]
    """What it consists of, and what would make it shorter."""
    spot: Mapping[str, Any] | None = None
    """Where it is on the timeline: `start_ns` and `end_ns` from the run's zero, `rank`; perhaps its `cause`, the
    `late_rank` that was waited for, and when most of it was `carried`."""


class Bars(Struct, frozen=True, kw_only=True):
    """Bars under each other, the longest first."""

    key: str
    heading: str
    heads: tuple[str, str, str]
    """What its labels, its bars, and their lines are."""
    bars: Sequence[Bar]
    predicted: bool
    """Whether nobody recorded the run: then the bars are pale, with dashed outlines, as in charts."""
    remainder: str = ""
    """What is too short for a bar; empty where nothing is."""


class Folded(Struct, frozen=True, kw_only=True):
    """What a reader opens who wants to know more."""

    key: str
    heading: str
    blocks: Callable[[], Sequence[TableBlock | Lines]]
    """Makes what is in it, once it is opened where a page can tell that; there may be none."""


Block: TypeAlias = Chart | TableBlock | Lines | Tiles | Bars | Folded


class Section(Struct, frozen=True, kw_only=True):
    """A part of a page: begins with what was measured, and may end with what to do about it."""

    title: str
    lead: str
    """What was measured, in a sentence or two."""
    blocks: Sequence[Block]
    advice: Sequence[str]
