"""When each recorded collective was launched and ended, and how long it occupied the link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.events import Run, Trace, activity, missing_ranks
from overlaplab.evidence.clocks import corrections
from overlaplab.evidence.executions import executions
from overlaplab.evidence.group_pairing import ROOTED
from overlaplab.evidence.labels import engine_labels
from overlaplab.evidence.moments import GRAIN_NS, NEVER_NS, STALL_NS, WAKE_NS
from overlaplab.evidence.purposes import Role, purposes
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.evidence.waits import numbered_arrivals
from overlaplab.manifest import strategy_traits


def carried_collectives(run: Run) -> pd.DataFrame:
    """Rows of `numbered_arrivals` that were carried, hops as one; with `hops`, `members` and `lane` of a `Launch`."""
    rows = numbered_arrivals(run)
    rows = rows[rows["start_ns"] != UNKNOWN_NS].assign(hops=None, members=None, lane=None)
    traits = strategy_traits(run.manifest)
    if traits is not None and traits.hops is not None:
        averaged = _averaged_by_hand(run).assign(hops=traits.hops, members=None, lane=None)
        others = rows[~rows["message"]]
        return pd.concat([others, averaged], ignore_index=True) if len(others) and len(averaged) else averaged
    served = traits is not None and traits.gradients == "server"
    on_mesh = run.manifest is not None and not run.manifest.axes.is_one_axis  # a Recorder's run.json names none
    if served or on_mesh or _is_in_groups(run, rows):
        rows = rows.assign(members=_members(rows), lane=_lanes(rows))
    return rows


def have_all_arrived(rows: pd.DataFrame) -> bool:
    """Whether the last arrival at each collective is known; rooted ones need only be complete and free of doubt."""
    rooted = rows["kind"].isin(ROOTED) & rows["complete"] & ~rows["doubtful"] if "complete" in rows else False
    return bool(((rows["last_ns"] != UNKNOWN_NS) | rooted).all())


def _is_in_groups(run: Run, rows: pd.DataFrame) -> bool:
    """Whether some collective is of a part of the ranks; no if ranks are missing, which may have taken part."""
    sizes = rows[~rows["message"]].groupby("match")["trace"].nunique()
    return bool((sizes < len(run.traces)).any()) and not missing_ranks(run)


def _lanes(rows: pd.DataFrame) -> pd.Series:
    """Sender and receiver of each message, by its group's name; None of collectives."""
    lanes: list[tuple[int, int] | None] = []
    for name, message in zip(rows["group"], rows["message"], strict=True):
        sender, _, receiver = str(name).split(":")[1].partition("-") if message else ("", "", "")
        lanes.append((int(sender), int(receiver)) if message else None)
    return pd.Series(lanes, index=rows.index, dtype=object)


def _members(rows: pd.DataFrame) -> pd.Series:
    """The traces that take part in each row's collective."""
    members = {match: tuple(sorted(traces)) for match, traces in rows.groupby("match")["trace"]}
    return rows["match"].map(members)


def with_seen_ends(run: Run, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, where `end_ns` of buckets that end after their backward pass is when their rank went on, if that is
    earlier; `seen` tells these buckets.

    The thread that carries a collective may be held up before it can end its range (`STALL_NS`).
    """
    seen_ends, seen = rows["end_ns"].to_numpy(np.int64).copy(), np.zeros(len(rows), dtype=bool)
    for place, trace in enumerate(run.traces):
        chosen = np.flatnonzero(rows["trace"] == place)
        offset, purpose = int(corrections(run)[place]), purposes(trace).iloc[rows["row"].to_numpy()[chosen]]
        ends, backward_ends = seen_ends[chosen] + offset, purpose["backward_end_ns"].to_numpy()
        waited = (purpose["role"] == Role.BUCKET).to_numpy() & (backward_ends != UNKNOWN_NS) & (ends >= backward_ends)
        seen[chosen[waited]] = True
        since = np.maximum(rows["launch_ns"].to_numpy(np.int64)[chosen] + offset, backward_ends)[waited].tolist()
        moments = zip(since, ends[waited].tolist(), strict=True)
        seen_ends[chosen[waited]] = [_seen_end(trace, *moment, ends) - offset for moment in moments]
    return rows.assign(end_ns=seen_ends, seen=seen)


def _seen_end(trace: Trace, since_ns: int, end_ns: int, ends: NDArray[np.int64]) -> int:
    """When the rank computed again, before `end_ns` but not before `since_ns`, after a gap longer than the rest up to
    `end_ns`; `end_ns` where no such gap is, or where another collective's end explains it.
    """
    compute = activity(trace).compute
    gap_starts, gap_ends = compute[:-1, 1], compute[1:, 0]
    first, last = np.searchsorted(gap_ends, [max(end_ns - STALL_NS, since_ns), end_ns - GRAIN_NS])
    for start, until in zip(gap_starts[first:last][::-1].tolist(), gap_ends[first:last][::-1].tolist(), strict=True):
        if until - start > end_ns - until:
            is_explained = ((until - WAKE_NS < ends) & (ends <= until + GRAIN_NS)).any()
            return end_ns if is_explained else until
    return end_ns


def with_times(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with `ended_ns`, when the collective had ended, `asked_ns`, its last launch, and `transfer_ns`, its T.

    It had ended once it had on all ranks; where an end is `seen`, with the first of these, as the others' threads woke
    up later.
    """
    by = rows.groupby("match")
    ended = by["end_ns"].transform("max")
    if "seen" in rows:
        first_seen = rows["end_ns"].where(rows["seen"], NEVER_NS).groupby(rows["match"]).transform("min")
        ended = ended.where(first_seen == NEVER_NS, first_seen)  # in integers: floats do not hold absolute ns
    rows = rows.assign(ended_ns=ended, asked_ns=by["launch_ns"].transform("max"))
    free_ns: dict[int, int] = {}
    took: dict[object, int] = {}
    once = rows.assign(members=_members(rows)).drop_duplicates("match").sort_values("ended_ns", kind="stable")
    for row in once.to_dict("records"):
        members = row["members"]
        freed_ns = max(free_ns.get(trace, UNKNOWN_NS) for trace in members)
        took[row["match"]] = max(row["ended_ns"] - max(row["asked_ns"], freed_ns), 0)
        free_ns |= dict.fromkeys(members, row["ended_ns"])
    return rows.assign(transfer_ns=rows["match"].map(took))


def end_in_order(rows: pd.DataFrame) -> bool:
    """Whether each rank's collectives, of each group and lane, ended in the order of their launches."""
    launched = rows.sort_values(["trace", "launch_ns"], kind="stable")
    by = launched.groupby([launched["trace"], launched["members"].map(str), launched["lane"].map(str)])
    return bool((by["ended_ns"].diff().fillna(0) >= 0).all())


_COLUMNS = ("trace", "match", "kind", "bytes", "launch_ns", "start_ns", "end_ns", "last_ns")


def _averaged_by_hand(run: Run) -> pd.DataFrame:
    """One row per trace and bucket whose all-reduce `ring` or `tree` made, with columns as `numbered_arrivals` has.

    Its launch is when the hops of the bucket could begin on the rank, unless those of another were under way; it ends
    with the rank's last hop. Empty where the ranks' hops are of different buckets.
    """
    rows = pd.DataFrame(list(_rows_by_hand(run)), columns=[*_COLUMNS, "chunks"])
    by = rows.groupby("match")
    if rows.empty or (by["trace"].transform("nunique") != len(run.traces)).any():
        return pd.DataFrame(columns=list(_COLUMNS))
    sent = {match: dict(chunk for each in group["chunks"] for chunk in each.items()) for match, group in by}
    sizes = {match: sum(chunks.values()) for match, chunks in sent.items()}
    return rows.assign(bytes=rows["match"].map(sizes), last_ns=by["launch_ns"].transform("max"))[list(_COLUMNS)]


def _rows_by_hand(run: Run) -> Iterator[dict[str, Any]]:
    """The rows of `_averaged_by_hand`, with `chunks`: the bytes of each that the rank sent, by its number."""
    for place, trace in enumerate(run.traces):
        ran, offset = executions(trace), int(corrections(run)[place])
        seen: Counter[str] = Counter()
        for label in engine_labels(trace):
            hops = ran.hops(label)
            if not hops:
                continue
            bucket = label.fields["bucket"]
            yield {
                "trace": place,
                "match": f"{bucket} {seen[bucket]}",
                "kind": "all_reduce",
                "launch_ns": min(hops[0].start_ns, label.end_ns) - offset,
                "start_ns": hops[0].start_ns - offset,
                "end_ns": max(hop.end_ns for hop in hops) - offset,
                "chunks": {hop.fields["sends"]: int(hop.fields["bytes"]) for hop in hops if "sends" in hop.fields},
            }
            seen[bucket] += 1
