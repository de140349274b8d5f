"""Rows of the table of recorded collectives, and how what labels and arguments tell is put into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.analyses.labels import Label
from overlaplab.analyses.told import NUMBERS, TEXTS, around, told_of
from overlaplab.events import Trace
from overlaplab.vocabulary import collective_kind

__all__ = [
    "RECORDED_COLUMNS",
    "UNKNOWN_NS",
    "around_any",
    "blank_rows",
    "fill",
    "fill_from_label",
    "fill_labelled",
    "fill_launch",
    "fill_told",
    "kinds_by_name",
    "label_rows",
    "not_run",
    "stacked",
]

UNKNOWN_NS = int(np.iinfo(np.int64).min)
"""A time that the trace does not tell."""

RECORDED_COLUMNS = {
    **dict.fromkeys(("launch_ns", "launch_end_ns", "lane", "host_ns", "arrived_ns", "start_ns", "end_ns"), "int64"),
    **dict.fromkeys((*TEXTS, "named"), "object"),
    **dict.fromkeys(NUMBERS, "int64"),
    "told": "bool",
}
"""The columns of `recorded`.

`launch_ns`, `launch_end_ns` and `lane`: the host's range that launched it; `host_ns`: when the host was there, which
for a CUDA graph's kernels is all that is known; `start_ns`, `end_ns`: the communication itself; `arrived_ns`: from when
the rank was there for it, which is its start, but on an emulated link when it was launched, or the link got free of the
one before: its thread wakes up a little later. Absolute, `UNKNOWN_NS` where the trace does not tell. `kind` is what is
told, else `named`: the kind by the kernel's name alone. `told` says which: NCCL's kernel of an all-to-all is called
SendRecv, too.
"""


def blank_rows(rows: int) -> pd.DataFrame:
    """So many rows of which nothing is known."""
    unknown: dict[str, Any] = {"int64": UNKNOWN_NS, "object": "", "bool": True} | dict.fromkeys((*NUMBERS, "lane"), -1)
    return pd.DataFrame(
        {
            name: pd.Series(np.full(rows, unknown.get(name, unknown[dtype]), dtype=dtype), dtype=dtype)
            for name, dtype in RECORDED_COLUMNS.items()
        },
        copy=False,
    )


def stacked(*tables: pd.DataFrame) -> pd.DataFrame:
    """All their rows."""
    return pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)


def fill(found: pd.DataFrame, source: pd.DataFrame, place: NDArray[np.int64]) -> None:
    """Where a field is unknown, take it from the source's row at `place` (-1: none)."""
    for name in (*TEXTS, *NUMBERS):
        own = found[name].to_numpy()
        values = np.append(source[name].to_numpy(), "" if name in TEXTS else -1)[place]
        found[name] = np.where((own == "") if name in TEXTS else (own < 0), values, own)


def fill_told(found: pd.DataFrame, trace: Trace, rows: NDArray[np.int64]) -> None:
    """Take what the arguments of these events themselves tell, where it is unknown."""
    told = told_of(trace)
    fill(found, told, told.index.get_indexer(pd.Index(rows)))


def kinds_by_name(names: pd.Series) -> NDArray[np.object_]:
    """What collective each of these names tells of, empty where it tells none."""
    texts = names.cat.categories if isinstance(names.dtype, pd.CategoricalDtype) else names.unique()
    kinds = {text: collective_kind(str(text)) or "" for text in texts}
    return np.array([kinds[name] for name in names], dtype=object)


def label_rows(labels: Sequence[Label]) -> pd.DataFrame:
    """Labels as rows, by lane and start, with what they tell."""
    rows = [
        {
            "start_ns": label.start_ns,
            "end_ns": label.end_ns,
            "lane": label.lane,
            "kind": label.fields.get("kind", ""),
            "dtype": label.fields.get("dtype", ""),
            "group": label.fields.get("group", ""),
            "bytes": int(label.fields.get("bytes", -1)),
            "sequence": int(label.fields.get("seq", -1)),
        }
        for label in labels
    ]
    columns = ["start_ns", "end_ns", "lane", "kind", "dtype", "group", "bytes", "sequence"]
    texts = dict.fromkeys(("kind", "dtype", "group"), "object")
    table = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(set(columns) - texts.keys(), "int64") | texts)
    return table.sort_values(["lane", "start_ns"], ignore_index=True, kind="stable")


def around_any(table: pd.DataFrame, at_ns: pd.Series) -> NDArray[np.int64]:
    """`around`, whichever thread the ranges are on."""
    return around(table.assign(lane=0), np.zeros(len(at_ns), np.int64), at_ns.to_numpy(np.int64))


def not_run(labelled: pd.DataFrame, place: NDArray[np.int64]) -> pd.DataFrame:
    """The labels at none of these places: nothing tells when theirs ran, or that it did."""
    rest = labelled[~np.isin(np.arange(len(labelled)), place)].reset_index(drop=True)
    if rest.empty:
        return rest
    found = blank_rows(len(rest))
    fill_labelled(found, rest, np.arange(len(rest)))
    return found


def fill_labelled(found: pd.DataFrame, labelled: pd.DataFrame, place: NDArray[np.int64]) -> None:
    """Take from the label at `place` (-1: none) what it tells, and its range as the launch."""
    fill_from_label(found, labelled, place)
    fill_launch(found, labelled, place)


def fill_from_label(found: pd.DataFrame, labelled: pd.DataFrame, place: NDArray[np.int64]) -> None:
    """Take from the label at `place` (-1: none) what it tells."""
    for name in ("kind", "dtype", "group", "bytes", "sequence"):
        values = np.append(labelled[name].to_numpy(), "" if name in TEXTS else -1)[place]
        known = values != "" if name in TEXTS else values >= 0
        found[name] = np.where(known, values, found[name].to_numpy())


def fill_launch(found: pd.DataFrame, calls: pd.DataFrame, place: NDArray[np.int64]) -> None:
    """Take the range at `place` (-1: none) as the launch."""
    has = place >= 0
    for name, source in (("launch_ns", "start_ns"), ("launch_end_ns", "end_ns"), ("host_ns", "start_ns")):
        found[name] = np.where(has, np.append(calls[source].to_numpy(), UNKNOWN_NS)[place], found[name].to_numpy())
    found["lane"] = np.where(has, np.append(calls["lane"].to_numpy(), -1)[place], found["lane"].to_numpy())
