"""What one cause of exposed time cost each kind of unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from overlaplab.causes import Cause
from overlaplab.vocabulary import layer_number
from overlaplab.words import unit_name


@dataclass(frozen=True, slots=True, kw_only=True)
class CausePart:
    """The exposed time of one cause and kind of unit."""

    cause: Cause
    label: str
    """The cause in words."""
    unit_kind: str
    """Empty where all of the cause is of one kind."""
    what: str
    """The collectives concerned."""
    remedy: str
    """What would help against this part."""
    rows: pd.DataFrame
    """Its rows of `overlaplab.exposed`, the longest first."""

    @property
    def name(self) -> str:
        """The cause, and the kind of unit: `link busy (queued): layers' gathers`."""
        return f"{self.label}: {self.unit_kind}" if self.unit_kind else self.label

    @property
    def exposed_ns(self) -> int:
        """How much was exposed."""
        return int(self.rows["exposed_ns"].sum())


def split_by_unit_kind(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Rows of `overlaplab.exposed` by what they do for which units; one part has no name.

    Only what shards is told apart: the layers' gathers, each other unit's, those of updated parameters, and
    reduce-scatters.
    """
    kinds = [_unit_kind(row["kind"], row["what"]) for row in rows.to_dict("records")]
    if len(set(kinds)) < 2:
        yield "", rows
    else:
        yield from ((str(kind), kind_rows) for kind, kind_rows in rows.groupby(kinds, sort=False))


def _unit_kind(kind: object, what: object) -> str:
    if kind == "reduce_scatter":
        return "reduce-scatters"
    if kind != "all_gather" or not isinstance(what, str):
        return "other collectives"
    if layer_number(what) is not None:
        return "layers' gathers"
    return "gathers of " + ("updated parameters" if what.startswith("parameters of ") else unit_name(what, 30))
