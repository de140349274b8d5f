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
from overlaplab.evidence.labels import fsdp2_ranges_of, labels_of
from overlaplab.evidence.pairing import SAME_BYTES, paired, paired_messages, paired_named
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
_PAIRS = ["match", "reason", "doubtful"]
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
    table = _all_recorded(run)
    table["match"] = np.arange(len(table), dtype=np.int64)
    table["reason"], table["doubtful"] = None, False
    sizes = np.full(len(table), -1, dtype=np.int64)
    phantoms = np.zeros(len(table), dtype=np.int64)
    keys = table.attrs.pop("keys")
    for number, own in table.groupby("key", sort=True):
        key = keys[number]
        size = _size(key, own, run)
        sizes[own.index] = -1 if size is None else size
        phantoms[own.index] = _phantoms(key, size, run)
        pairs = _of_group(own, key, size, run)
        table.loc[own.index, _PAIRS] = pairs[_PAIRS]
    table["size"] = sizes
    table = table.astype({"match": "int64", "doubtful": "bool"})
    ranks = table.groupby("match")["trace"].transform("nunique")
    named = _names_other_end(table)
    members = table["size"].where(~named, 2)
    table["complete"] = table["reason"].isna() & (ranks + np.where(named, 0, phantoms) == members)
    lanes = [number for number, key in enumerate(keys) if _is_lane(key)]
    table["message"] = table["key"].isin(lanes) | named
    return table[["trace", "row", "match", "reason", "size", "complete", "doubtful", "message"]]


def _all_recorded(run: Run) -> pd.DataFrame:
    """All ranks' collectives, with `key`: the group's index in `attrs["keys"]`."""
    numbers: dict[_Key, int] = {}
    tables = []
    for place, trace in enumerate(run.traces):
        table = recorded(trace)[[*_IDENTITY, *_GROUP]].copy()
        table.insert(0, "trace", place)
        table.insert(1, "row", np.arange(len(table)))
        table["step"], table["label"] = steps_and_labels(trace)
        identity = list(zip(*(table[name] for name in _GROUP), strict=True))
        codes = {group: numbers.setdefault(_key(trace, *group), len(numbers)) for group in dict.fromkeys(identity)}
        table["key"] = np.array([codes[group] for group in identity], dtype=np.int64)
        tables.append(table)
    table = pd.concat(tables, ignore_index=True)
    table.attrs["keys"] = list(numbers)
    return table


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
    result = own[_PAIRS].copy()
    if _is_lane(key):
        return paired_messages(own)
    named = _names_other_end(own)
    point_to_point = ((own["kind"] == "send_recv") & own["kind_known"]) | named
    untimed = own["start_ns"] == UNKNOWN_NS
    result.loc[point_to_point, "reason"] = "its trace does not say between which ranks it was sent"
    if (messages := own[named & ~untimed]).size:
        result.loc[messages.index] = paired_named(messages, run)
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
    table = pairs.join(candidates[["trace", "kind", "kind_known", "dtype", "bytes"]])
    table.loc[~table["kind_known"], "kind"] = ""
    table["bytes"] = table["bytes"].where(table["kind"].isin(SAME_BYTES) & (table["bytes"] >= 0))
    matched_ = table["reason"].isna()
    several = pd.Series(False, index=table.index[matched_])
    for column in ("kind", "dtype", "bytes"):
        values = table.loc[matched_, column].replace("", None)
        several |= values.groupby(table.loc[matched_, "match"]).transform("nunique") > 1
    lacking = _absent(table[matched_], here, run, set(candidates["trace"]))
    pairs.loc[lacking.index, "reason"] = lacking
    pairs.loc[several.index[several], "reason"] = "the ranks that have its number disagree on what it is"
    alone = pairs["reason"].notna()
    pairs.loc[alone, "match"] = pairs.index[alone]
    pairs.loc[alone, "doubtful"] = False
    return pairs


def _absent(table: pd.DataFrame, here: Sequence[int], run: Run, recording: set[int]) -> pd.Series:
    """The rows of matches that lack a rank, with the reason: which rank did not record it, or fits no other.

    `recording` are the traces that recorded collectives of the group, matched or not.
    """
    match, place = np.unique(table["match"], return_inverse=True)
    present = np.zeros((len(match), len(run.traces)), dtype=bool)
    present[place, table["trace"]] = True
    patterns, pattern = np.unique(present[:, list(here)], axis=0, return_inverse=True)
    unfit = recording - set(table["trace"])
    messages = []
    for there in patterns:
        lacking = [trace for trace, is_there in zip(here, there, strict=True) if not is_there]
        ranks = [str(run.traces[trace].rank) for trace in lacking if trace not in unfit] or lacking
        shown = ", ".join(map(str, ranks[:4])) + (", …" if len(ranks) > 4 else "")
        did = "did not record it" if set(lacking) - unfit else "could not be matched"
        messages.append(f"rank {shown} {did}" if lacking else None)
    reasons = pd.Series(
        np.array([*messages, None], dtype=object)[pattern.ravel()[place]], index=table.index, dtype=object
    )
    return reasons[reasons.notna()]
