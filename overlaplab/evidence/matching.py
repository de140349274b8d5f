"""Which ranks' recorded collectives belong together (docs/design.md, "Matching")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.events import Run, Trace, once_per_run
from overlaplab.evidence.alignment import LIMIT_NS, align
from overlaplab.evidence.recorded import UNKNOWN_NS, recorded
from overlaplab.words import to_ms

__all__ = ["ROOTED", "matched"]

ROOTED = frozenset({"send_recv", "broadcast", "reduce", "gather", "scatter"})
"""Kinds of collectives in which a late rank need not make the others wait, as not all need all others' data."""

_SAME_BYTES = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast"})
"""Collectives whose larger side has the same size on every rank; an all-to-all's may differ."""


_IDENTITY = ("start_ns", "end_ns", "kind", "named", "kind_known", "dtype", "bytes", "sequence")
_GROUP = ("group", "group_description", "group_size")
_WORLD = ("", "0", "default_pg")
"""Names of the group of the whole job."""


@dataclass(frozen=True, slots=True)
class _Key:
    """A process group. On other ranks its name may denote another group."""

    name: str
    description: str
    ranks: tuple[int, ...]
    size: int | None


@once_per_run
def matched(run: Run) -> pd.DataFrame:
    """One row per trace and recorded collective.

    Columns: `trace` (the index in `run.traces`), `row` (of `recorded`), `match` (the same number for all rows of one
    collective), `reason` (why it could not be matched, else None), `size` (ranks of the group, -1 where unknown),
    `complete` (bool: all members of the group are matched, except phantoms, which keep nobody waiting).

    Groups are identified by name and members, and collectives by their number in the group. Without numbers the ranks'
    sequences are aligned (see `align`). Then matches whose ends lie more than 1 ms apart by corrected clocks are
    rejected. Sends and receives have no common number and are not matched.
    """
    table = _all_recorded(run)
    table["match"] = np.arange(len(table), dtype=np.int64)
    table["reason"] = None
    sizes = np.full(len(table), -1, dtype=np.int64)
    phantoms = np.zeros(len(table), dtype=np.int64)
    keys = table.attrs.pop("keys")
    for number, own in table.groupby("key", sort=True):
        key = keys[number]
        size = _size(key, own, run)
        sizes[own.index] = -1 if size is None else size
        phantoms[own.index] = _phantoms(key, size, run)
        pairs = _of_group(own, key, size, run)
        table.loc[own.index, ["match", "reason"]] = pairs[["match", "reason"]]
    table["size"] = sizes
    table["match"] = table["match"].astype(np.int64)
    ranks = table.groupby("match")["trace"].transform("nunique")
    table["complete"] = table["reason"].isna() & (ranks + phantoms == table["size"])
    return table[["trace", "row", "match", "reason", "size", "complete"]]


def _all_recorded(run: Run) -> pd.DataFrame:
    """All ranks' collectives, with `key`: the group's index in `attrs["keys"]`."""
    numbers: dict[_Key, int] = {}
    tables = []
    for place, trace in enumerate(run.traces):
        table = recorded(trace)[[*_IDENTITY, *_GROUP]].copy()
        table.insert(0, "trace", place)
        table.insert(1, "row", np.arange(len(table)))
        identity = list(zip(*(table[name] for name in _GROUP), strict=True))
        codes = {group: numbers.setdefault(_key(trace, *group), len(numbers)) for group in dict.fromkeys(identity)}
        table["key"] = np.array([codes[group] for group in identity], dtype=np.int64)
        tables.append(table)
    table = pd.concat(tables, ignore_index=True)
    table.attrs["keys"] = list(numbers)
    return table


def _key(trace: Trace, name: str, description: str, size: int) -> _Key:
    for group in trace.groups:
        if group.name == name and (not description or description == group.description):
            known_size = group.size or (size if size > 0 else None)
            return _Key(name, group.description, group.ranks, len(group.ranks) or known_size)
    return _Key(name, description, (), size if size > 0 else None)


def _size(key: _Key, own: pd.DataFrame, run: Run) -> int | None:
    """Ranks in the group. Collectives of an unknown group are assumed to be of the whole job."""
    if key.size is not None or key.name not in _WORLD:
        return key.size
    sizes = [run.manifest.world_size] if run.manifest else [t.world_size for t in run.traces if t.world_size]
    return max(sizes, default=None)


def _phantoms(key: _Key, size: int | None, run: Run) -> int:
    """How many members of the group are emulated ranks without a process."""
    ranks = run.manifest.phantom_ranks if run.manifest else ()
    return len({*ranks} & {*key.ranks}) if key.ranks else min(len(ranks), (size or 1) - 1)


def _of_group(own: pd.DataFrame, key: _Key, size: int | None, run: Run) -> pd.DataFrame:
    """`match` and `reason` for one group's rows."""
    result = own[["match", "reason"]].copy()
    point_to_point = (own["kind"] == "send_recv") & own["kind_known"]
    untimed = own["start_ns"] == UNKNOWN_NS
    result.loc[point_to_point, "reason"] = "sends and receives are not matched"
    result.loc[untimed, "reason"] = "when it ran was not recorded"
    candidates = own[~point_to_point & ~untimed]
    here = _members_here(key, own, run)
    if len(here) < 2 or candidates.empty:
        return result
    if size is not None and not key.ranks and len(here) > size:
        result.loc[candidates.index, "reason"] = (
            f"several groups are called {key.name!r}, and nothing tells their members"
        )
        return result
    numbered = candidates["sequence"] >= 0
    if set(candidates.loc[numbered, "trace"]) == set(candidates["trace"]):
        result.loc[candidates.index[~numbered], "reason"] = "nothing tells its number in the group"
        pairs = _by_number(candidates[numbered])
    else:
        pairs = _by_alignment(candidates)
    result.loc[pairs.index] = _checked(candidates.loc[pairs.index], pairs, here, run)
    return result


def _members_here(key: _Key, own: pd.DataFrame, run: Run) -> list[int]:
    """The indices of the traces that must have recorded this group's collectives."""
    if key.ranks:
        return [place for place, trace in enumerate(run.traces) if trace.rank in key.ranks]
    return sorted(own["trace"].unique().tolist())


def _by_number(candidates: pd.DataFrame) -> pd.DataFrame:
    """`match` by number. Several with the same number (coalesced ones) match by order, if every rank has as many."""
    order = candidates.sort_values(["trace", "start_ns"], kind="stable")
    times = order.groupby(["trace", "sequence"]).cumcount()
    counts = order.groupby(["trace", "sequence"])["row"].transform("size")
    uneven = counts.groupby(order["sequence"]).transform("nunique") > 1
    pairs = pd.DataFrame({"reason": pd.Series(None, index=order.index, dtype=object)})
    first = order.reset_index().groupby([order["sequence"].to_numpy(), times.to_numpy()])["index"].transform("first")
    pairs["match"] = first.to_numpy()
    pairs.loc[uneven, "reason"] = "several have its number, and not as many on every rank"
    return pairs


def _by_alignment(candidates: pd.DataFrame) -> pd.DataFrame:
    """`match` by aligning the ranks' sequences of collectives."""
    order = candidates.sort_values(["trace", "start_ns"], kind="stable")
    signatures = _signatures(order)
    own = {trace: np.flatnonzero(order["trace"] == trace) for trace in order["trace"].unique()}
    ends = order["end_ns"].to_numpy(np.int64)
    fits: dict[int, tuple[int, int]] = {}
    for reference in sorted(own, key=lambda trace: (-len(own[trace]), trace))[
        :3
    ]:  # three tries, as one may be an outlier that fits no other
        aligned = {reference: (0, 0)}
        for trace, rows in own.items():
            mine = own[reference]
            fit = align(signatures[mine], ends[mine], signatures[rows], ends[rows]) if trace != reference else None
            if fit is not None:
                aligned[trace] = (fit.shift, fit.offset_ns)
        fits = max(fits, aligned, key=len)
        if len(fits) == len(own):
            break
    pairs = pd.DataFrame({"match": order.index, "reason": pd.Series(None, index=order.index, dtype=object)})
    place = np.full(len(order), UNKNOWN_NS, dtype=np.int64)
    corrected = ends.copy()
    for trace, rows in own.items():
        if trace not in fits or len(fits) == 1:
            pairs.iloc[rows, 1] = "what its rank did fits no other rank's sequence"
            continue
        shift, offset = fits[trace]
        place[rows] = np.arange(len(rows)) - shift
        corrected[rows] -= offset
    paired = place != UNKNOWN_NS
    together = pd.Series(corrected[paired]).groupby(place[paired])
    spread = (together.transform("max") - together.transform("min")).to_numpy()
    first = pd.Series(order.index[paired]).groupby(place[paired]).transform("first").to_numpy()
    rows = np.flatnonzero(paired)
    far = spread > LIMIT_NS
    pairs.iloc[rows[~far], 0] = first[~far]
    reasons = [f"the ends of those in its place lie {to_ms(apart):.1f} ms apart" for apart in spread[far]]
    pairs.iloc[rows[far], 1] = np.array(reasons, dtype=object)
    return pairs


def _signatures(table: pd.DataFrame) -> NDArray[np.int64]:
    """Each collective's fields as numbers, 0 where unknown: kind by name, known kind, dtype, bytes."""
    kind = table["kind"].where(table["kind_known"], "")
    even = table["bytes"].where(table["kind"].isin(_SAME_BYTES), -1)
    codes = [pd.factorize(column.where(column != "", None))[0] + 1 for column in (table["named"], kind, table["dtype"])]
    return np.column_stack([*codes, even.to_numpy(np.int64) + 1])


def _checked(candidates: pd.DataFrame, pairs: pd.DataFrame, here: Sequence[int], run: Run) -> pd.DataFrame:
    """The pairs, dissolved where a rank is missing or the ranks disagree on what it is, with the reason."""
    table = pairs.join(candidates[["trace", "kind", "kind_known", "dtype", "bytes"]])
    table.loc[~table["kind_known"], "kind"] = ""
    table["bytes"] = table["bytes"].where(table["kind"].isin(_SAME_BYTES) & (table["bytes"] >= 0))
    matched_ = table["reason"].isna()
    several = pd.Series(False, index=table.index[matched_])
    for column in ("kind", "dtype", "bytes"):
        values = table.loc[matched_, column].replace("", None)
        several |= values.groupby(table.loc[matched_, "match"]).transform("nunique") > 1
    lacking = _absent(table[matched_], here, run)
    pairs.loc[lacking.index, "reason"] = lacking
    pairs.loc[several.index[several], "reason"] = "the ranks that have its number disagree on what it is"
    alone = pairs["reason"].notna()
    pairs.loc[alone, "match"] = pairs.index[alone]
    return pairs


def _absent(table: pd.DataFrame, here: Sequence[int], run: Run) -> pd.Series:
    """The rows of matches that lack a rank, with the reason: which rank did not record it."""
    match, place = np.unique(table["match"], return_inverse=True)
    present = np.zeros((len(match), len(run.traces)), dtype=bool)
    present[place, table["trace"]] = True
    patterns, pattern = np.unique(present[:, list(here)], axis=0, return_inverse=True)
    messages = []
    for there in patterns:
        ranks = [str(run.traces[trace].rank) for trace, is_there in zip(here, there, strict=True) if not is_there]
        shown = ", ".join(ranks[:4]) + (", …" if len(ranks) > 4 else "")
        messages.append(f"rank {shown} did not record it" if ranks else None)
    reasons = pd.Series(
        np.array([*messages, None], dtype=object)[pattern.ravel()[place]], index=table.index, dtype=object
    )
    return reasons[reasons.notna()]
