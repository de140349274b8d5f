"""Collectives, buckets, and a rank's step in words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from overlaplab.causes import Cause
from overlaplab.findings.thresholds import MOST_COLLECTIVES_LISTED
from overlaplab.words import count, join_names, kind_word, ms, rank_word, shorten

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
        word = str(kinds.index[0]) if len(kinds) == 1 and kinds.index[0] != "unknown" else "collective"
        return f"{count(number, word)}, longest in {_short_label(first)}" if number > 1 else _short_label(first)
    names = list(dict.fromkeys(map(_short_name, rows["what"])))
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
    return collective_label(row) if pd.isna(row["what"]) else _short_name(row["what"])


def _short_name(what: object) -> str:
    name = shorten(str(what), 40)
    return f"unit {name}" if name.isdecimal() else name  # as in a plain `nn.Sequential`
