"""What the timeline's marks are called: labels in words, stretches of exposed time by their cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import pandas as pd

from overlaplab.causes import Cause
from overlaplab.findings.actions.words import cause_words
from overlaplab.findings.diagnosis.causes import collective_label
from overlaplab.findings.thresholds import SHORT_PAUSE_NS
from overlaplab.timeline.marks import CAUSE_MARKS, MarkKind
from overlaplab.vocabulary import label_fields, label_list
from overlaplab.words import kind_word, shorten, size_exact

_NAME_CHARACTERS = 1000  # characters of a name
_MOST_PARAMETERS = 3  # parameters of a bucket
_SILENT = ("modelled_ns", "dtype")


def exposed_name(row: Mapping[Any, Any]) -> str:
    """A row of `overlaplab.exposed` on the timeline: `waited for rank 3: bucket 5, all-reduce 19`."""
    late = None if pd.isna(row["late_rank"]) else int(row["late_rank"])
    cause = Cause(row["cause"])
    overhead = cause is Cause.GAP and row["exposed_ns"] < SHORT_PAUSE_NS
    return f"{cause_words(cause, late, overhead=overhead)}: {collective_label(row)}"


def mark_word(mark: MarkKind) -> str:
    """What a kind of mark is called in the legend; of exposed time the cause, in words. Gaps may be long or short."""
    if mark is MarkKind.GAP:
        return "pauses, long or short (compute gap)"
    return cause_words(CAUSE_MARKS[mark]) if mark in CAUSE_MARKS else mark.value


def mark_name(name: str) -> str:
    """An event's name; of the engine's labels what they say, in words: `all-reduce of 5.23 MB, number 121, group 0`."""
    label = label_fields(name)
    if label is None:
        return shorten(name, _NAME_CHARACTERS)
    word, fields = label
    begin = word.replace("_", " ")
    if word == "comm" and "kind" in fields:
        begin = kind_word(unquote(fields.pop("kind")))
        if "bytes" in fields:
            begin += f" of {size_exact(int(fields.pop('bytes')))}"
    parts = [_field_words(key, value) for key, value in fields.items() if key not in _SILENT]
    return shorten(", ".join([begin, *parts]), _NAME_CHARACTERS)


def group_name(name: str) -> str:
    """A name of `WindowStatistics.kernels`; the engine's `engine::comm all_reduce` is `all-reduce on the link`."""
    if not name.startswith("engine::"):
        return name
    word, _, kind = name.removeprefix("engine::").partition(" ")
    return f"{kind_word(kind)} on the link" if word == "comm" and kind else word.replace("_", " ")


def _field_words(key: str, value: str) -> str:
    """One field of a label in words."""
    if key == "seq":
        return f"number {value}"
    if key == "link":
        return f"emulated link {unquote(value)}"
    if key == "sync":
        return "gradients are sent" if value == "1" else "gradients are kept"
    if key == "bytes":
        return size_exact(int(value))
    if key == "parameters":
        names = label_list(value)
        more = f" and {len(names) - _MOST_PARAMETERS} more" if len(names) > _MOST_PARAMETERS else ""
        return f"parameters {', '.join(names[:_MOST_PARAMETERS])}{more}"
    return f"{key.replace('_', ' ')} {unquote(value)}"
