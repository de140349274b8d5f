"""Which ranks' recorded collectives belong together (docs/design.md, "Matching")."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.events import Run, Trace, host_steps, once_per_run, once_per_trace, rule_of
from overlaplab.evidence.arguments import around
from overlaplab.evidence.fields import Fields, Groups, as_table, grouped_by, numbers_of, or_none
from overlaplab.evidence.fsdp2 import fsdp2_ranges_of
from overlaplab.evidence.labels import labels_of
from overlaplab.evidence.pairing import SAME_BYTES, paired, paired_messages, paired_named, pairs_of
from overlaplab.evidence.recorded import UNKNOWN_NS, recorded
from overlaplab.vocabulary import Rule

__all__ = ["matched", "steps_and_labels"]

_IDENTITY = (
    "launch_ns",
    "start_ns",
    "end_ns",
    "kind",
    "named",
    "kind_known",
    "dtype",
    "bytes",
    "sequence",
    "source",
    "destination",
)
_GROUP = ("group", "group_description", "group_size")
_LAUNCHES = (
    "bucket_launch",
    "gather_launch",
    "scatter_launch",
    "param_gather_launch",
    "replica_launch",
    "activation_launch",
    "all_gather",
    "post_backward_reduce",
)
_NAMES = ("bucket", "unit", "module", "phase", "microbatch")
"""Labels that launch one collective, and their fields that say which, the same on all ranks."""
_LANE = re.compile(r".+:\d+-\d+(?::\d+)?")
"""The group of the engine's messages from one rank to another: group, sender, receiver, tag."""
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
    `complete` (bool: all members of the group are matched, except phantoms, which keep nobody waiting), `doubtful`
    (bool: matched without a number, by ends that lie more than `DOUBTFUL_NS` apart), `message` (bool: from one rank to
    another).

    Groups are identified by name and members, and their collectives paired by `pairing`. Sends and receives are matched
    where both ends are named: by the engine, whose group names the lane (the group, the sender and the receiver), or by
    torch's arguments `Src Rank` and `Dst Rank`.
    """
    table, keys = _all_recorded(run)
    match, reason = np.arange(len(table), dtype=np.int64), np.full(len(table), None, dtype=object)
    doubtful = np.zeros(len(table), dtype=bool)
    sizes, phantoms = np.full(len(table), -1, dtype=np.int64), np.zeros(len(table), dtype=np.int64)
    for key, rows in zip(keys, _by_key(table["key"].to_numpy()), strict=True):
        own = table.iloc[rows]
        size = _size(key, own, run)
        sizes[rows] = -1 if size is None else size
        phantoms[rows] = _phantoms(key, size, run)
        pairs = _of_group(own, key, size, run)
        for values, name in ((match, "match"), (reason, "reason"), (doubtful, "doubtful")):
            values[pairs.index] = pairs[name]
    ranks = Groups(match).spread(np.add, (grouped_by(match, table["trace"].to_numpy()).place() == 0).astype(np.int64))
    named = _names_other_end(table).to_numpy()
    members = np.where(named, 2, sizes)
    lanes = [number for number, key in enumerate(keys) if _is_lane(key)]
    return as_table(
        {
            **{name: table[name].to_numpy() for name in ("trace", "row")},
            "match": match,
            "reason": or_none(reason, ~pd.isna(reason)),
            "size": sizes,
            "complete": pd.isna(reason) & (ranks + np.where(named, 0, phantoms) == members),
            "doubtful": doubtful,
            "message": np.isin(table["key"].to_numpy(), lanes) | named,
        }
    )


def _by_key(keys: NDArray[np.int64]) -> list[NDArray[np.intp]]:
    """The rows of each key, in order of the keys."""
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1) if len(keys) else []


def _all_recorded(run: Run) -> tuple[pd.DataFrame, list[_Key]]:
    """All ranks' collectives, with `key`: the index of the group, which follow."""
    numbers: dict[_Key, int] = {}
    parts: list[Fields] = []
    for place, trace in enumerate(run.traces):
        table = recorded(trace)
        part: Fields = {name: table[name].to_numpy() for name in (*_IDENTITY, *_GROUP)}
        part["trace"], part["row"] = np.full(len(table), place), np.arange(len(table))
        part["step"], part["label"] = steps_and_labels(trace)
        identity = list(zip(*(part[name].tolist() for name in _GROUP), strict=True))
        codes = {group: numbers.setdefault(_key(trace, *group), len(numbers)) for group in dict.fromkeys(identity)}
        part["key"] = np.array([codes[group] for group in identity], dtype=np.int64)
        parts.append(part)
    return as_table({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}), list(numbers)


@once_per_trace
def steps_and_labels(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.object_]]:
    """For each of `recorded`'s rows the step in which it was launched, -1 outside all, and its label, empty without."""
    table = recorded(trace)
    if ((table["sequence"] >= 0) & ~_names_other_end(table)).all():  # which are matched by their numbers
        return np.full(len(table), -1, dtype=np.int64), np.full(len(table), "", dtype=object)
    called, begun = table["host_ns"].to_numpy(np.int64), host_steps(trace)
    place = np.searchsorted([step.start_ns for step in begun], called, side="right") - 1
    if begun:
        place[called >= begun[-1].end_ns] = -1
    numbers = [-1 if step.step is None else step.step for step in begun]
    steps = np.array([*numbers, -1], dtype=np.int64)[place]
    ranges = [label for label in (*labels_of(trace), *fsdp2_ranges_of(trace)) if label.word in _LAUNCHES]
    any_thread = rule_of(trace) is Rule.GPU
    spans = pd.DataFrame(
        {
            "start_ns": np.array([label.start_ns for label in ranges], dtype=np.int64),
            "end_ns": np.array([label.end_ns for label in ranges], dtype=np.int64),
            "thread": np.array([0 if any_thread else label.thread for label in ranges], dtype=np.int64),
        }
    )
    threads = np.zeros(len(table), dtype=np.int64) if any_thread else table["thread"].to_numpy(np.int64)
    texts = [" ".join((label.word, *(label.fields.get(key, "") for key in _NAMES))) for label in ranges]
    return steps, np.array([*texts, ""], dtype=object)[around(spans, threads, table["launch_ns"].to_numpy(np.int64))]


def _key(trace: Trace, name: str, description: str, size: int) -> _Key:
    for group in trace.groups:
        if group.name == name and (not description or description == group.description):
            known_size = group.size or (size if size > 0 else None)
            return _Key(name, group.description, group.ranks, len(group.ranks) or known_size)
    return _Key(name, description, (), size if size > 0 else None)


def _is_lane(key: _Key) -> bool:
    """Whether it carries the engine's messages; the trace lists groups, but no lanes."""
    return not key.ranks and _LANE.fullmatch(key.name) is not None


def _names_other_end(table: pd.DataFrame) -> pd.Series:
    """Which are messages whose other end torch's arguments name."""
    return (table["source"] >= 0) | (table["destination"] >= 0)


def _size(key: _Key, own: pd.DataFrame, run: Run) -> int | None:
    """Ranks in the group. Collectives of an unknown group are assumed to be of the whole job."""
    if _is_lane(key):
        return 2
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
    if _is_lane(key):
        return paired_messages(own)
    result = pairs_of(own.index, match=own.index)
    named = _names_other_end(own)
    point_to_point = ((own["kind"] == "send_recv") & own["kind_known"]) | named
    untimed = own["start_ns"] == UNKNOWN_NS
    if point_to_point.any():
        result.loc[point_to_point, "reason"] = "its trace does not say between which ranks it was sent"
        if (messages := own[named & ~untimed]).size:
            result.loc[messages.index] = paired_named(messages, run)
    if untimed.any():
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
    result.loc[candidates.index] = _checked(candidates, paired(candidates, run), here, run)
    return result


def _members_here(key: _Key, own: pd.DataFrame, run: Run) -> list[int]:
    """The indices of the traces that must have recorded this group's collectives."""
    if key.ranks:
        return [place for place, trace in enumerate(run.traces) if trace.rank in key.ranks]
    return sorted(own["trace"].unique().tolist())


def _checked(candidates: pd.DataFrame, pairs: pd.DataFrame, here: Sequence[int], run: Run) -> pd.DataFrame:
    """The pairs, dissolved where a rank is missing or the ranks disagree on what it is, with the reason."""
    table = candidates.loc[pairs.index]
    told, kind = table["kind_known"].to_numpy(), table["kind"].to_numpy()
    bytes_ = np.where(told & np.isin(kind, list(SAME_BYTES)), table["bytes"], -1)
    values = numbers_of(np.where(told, kind, "")), numbers_of(table["dtype"].to_numpy()), bytes_
    match, traces, reason = pairs["match"].to_numpy(), table["trace"].to_numpy(), pairs["reason"].to_numpy(copy=True)
    rows = np.flatnonzero(pd.isna(reason))
    groups = Groups(match[rows])
    absent = _absent(match[rows], traces[rows], here, run, set(traces.tolist()))
    reason[rows] = np.where(pd.isna(absent), reason[rows], absent)
    several = np.logical_or.reduce([groups.differ(own[rows]) for own in values])
    reason[rows[several]] = "the ranks that have its number disagree on what it is"
    alone = ~pd.isna(reason)
    match = np.where(alone, pairs.index, match)
    return pairs_of(pairs.index, match=match, reason=reason, doubtful=pairs["doubtful"].to_numpy() & ~alone)


def _absent(
    match: NDArray[np.int64], traces: NDArray[np.int64], here: Sequence[int], run: Run, recording: set[int]
) -> NDArray[np.object_]:
    """For each row of these matches, which rank did not record it or fits no other; None where all have it.

    `recording` are the traces that recorded collectives of the group, matched or not.
    """
    numbers, place = np.unique(match, return_inverse=True)
    present = np.zeros((len(numbers), len(run.traces)), dtype=bool)
    present[place, traces] = True
    patterns, pattern = np.unique(present[:, list(here)], axis=0, return_inverse=True)
    unfit = recording - set(traces.tolist())
    messages = []
    for there in patterns:
        lacking = [trace for trace, is_there in zip(here, there, strict=True) if not is_there]
        ranks = [str(run.traces[trace].rank) for trace in lacking if trace not in unfit] or lacking
        shown = ", ".join(map(str, ranks[:4])) + (", …" if len(ranks) > 4 else "")
        did = "did not record it" if set(lacking) - unfit else "could not be matched"
        messages.append(f"rank {shown} {did}" if lacking else None)
    return np.array([*messages, None], dtype=object)[pattern.ravel()[place]]
