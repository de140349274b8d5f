"""Match the ranks' recorded collectives (docs/design.md, "Matching")."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from overlaplab.events import Group, Run, Trace, host_steps, once_per_run, once_per_trace, rule_of
from overlaplab.evidence.alignment import FEWEST, allows_one_group, has_waited_for_others
from overlaplab.evidence.arrays import Fields, Groups, as_table, grouped_by, number_texts, or_none
from overlaplab.evidence.fsdp2 import fsdp2_ranges
from overlaplab.evidence.group_pairing import (
    ROOTED,
    SAME_BYTES,
    pair_collectives,
    pair_messages,
    pair_named_messages,
    pairs_table,
)
from overlaplab.evidence.labels import engine_labels
from overlaplab.evidence.launches import launching_ranges
from overlaplab.evidence.recorded import UNKNOWN_NS, recorded_collectives
from overlaplab.intervals import Integers, Mask
from overlaplab.vocabulary import Rule

_COLUMNS = (
    *("launch_ns", "start_ns", "end_ns", "kind", "named", "kind_known", "dtype"),
    *("bytes", "sequence", "source", "destination", "comms_id"),
)
_GROUP_COLUMNS = ("group", "group_description", "group_size")
"""Both: what matching needs of `recorded_collectives`."""
_LAUNCHES = (
    *("bucket_launch", "gather_launch", "scatter_launch", "param_gather_launch", "replica_launch"),
    *("activation_launch", "all_gather", "post_backward_reduce"),
)
"""Words of labels that launch one collective."""
_NAMES = ("bucket", "unit", "module", "phase", "microbatch")
"""Their fields that say which collective it is, the same on all ranks."""
_LANE = re.compile(r".+:\d+-\d+(?::\d+)?")
"""The group of the engine's messages from one rank to another: group, sender, receiver, tag."""
_WORLD = ("0", "default_pg")
"""Names of the group of the whole job."""
_UNNAMED = "its trace does not say in which process group it was"


class _Key(Struct, frozen=True):
    """A process group. On other ranks its name may denote another group."""

    name: str
    description: str
    ranks: tuple[int, ...]
    size: int | None
    component: int = -1
    """The same number for groups with unknown members whose collectives share a `comms_id`; -1 if they share none."""


@once_per_run
def match_collectives(run: Run) -> pd.DataFrame:
    """One row per trace and recorded collective.

    Columns: `trace` (the index in `run.traces`), `row` (of `recorded_collectives`), `match` (the same number for all
    rows of one collective), `reason` (why it could not be matched, else None), `size` (ranks of the group, -1 where
    unknown), `complete` (bool: all members of the group are matched, except phantoms, which keep nobody waiting),
    `doubtful` (bool: matched without a number, by ends that lie more than `DOUBTFUL_NS` apart), `message` (bool: from
    one rank to another), `group` and `group_description` (also of collectives whose group nothing but the ranks that
    carried them out tells; empty where unknown).

    Groups are identified by name and members, and their collectives paired by `group_pairing`. Where torch numbers
    collectives for all ranks (`Comms Id`), those that share numbers are of one group, whatever its name. Sends and
    receives are matched where both ends are named: by the engine, whose group names the lane (the group, the sender and
    the receiver), or by torch's arguments `Src Rank` and `Dst Rank`.
    """
    table, keys = _all_recorded(run)
    match, reason = np.arange(len(table), dtype=np.int64), np.full(len(table), None, dtype=object)
    doubtful = np.zeros(len(table), dtype=bool)
    sizes, phantoms = np.full(len(table), -1, dtype=np.int64), np.zeros(len(table), dtype=np.int64)
    for key, rows in zip(keys, _rows_by_key(table["key"].to_numpy()), strict=True):
        group_rows = table.iloc[rows]
        size = _size(key, run)
        unknown_size = (group_rows["unnamed"] & (key.size is None)) | (size is None)
        sizes[rows] = np.where(unknown_size, -1, size or -1)
        phantoms[rows] = _count_phantoms(key, size, run)
        pairs = _match_group(group_rows, key, size, run)
        for values, name in ((match, "match"), (reason, "reason"), (doubtful, "doubtful")):
            values[pairs.index] = pairs[name]
    is_first = grouped_by(match, table["trace"].to_numpy()).place() == 0  # each trace counts once
    ranks = Groups(match).spread(np.add, is_first.astype(np.int64))
    is_of_all_ranks = (sizes < 0) & (table["group"] == "").to_numpy() & (ranks == (_world_size(run) or -1))
    sizes[is_of_all_ranks] = ranks[is_of_all_ranks]  # every rank of the job carried it out
    named = _names_other_end(table)
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
            **{name: table[name].to_numpy() for name in ("group", "group_description")},
        }
    )


def _rows_by_key(keys: Integers) -> list[NDArray[np.intp]]:
    """The rows of each key, in order of the keys."""
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1) if len(keys) else []


def _all_recorded(run: Run) -> tuple[pd.DataFrame, list[_Key]]:
    """All ranks' collectives, with `unnamed` (bool: several groups may have carried it out) and `key` (the index of its
    group in the list, which is returned too).
    """
    parts: list[Fields] = []
    for place, trace in enumerate(run.traces):
        recorded = recorded_collectives(trace)
        part: Fields = {name: recorded[name].to_numpy() for name in (*_COLUMNS, *_GROUP_COLUMNS)}
        part["trace"], part["row"] = np.full(len(recorded), place), np.arange(len(recorded))
        part["step"], part["label"] = steps_and_labels(trace)
        parts.append(part)
    table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    table["unnamed"] = _infer_groups(table, run)
    nodes = list(zip(*(table[name].tolist() for name in ("trace", *_GROUP_COLUMNS)), strict=True))
    number_of = {node: number for number, node in enumerate(dict.fromkeys(nodes))}
    node_of_row = np.array([number_of[node] for node in nodes], dtype=np.int64)
    keys = [_key(run.traces[place], *group) for place, *group in number_of]
    keys = _join_keys(keys, node_of_row, np.where(_names_other_end(table), -1, table["comms_id"]))
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    table["key"] = np.array([numbers[key] for key in keys], dtype=np.int64)[node_of_row]
    return as_table(table), list(numbers)


def _join_keys(keys: Sequence[_Key], node: Integers, comms_id: Integers) -> list[_Key]:
    """The keys; those whose collectives share a `comms_id` (-1 where unknown) become one.

    `node` is each collective's index among the keys. A number stands for the group's name, first rank and size, which
    groups of other ranks may share: keys with different members stay apart.
    """
    has_id = comms_id >= 0
    order = np.lexsort((node[has_id], comms_id[has_id]))
    ids, nodes = comms_id[has_id][order], node[has_id][order]
    root = list(range(len(keys)))

    def find(place: int) -> int:
        while root[place] != place:
            place = root[place]
        return place

    links = np.column_stack((nodes[:-1], nodes[1:]))[ids[:-1] == ids[1:]]
    for first, second in np.unique(links, axis=0).tolist():
        root[find(first)] = find(second)
    together: dict[int, list[int]] = {}
    for place in np.unique(nodes).tolist():
        together.setdefault(find(place), []).append(place)
    joined = list(keys)
    for component, places in together.items():
        if len({keys[place].ranks for place in places} - {()}) > 1:
            continue
        unlisted = replace(keys[places[0]], component=component)
        joined_key = next((keys[place] for place in places if keys[place].ranks), unlisted)
        for place in places:
            joined[place] = joined_key
    return joined


_Members: TypeAlias = tuple[int, ...]


class _Calls(Struct, frozen=True, eq=False):
    """A rank's collectives of one class (see `_classes`), in order of launch."""

    rows: NDArray[np.intp]
    steps: Integers
    spans: Integers
    """From the launch, or the start where that is earlier, to the end, of shape (collectives, 2)."""
    waits: bool
    """Whether every rank needs all others' data."""


def _infer_groups(table: Fields, run: Run) -> Mask:
    """Fill in, as far as times tell, the groups of collectives on hosts that nothing names; mark rows that stay
    unnamed.

    Gloo's operators do not say in which group they are; but the trace lists the rank's groups, with their members. The
    collectives of one class (see `_classes`) are taken to be in one group. That is one of those in which no rank is
    done with a collective before all have begun it. Wherever a group fits, parts of it do, too: so if several fit, the
    largest is right where others were waited for. Where several of one size remain, the size is filled in.
    """
    # of several groups with the same members the first
    listed = [{group.ranks: group for group in reversed(trace.joined_groups)} for trace in run.traces]
    several = np.array([len(groups) > 1 for groups in listed], dtype=bool)
    unnamed = (table["group"] == "") & (table["kind"] != "send_recv") & ~_names_other_end(table)
    unnamed = np.asarray(unnamed & several[table["trace"]])
    if not unnamed.any() or any(rule_of(trace) is not Rule.CPU for trace in run.traces):
        return np.zeros(len(unnamed), dtype=bool)
    classes = list(_classes(table, np.flatnonzero(unnamed)))
    options_of_class = list(_options(classes, listed, table["group_size"], run))
    has_options = all(choices for options in options_of_class for choices in options.values())
    if not has_options and not all(trace.host for trace in run.traces):
        return unnamed  # times fit no group: the ranks ran on several hosts, whose clocks differ
    for calls, options in zip(classes, options_of_class, strict=True):
        left = _narrow_options(options, run)
        for place, rank_calls in calls.items():
            groups = [listed[place][members] for members in left.get(place, ())]
            if len(groups) == 1:
                table["group"][rank_calls.rows] = groups[0].name
                table["group_description"][rank_calls.rows] = groups[0].description
                unnamed[rank_calls.rows] = False
            elif len(sizes := {_group_size(group) for group in groups}) == 1:
                table["group_size"][rank_calls.rows] = sizes.pop() or -1
    return unnamed


def _group_size(group: Group) -> int | None:
    return len(group.ranks) or group.size


def _has_size(group: Group, sizes: Integers) -> bool:
    """Whether the group may be of these sizes, -1 where unknown."""
    return _group_size(group) is None or not set(sizes.tolist()) - {-1, _group_size(group)}


def _classes(table: Fields, rows: NDArray[np.intp]) -> Iterator[dict[int, _Calls]]:
    """Yield the classes of these rows, each as its traces' calls: of one kind and label, or, where all sizes of the
    kind are known, of one kind, size and first word of the label. Calls without a label also share their place among
    such calls of the step.
    """
    launched = np.where(table["launch_ns"] != UNKNOWN_NS, table["launch_ns"], table["start_ns"])
    ordered = rows[np.lexsort((launched[rows], table["trace"][rows]))]
    steps = table["step"]
    if not all((steps[rows[table["trace"][rows] == place]] >= 0).any() for place in np.unique(table["trace"][rows])):
        steps = np.zeros_like(steps)
    kinds, sizes = table["kind"][ordered].tolist(), table["bytes"][ordered].tolist()
    unsized = {kind for kind, size in zip(kinds, sizes, strict=True) if size < 0 or kind not in SAME_BYTES}
    texts, step_numbers, traces = (values[ordered].tolist() for values in (table["label"], steps, table["trace"]))
    number_in_step: Counter[tuple[Any, ...]] = Counter()
    rows_of_class: dict[tuple[Any, ...], dict[int, list[int]]] = {}
    columns = (ordered.tolist(), traces, step_numbers, kinds, sizes, texts)
    for row, trace, step, kind, size, label in zip(*columns, strict=True):
        key = (kind, label, -1) if kind in unsized else (kind, label.partition(" ")[0], size)
        if not label:
            number_in_step[trace, step, key] += 1
            key = (*key, step >= 0, number_in_step[trace, step, key])
        rows_of_class.setdefault(key, {}).setdefault(trace, []).append(row)
    begun = np.minimum(launched, table["start_ns"])  # `UNKNOWN_NS` where it is unknown when it ran
    spans = np.column_stack((begun, table["end_ns"]))
    for key, by_trace in rows_of_class.items():
        waits = key[0] not in (*ROOTED, "")
        arrays = {trace: np.array(rows) for trace, rows in by_trace.items()}
        yield {trace: _Calls(rows, steps[rows], spans[rows], waits) for trace, rows in arrays.items()}


def _compare_spans(calls: Sequence[_Calls | None], steps: set[int]) -> tuple[bool, Integers | None]:
    """Whether these ranks may have carried out the calls together, and their spans, of shape (ranks, collectives, 2).

    They may not if in one of `steps` some have calls and others none. The spans are None where there are none, or the
    ranks' numbers of calls differ.
    """
    steps_of = [np.array([], np.int64) if each is None else each.steps for each in calls]
    chosen = [np.flatnonzero(np.isin(of_rank, [*steps])) for of_rank in steps_of]
    listed = [of_rank[rows].tolist() for of_rank, rows in zip(steps_of, chosen, strict=True)]
    if any({*each} != {*listed[0]} for each in listed):
        return False, None
    if not any(listed) or any(each != listed[0] for each in listed):
        return True, None
    spans = np.stack([each.spans[rows] for each, rows in zip(calls, chosen, strict=True) if each is not None])
    spans = spans[:, (spans != UNKNOWN_NS).all(axis=(0, 2))]
    return True, spans if spans.shape[1] else None


_Options: TypeAlias = dict[int, dict[_Members, "Integers | None"]]
"""For each trace the groups that a class may be in, with the spans of all their ranks, where these can be compared."""


def _options(
    classes: Sequence[dict[int, _Calls]], listed: Sequence[dict[_Members, Group]], sizes: Integers, run: Run
) -> Iterator[_Options]:
    """Yield for each class its options: the groups of the right size that its times allow."""
    place_of = {trace.rank: place for place, trace in enumerate(run.traces)}
    hosts = [trace.host or "" for trace in run.traces]
    recorded_steps: dict[int, set[int]] = {}
    for calls in classes:
        for place, rank_calls in calls.items():
            recorded_steps.setdefault(place, set()).update(rank_calls.steps[rank_calls.steps >= 0].tolist())
    for calls in classes:
        fitting: dict[_Members, Integers | None] = {}
        for members in {members for place in calls for members in listed[place]}:
            places = [place_of[rank] for rank in members if rank in place_of]
            shared = set.intersection(*(recorded_steps.get(place, set()) for place in places)) if places else set()
            fits, spans = _compare_spans([calls.get(place) for place in places], shared)
            member_hosts = [hosts[place] for place in places]
            waits = all(rank_calls.waits for rank_calls in calls.values())
            if fits and (spans is None or not waits or allows_one_group(spans, member_hosts)):
                is_comparable = waits and len(places) == len(members) and len({*member_hosts}) == 1
                fitting[members] = spans if is_comparable else None
        yield {
            place: {
                members: fitting[members]
                for members, group in listed[place].items()
                if members in fitting and _has_size(group, sizes[rank_calls.rows])
            }
            for place, rank_calls in calls.items()
        }


def _narrow_options(options: _Options, run: Run) -> _Options:
    """The options that remain if all ranks of a group have its collectives in it; empty if a trace has none left."""
    left, before = {place: dict(choices) for place, choices in options.items()}, -1
    rank_of_trace = {place: run.traces[place].rank for place in left}
    while (number := sum(map(len, left.values()))) != before:
        before = number
        for choices in left.values():
            for members in list(choices):
                if any(members not in left[place] for place, rank in rank_of_trace.items() if rank in members):
                    del choices[members]
            largest = next((whole for whole in choices if all({*part} <= {*whole} for part in choices)), None)
            if largest is not None and _needs_all(largest, choices):
                spans = choices[largest]
                for place, rank in rank_of_trace.items():
                    if rank in largest:
                        left[place].clear()
                        left[place][largest] = spans
    return left if all(left.values()) else {}


def _needs_all(members: _Members, options: Mapping[_Members, Integers | None]) -> bool:
    """Whether these ranks, and not a part of them, carried out the collectives whose spans the options have."""
    spans, parts = options[members], [part for part in options if part != members]
    if not parts:
        return True
    if spans is None or spans.shape[1] < FEWEST or () in parts:
        return False
    return all(has_waited_for_others(spans, np.isin(members, part)) for part in parts)


@once_per_trace
def steps_and_labels(trace: Trace) -> tuple[Integers, NDArray[np.object_]]:
    """For each row of `recorded_collectives` the step in which it was launched, and its label.

    The step is -1 outside all steps; the label is empty where there is none. Where numbers match all collectives,
    nobody needs either: all steps are -1, all labels empty.
    """
    table = recorded_collectives(trace)
    if ((table["sequence"] >= 0) & ~_names_other_end(table)).all():
        return np.full(len(table), -1, dtype=np.int64), np.full(len(table), "", dtype=object)
    called, steps_begun = table["host_ns"].to_numpy(np.int64), host_steps(trace)
    place = np.searchsorted([step.start_ns for step in steps_begun], called, side="right") - 1
    if steps_begun:
        place[called >= steps_begun[-1].end_ns] = -1
    numbers = [-1 if step.step is None else step.step for step in steps_begun]
    steps = np.array([*numbers, -1], dtype=np.int64)[place]
    ranges = [label for label in (*engine_labels(trace), *fsdp2_ranges(trace)) if label.word in _LAUNCHES]
    texts = [" ".join((label.word, *(label.fields.get(key, "") for key in _NAMES))) for label in ranges]
    return steps, np.array([*texts, ""], dtype=object)[launching_ranges(trace, table, ranges)]


def _key(trace: Trace, name: str, description: str, size: int) -> _Key:
    for group in trace.joined_groups:
        if group.name == name and (not description or description == group.description):
            known_size = group.size or (size if size > 0 else None)
            return _Key(name, group.description, group.ranks, len(group.ranks) or known_size)
    return _Key(name, description, (), size if size > 0 else None)


def _is_lane(key: _Key) -> bool:
    """Whether it carries the engine's messages; the trace lists groups, but no lanes."""
    return not key.ranks and _LANE.fullmatch(key.name) is not None


def _names_other_end(table: Fields | pd.DataFrame) -> Mask:
    """Whether each is a message whose other end torch's arguments name."""
    source, destination = (np.asarray(table[name], dtype=np.int64) for name in ("source", "destination"))
    return np.asarray((source >= 0) | (destination >= 0))


def _size(key: _Key, run: Run) -> int | None:
    """Ranks in the group; None where unknown.

    The engine's older recordings name no group, as there was only one; a job of two ranks has only one.
    """
    if _is_lane(key):
        return 2
    if key.size is not None or key.name not in ("", *_WORLD):
        return key.size
    world_size = _world_size(run)
    manifest = run.manifest
    is_engine_without_mesh = manifest is not None and manifest.strategy is not None and manifest.mesh is None
    return world_size if key.name or is_engine_without_mesh or (world_size or 0) <= 2 else None


def _world_size(run: Run) -> int | None:
    """Ranks in the job; None where unknown."""
    sizes = [run.manifest.world_size] if run.manifest else [t.world_size for t in run.traces if t.world_size]
    return max(sizes, default=None)


def _count_phantoms(key: _Key, size: int | None, run: Run) -> int:
    """How many members of the group are emulated ranks without a process."""
    ranks = run.manifest.phantom_ranks if run.manifest else ()
    return len({*ranks} & {*key.ranks}) if key.ranks else min(len(ranks), (size or 1) - 1)


def _match_group(group_rows: pd.DataFrame, key: _Key, size: int | None, run: Run) -> pd.DataFrame:
    """`pairs_table` of one group's rows."""
    if _is_lane(key):
        return pair_messages(group_rows)
    result = pairs_table(group_rows.index, match=group_rows.index)
    named = _names_other_end(group_rows)
    point_to_point = ((group_rows["kind"] == "send_recv") & group_rows["kind_known"]) | named
    untimed = group_rows["start_ns"] == UNKNOWN_NS
    if group_rows["unnamed"].any() and len(run.traces) > 1:
        result.loc[group_rows["unnamed"], "reason"] = _UNNAMED
    if point_to_point.any():
        result.loc[point_to_point, "reason"] = "its trace does not say between which ranks it was sent"
        if (messages := group_rows[named & ~untimed]).size:
            result.loc[messages.index] = pair_named_messages(messages, run)
    if untimed.any():
        result.loc[untimed, "reason"] = "when it ran was not recorded"
    candidates = group_rows[~point_to_point & ~untimed & ~group_rows["unnamed"]]
    member_traces = _member_traces(key, group_rows, run)
    if len(member_traces) < 2 or candidates.empty:
        return result
    if size is not None and not key.ranks and len(member_traces) > size:
        result.loc[candidates.index, "reason"] = (
            f"several groups are called {key.name!r}, and their members are unknown" if key.name else _UNNAMED
        )
        return result
    identified = candidates.loc[candidates["comms_id"] >= 0, "trace"]
    if {*identified} == {*candidates["trace"]}:  # which says more than a number within a group
        candidates = candidates.assign(sequence=candidates["comms_id"])
    result.loc[candidates.index] = _check_pairs(candidates, pair_collectives(candidates, run), member_traces, run)
    return result


def _member_traces(key: _Key, group_rows: pd.DataFrame, run: Run) -> list[int]:
    """The indices of the traces that must have recorded this group's collectives."""
    if key.ranks:
        return [place for place, trace in enumerate(run.traces) if trace.rank in key.ranks]
    return sorted(group_rows["trace"].unique().tolist())


def _check_pairs(candidates: pd.DataFrame, pairs: pd.DataFrame, member_traces: Sequence[int], run: Run) -> pd.DataFrame:
    """The pairs, dissolved where a rank is missing or the ranks disagree on what it is, with the reason."""
    table = candidates.loc[pairs.index]
    kind_known, kind = table["kind_known"].to_numpy(), table["kind"].to_numpy()
    bytes_ = np.where(kind_known & np.isin(kind, list(SAME_BYTES)), table["bytes"], -1)
    values = number_texts(np.where(kind_known, kind, "")), number_texts(table["dtype"].to_numpy()), bytes_
    match, traces, reason = pairs["match"].to_numpy(), table["trace"].to_numpy(), pairs["reason"].to_numpy(copy=True)
    rows = np.flatnonzero(pd.isna(reason))
    groups = Groups(match[rows])
    absent = _absence_reasons(match[rows], traces[rows], member_traces, run, set(traces.tolist()))
    reason[rows] = np.where(pd.isna(absent), reason[rows], absent)
    several = np.logical_or.reduce([groups.differ(column[rows]) for column in values])
    reason[rows[several]] = "the ranks that have its number disagree on what it is"
    dissolved = ~pd.isna(reason)
    match = np.where(dissolved, pairs.index, match)
    return pairs_table(pairs.index, match=match, reason=reason, doubtful=pairs["doubtful"].to_numpy() & ~dissolved)


def _absence_reasons(
    match: Integers, traces: Integers, member_traces: Sequence[int], run: Run, recording: set[int]
) -> NDArray[np.object_]:
    """For each row of these matches, which rank did not record it or fits no other; None where all have it.

    `recording` are the traces that recorded collectives of the group, matched or not.
    """
    numbers, place = np.unique(match, return_inverse=True)
    present = np.zeros((len(numbers), len(run.traces)), dtype=bool)
    present[place, traces] = True
    patterns, pattern = np.unique(present[:, list(member_traces)], axis=0, return_inverse=True)
    unfit = recording - set(traces.tolist())
    messages = []
    for present_of_group in patterns:
        lacking = [trace for trace, is_there in zip(member_traces, present_of_group, strict=True) if not is_there]
        absent = [trace for trace in lacking if trace not in unfit] or lacking
        ranks = [str(run.traces[trace].rank) for trace in absent]
        shown = ", ".join(ranks[:4]) + (", …" if len(ranks) > 4 else "")
        did = "did not record it" if set(lacking) - unfit else "could not be matched"
        messages.append(f"rank {shown} {did}" if lacking else None)
    return np.array([*messages, None], dtype=object)[pattern.ravel()[place]]
