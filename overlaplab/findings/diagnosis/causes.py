"""The causes of exposed communication in words, and the training loops that they are found in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from overlaplab.causes import Cause
from overlaplab.findings.thresholds import MOST_COLLECTIVES_LISTED
from overlaplab.vocabulary import layer_number
from overlaplab.words import count, join_names, kind_word, ms, rank_word, shorten, unit_name

_LABEL_LENGTH = 60  # characters


def collective_label(row: Mapping[Any, Any]) -> str:
    """The collective of a row of `overlaplab.exposed`, with its number in `collectives`: `bucket 3, all-reduce 19`."""
    if pd.isna(row["collective"]):
        return "of no collective"
    kind = "collective" if pd.isna(row["kind"]) else str(row["kind"]).replace("_", "-")
    which = f"{kind} {row['collective']}"
    return which if pd.isna(row["what"]) else f"{shorten(str(row['what']), _LABEL_LENGTH - len(which) - 2)}, {which}"


def rank_and_step(window: Mapping[str, Any]) -> str:
    """The rank and step of a row of `overlaplab.summary`: `rank 0, step 4`."""
    step = "" if pd.isna(window["step"]) else f", step {window['step']}"
    return f"rank {rank_word(window['rank'])}{step}"


def what_moved(cause: Cause, rows: pd.DataFrame, buckets: pd.DataFrame | None = None) -> str:
    """The collectives of rows of `overlaplab.exposed` of one cause, rank and step, the longest first.

    `buckets`: rows of `overlaplab.buckets` of that rank and step; a single bucket at the end says how long after the
    backward pass it ends.
    """
    if rows["collective"].isna().all():
        return "of no collective"
    number = rows["collective"].nunique()
    first = rows.to_dict("records")[0]
    if number > MOST_COLLECTIVES_LISTED or rows["what"].isna().any():
        kinds = rows.groupby(rows["kind"].map(kind_word))["exposed_ns"].sum().sort_values(ascending=False)
        word = str(kinds.index[0]) if len(kinds) == 1 else "collective"
        return f"{count(number, word)}, most in {_short_label(first)}" if number > 1 else _short_label(first)
    names = list(dict.fromkeys(shorten(str(name), 40) for name in rows["what"]))
    if len(names) == 1 and cause in (Cause.TAIL, Cause.UNHIDEABLE) and buckets is not None:
        launched = buckets.loc[bucket_rows_by_name(buckets).get(names[0], [])]
        over = (launched["end_ns"] - launched["backward_end_ns"]).max()
        if pd.notna(over) and over > 0:
            return f"{names[0]}, which ends {ms(int(over))} after the backward pass"
    numbers = [int(match[1]) for name in names if (match := re.fullmatch(r"bucket (\d+)", name))]
    return bucket_numbers(numbers) if 1 < len(numbers) == len(names) else join_names(names)


def bucket_numbers(numbers: Sequence[int]) -> str:
    """Buckets by number, in their order: `buckets 4–6`, `buckets 2, 4 and 5`."""
    ordered = sorted(numbers)
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"buckets {ordered[0]}–{ordered[-1]}"
    return f"bucket{'' if len(ordered) == 1 else 's'} {join_names([*map(str, ordered)])}"


def bucket_rows_by_name(buckets: pd.DataFrame) -> dict[str, list[int]]:
    """The rows of `overlaplab.buckets`, by the frame's index, that `what` of `overlaplab.exposed` calls by each name.

    That is `bucket 3`, or the parameter's name, if the bucket holds no other. A bucket that is launched several times
    has several rows, which are in order of launch.
    """
    rows: dict[str, list[int]] = {}
    for row, number, held in zip(buckets.index, buckets["index"], buckets["parameters"], strict=True):
        rows.setdefault(f"bucket {number}", []).append(row)
        if len(held) == 1 and held[0] is not None:
            rows.setdefault(str(held[0]), []).append(row)
    return rows


def _short_label(row: Mapping[Any, Any]) -> str:
    return collective_label(row) if pd.isna(row["what"]) else shorten(str(row["what"]), 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class CausePart:
    """The exposed time of one cause and kind of unit."""

    cause: Cause
    label: str
    """The cause in words that need no glossary: `nothing left to overlap (tail)`, `waited for rank 3`."""
    unit_kind: str = ""
    """Empty where all of the cause is of one kind."""
    what: str
    """The collectives concerned: `bucket 5, which ends 38.0 ms after the backward pass`."""
    remedy: str
    """What would help, in short: `bucket_cap_mb 2`; empty where nothing known gains enough."""
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
