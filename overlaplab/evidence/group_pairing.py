"""How the collectives of one group are paired across ranks (docs/design.md, "Matching"): by number; where there is none
by label, step and place in the sequence; last by times. Messages are paired by sender, receiver, step and order.

All of this gives a table with the index of `candidates`: `match` (the same number for all rows of one collective),
`reason` (why a row has no counterpart, else None), `doubtful` (bool: paired, but its ends lie too far apart).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.events import Run, rule_of
from overlaplab.evidence.alignment import FEWEST, LIMIT_NS, NEAR_NS, Fit, align, align_by_overlap, sequences_fit
from overlaplab.evidence.arrays import Groups, grouped_by
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.intervals import Integers, Mask
from overlaplab.vocabulary import Rule
from overlaplab.words import to_ms

DOUBTFUL_NS = 100_000
"""Paired on a device without a number, a collective is doubtful if its ends lie further apart: on whole jobs of 8 ranks
they lie within 7 µs. A doubtful one is not used for waits and bandwidths."""

ROOTED = frozenset({"send_recv", "broadcast", "reduce", "gather", "scatter"})
"""Kinds of collectives in which a late rank need not make the others wait, as not all need all others' data."""

SAME_BYTES = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast"})
"""Collectives whose larger side has the same size on every rank; an all-to-all's may differ."""

UNLIKE = "its rank's collectives differ from|disagree on what it is"
"""A regular expression of the reasons that say that ranks' collectives are not the same ones."""

_FAR = "the ends of those in its place lie {:.1f} ms apart"
_NO_PLACE = int(np.iinfo(np.int64).min)
"""No place; -1 is one, as shifts may be negative."""


def pair_collectives(candidates: pd.DataFrame, run: Run) -> pd.DataFrame:
    """Pair one group's collectives whose execution is known.

    `candidates` has `trace` (index in `run.traces`), the fields of `recorded_collectives`, `step` and `label` (see
    `matching`).
    """
    numbered = candidates["sequence"] >= 0
    if set(candidates.loc[numbered, "trace"]) == set(candidates["trace"]):
        pairs = _pair_by_number(candidates[numbered])
        without = candidates.index[~numbered]
        return pd.concat([pairs, pairs_table(without, match=without, reason="its number in the group is unknown")])
    order = _sort_by_launch(candidates)
    device = any(rule_of(run.traces[trace]) is Rule.GPU for trace in order["trace"].unique())
    stepped = _all_have_steps(order)
    sequence_pairs = _pair_by_sequence(order, stepped=stepped, device=device, strict=True)
    if sequence_pairs is None and stepped and not device:  # on a device ends tell more than unequal steps
        sequence_pairs = _pair_by_sequence(order, stepped=stepped, device=device, strict=False)
    if sequence_pairs is not None:
        return sequence_pairs
    pairs = _pair_by_times(order, run, device=device)
    if (device or not stepped) and pairs["reason"].notna().groupby(order["trace"]).all().any():
        # a rank's times fit no other's
        sequence_pairs = _pair_by_sequence(order, stepped=stepped, device=device, strict=False)
    return pairs if sequence_pairs is None else sequence_pairs


def _all_have_steps(table: pd.DataFrame) -> bool:
    """Whether every trace launched some of these collectives in a step."""
    return bool((table["step"] >= 0).groupby(table["trace"]).any().all())


def pair_messages(lane: pd.DataFrame) -> pd.DataFrame:
    """Pair the messages of one lane, from one rank to another: both ends number them in the same order."""
    timed = lane[lane["start_ns"] != UNKNOWN_NS]
    by_number = timed.groupby("sequence")
    both = (by_number["trace"].transform("nunique") == 2) & (by_number["trace"].transform("size") == 2)
    pairs = pairs_table(lane.index, match=lane.index, reason="when it ran was not recorded")
    pairs.loc[timed.index, "reason"] = "its other end was not recorded"
    pairs.loc[timed.index[both], "reason"] = None
    firsts = _firsts(timed.index, timed["sequence"])
    pairs.loc[timed.index[both], "match"] = firsts[both.to_numpy()]
    return pairs


def pair_named_messages(messages: pd.DataFrame, run: Run) -> pd.DataFrame:
    """Pair one group's messages whose other ends are named: the n-th that a rank sent to another in a step is the n-th
    that this one received from it, as NCCL carries them (ncclSend and ncclRecv between two ranks keep their order).

    In steps in which the two ranks' counts, types or sizes differ none is paired, nor between ranks of whose messages
    one would have been received before it was sent, by any offset between their clocks. Messages with a rank whose
    trace is missing have no reason. `messages` has `source`, `destination` and what `pair_collectives` takes.
    """
    pairs = pairs_table(messages.index, match=messages.index)
    ranks = messages["trace"].map({place: trace.rank for place, trace in enumerate(run.traces)})
    sends = messages["destination"] >= 0
    sender, receiver = messages["source"].where(~sends, ranks), messages["destination"].where(sends, ranks)
    ends = messages.assign(sends=sends, sender=sender, receiver=receiver)
    recorded_ranks = {trace.rank for trace in run.traces}
    for _, lane in ends.groupby(["sender", "receiver"]):
        first, other = (int(lane[name].iloc[0]) for name in ("sender", "receiver"))
        if first != other and {first, other} <= recorded_ranks:
            _pair_lane(pairs, _sort_by_launch(lane), first, other)
    _check_order(pairs, ends)
    return pairs


def _pair_lane(pairs: pd.DataFrame, lane: pd.DataFrame, sender: int, receiver: int) -> None:
    """Pair the messages from one rank to another, in order, step by step, or say why not."""
    stepped = _all_have_steps(lane)
    during = "its step" if stepped else "the recording"
    sends, index = lane["sends"].to_numpy(dtype=bool), lane.index.to_numpy()
    steps = Groups(lane["step"].to_numpy(np.int64) if stepped else np.zeros(len(lane), dtype=np.int64))
    sent_in, received_in = (np.bincount(steps.of_row[end], minlength=len(steps.values)) for end in (sends, ~sends))
    outside = stepped & (steps.values < 0)
    even = ~outside & (sent_in == received_in)
    sent, received = (_sort_by_step(steps, end & even[steps.of_row]) for end in (sends, ~sends))
    differ = np.zeros(len(sent), dtype=bool)
    for name, unknown in (("dtype", ""), ("bytes", -1)):
        sent_values, received_values = (lane[name].to_numpy()[rows] for rows in (sent, received))
        differ |= (sent_values != received_values) & (sent_values != unknown) & (received_values != unknown)
    unlike = np.bincount(steps.of_row[sent], weights=differ, minlength=len(steps.values)) > 0
    agree = ~unlike[steps.of_row[sent]]
    pairs.loc[index[received[agree]], "match"] = index[sent[agree]]
    reasons = np.full(len(steps.values), None, dtype=object)
    reasons[outside] = "it was launched outside all steps, where the ranks' recordings differ"
    reasons[unlike] = f"in {during} rank {receiver} received other types or sizes than rank {sender} sent it"
    for step in np.flatnonzero(~outside & ~even).tolist():
        counts = f"sent {sent_in[step]} to rank {receiver}, which received {received_in[step]}"
        reasons[step] = f"in {during} rank {sender} {counts}"
    rows = np.flatnonzero((outside | ~even | unlike)[steps.of_row])
    pairs.loc[index[rows], "reason"] = reasons[steps.of_row[rows]]


def _sort_by_step(steps: Groups, chosen: Mask) -> Integers:
    """The chosen rows, in order of their steps, and within a step as they come."""
    rows = np.flatnonzero(chosen)
    return rows[np.argsort(steps.of_row[rows], kind="stable")]


def _check_order(pairs: pd.DataFrame, ends: pd.DataFrame) -> None:
    """Dissolve the pairs between two ranks if some message would have been received before it was sent.

    Over both ways clock offsets cancel: the least times that a message takes each way, from its send's start to its
    receive's end, cannot add up to less than nothing.
    """
    match = pairs["match"].to_numpy()
    received = ends[~ends["sends"].to_numpy() & (match != pairs.index.to_numpy())]
    sent = ends.loc[pairs.loc[received.index, "match"]]
    least_ns: dict[tuple[int, int], int] = {}  # by the two clocks, from a send's start to its receive's end
    took = received["end_ns"].to_numpy(np.int64) - sent["start_ns"].to_numpy(np.int64)
    for sender, receiver, ns in zip(received["sender"], received["receiver"], took.tolist(), strict=True):
        least_ns[sender, receiver] = min(ns, least_ns.get((sender, receiver), ns))
    for (rank, other), ns in least_ns.items():
        if rank < other and ns + least_ns.get((other, rank), -ns) < -NEAR_NS:
            both = ends["sender"].isin([rank, other]) & ends["receiver"].isin([rank, other])
            apart = pairs.index.to_numpy()[both.to_numpy() & pairs["reason"].isna().to_numpy()]
            pairs.loc[apart, "match"] = apart
            pairs.loc[apart, "reason"] = (
                f"in their order, messages between ranks {rank} and {other} would end before they began"
            )


def pairs_table(
    index: pd.Index, *, match: pd.Index | Integers, reason: object = None, doubtful: object = False
) -> pd.DataFrame:
    """A table of pairs with this index; a reason or a doubt that is no array is every row's."""
    reasons, doubts = np.empty(len(index), dtype=object), np.empty(len(index), dtype=bool)
    reasons[:], doubts[:] = reason, doubtful
    columns = {"match": np.array(match, dtype=np.int64), "reason": pd.Series(reasons, index=index, dtype=object)}
    return pd.DataFrame(columns | {"doubtful": doubts}, index=index)


def _pair_by_number(candidates: pd.DataFrame) -> pd.DataFrame:
    """Pair by number; of several with one number (coalesced ones) by order, if every rank has as many."""
    order = candidates.iloc[np.lexsort((candidates["start_ns"], candidates["trace"]))]
    trace, sequence = order["trace"].to_numpy(), order["sequence"].to_numpy()
    same_number = grouped_by(trace, sequence)
    place = same_number.place()
    last_place = same_number.spread(np.maximum, place)
    first_row = grouped_by(sequence, place).spread(np.minimum, np.arange(len(order)))
    uneven = Groups(sequence).differ(last_place)
    pairs = pairs_table(order.index, match=order.index.to_numpy()[first_row])
    if uneven.any():
        pairs.loc[uneven, "reason"] = "several have its number, and not as many on every rank"
    return pairs


def _sort_by_launch(candidates: pd.DataFrame) -> pd.DataFrame:
    """By trace, then in order of launch, which is the same on all ranks, or of start where a launch is unknown."""
    launched = (candidates["launch_ns"] != UNKNOWN_NS).all()
    return candidates.sort_values(["trace", "launch_ns" if launched else "start_ns"], kind="stable")


def _pair_by_sequence(order: pd.DataFrame, *, stepped: bool, device: bool, strict: bool) -> pd.DataFrame | None:
    """Pair by place in the step, or in the whole recording where a rank has no steps.

    None unless the sequences are equal on all ranks and could have happened so: no rank was done with a collective
    before another one began it. If not `strict`, one step in which they are equal is enough, and without steps the
    clocks may differ.
    """
    traces, members = order["trace"], order["trace"].nunique()
    segment = order["step"] if stepped else pd.Series(0, index=order.index)
    place = order.groupby([traces, segment]).cumcount()
    match = order.groupby([segment, place]).ngroup()
    equal = _has_equal_segment(order, segment, match)
    common = traces.groupby(segment).transform("nunique") == members
    inside = segment >= 0
    enough = (common & inside & equal).any() and (stepped or strict or len(order) >= members * FEWEST)
    if not enough or (strict and not equal[inside].all()):
        return None
    equal_rows = order[equal]
    offsets = _offsets(equal_rows, match[equal], same_clock=strict and not stepped, device=device)
    if offsets is None:
        return None
    pairs = pairs_table(order.index, match=_firsts(order.index, match))
    pairs.loc[~equal, "match"] = order.index[~equal]
    pairs.loc[~equal & inside, "reason"] = "the ranks launched different collectives in its step"
    pairs.loc[~equal & ~inside, "reason"] = "it was launched outside all steps, where the ranks' recordings differ"
    if device:  # where a collective ends on all ranks at once
        spread = _spread(equal_rows, match[equal], offsets)
        if np.median(spread) > LIMIT_NS:
            return None
        _mark_doubtful(pairs, equal_rows.index, spread)
    return pairs


def _has_equal_segment(order: pd.DataFrame, segment: pd.Series, match: pd.Series) -> pd.Series:
    """Mark rows whose segment holds the same collectives on all ranks that recorded it."""
    sizes = order.groupby([segment, order["trace"]])["row"].transform("size")
    even = sizes.groupby(segment).transform("nunique") == 1
    for codes in _signatures(order).T:
        known_codes = pd.Series(codes, index=order.index).where(codes != 0)
        even &= known_codes.groupby(match).transform("nunique") <= 1
    return even.groupby(segment).transform("all")


def _offsets(order: pd.DataFrame, match: pd.Series, *, same_clock: bool, device: bool) -> dict[int, int] | None:
    """How far each trace's clock is ahead of the first one's: the median of the ends' differences.

    None where the collectives could not have happened so; with `same_clock` also if the offset cannot be zero. On a
    host a launch bounds the begin: of several threads that communicate, one that loses its core opens its range late.
    """
    numbers, traces = match.to_numpy(), order["trace"].to_numpy()
    starts, ends = order["start_ns"].to_numpy(np.int64), order["end_ns"].to_numpy(np.int64)
    if not device:
        launched = order["launch_ns"].to_numpy(np.int64)
        starts = np.where(launched != UNKNOWN_NS, np.minimum(launched, starts), starts)
    binds = ~order["kind"].isin({*ROOTED, ""}).to_numpy()
    first, *others = order["trace"].unique().tolist()
    of_first = np.flatnonzero(traces == first)
    offsets = {first: 0}
    for trace in others:
        its = np.flatnonzero(traces == trace)
        _, at, its_at = np.intersect1d(numbers[of_first], numbers[its], return_indices=True)
        if not len(at):
            return None
        mine, other = of_first[at], its[its_at]
        differences = np.sort(ends[other] - ends[mine])
        offsets[trace] = offset = int(differences[(len(differences) - 1) // 2])  # exact, where floats would round
        least, most = -LIMIT_NS + offset, LIMIT_NS + offset
        # no rank was done before another began: bounds of the true offset
        if (bound := binds[mine] & binds[other]).any():
            least = int((starts[other] - ends[mine])[bound].max()) - NEAR_NS
            most = int((ends[other] - starts[mine])[bound].min()) + NEAR_NS
        if least > most or (same_clock and not least <= 0 <= most):
            return None
    return offsets


def _pair_by_times(order: pd.DataFrame, run: Run, *, device: bool) -> pd.DataFrame:
    """Align the ranks' sequences, which begin and end at different ones, by when the collectives ran.

    On hosts they overlap in time (see `align_by_overlap`). On a device, or where clocks differ, they end together (see
    `align`), and those whose ends lie more than 1 ms apart are rejected.
    """
    signatures = _signatures(order)
    rows_of_trace = {trace: np.flatnonzero(order["trace"] == trace) for trace in order["trace"].unique()}
    fits = _fits(rows_of_trace, signatures, order[["start_ns", "end_ns"]].to_numpy(np.int64), device=device)
    pairs = pairs_table(order.index, match=order.index)
    common_place = np.full(len(order), _NO_PLACE, dtype=np.int64)
    base = next(iter(fits))
    for trace, rows in rows_of_trace.items():
        if trace in fits and len(fits) > 1:
            common_place[rows] = np.arange(len(rows)) - fits[trace].shift
        else:
            other = base if trace != base else next(another for another in rows_of_trace if another != base)
            similar = sequences_fit(signatures[rows_of_trace[other]], signatures[rows])
            names = f"rank {run.traces[other].rank}'s"
            pairs.loc[order.index[rows], "reason"] = (
                f"its rank's collectives are as {names}, but end at times that fit no offset between the clocks"
                if similar
                else f"its rank's collectives differ from {names} in kind, type, size or label"
            )
    paired_rows = common_place != _NO_PLACE
    if paired_rows.any():
        paired_table = order[paired_rows]
        match = pd.Series(common_place[paired_rows], index=paired_table.index)
        pairs.loc[paired_table.index, "match"] = _firsts(paired_table.index, match)
        offsets = {trace: fit.offset_ns for trace, fit in fits.items()}
        if device or any(offsets.values()):
            _mark_doubtful(pairs, paired_table.index, _spread(paired_table, match, offsets))
    return pairs


def _fits(
    rows_of_trace: Mapping[int, NDArray[np.intp]], signatures: Integers, spans: Integers, *, device: bool
) -> dict[int, Fit]:
    """How the sequences of most traces fit one of the longest three; one may be an outlier that fits no other."""
    fits: dict[int, Fit] = {}
    longest_first = sorted(rows_of_trace, key=lambda trace: (-len(rows_of_trace[trace]), trace))
    for reference in longest_first[:3]:
        aligned = {reference: Fit(shift=0, offset_ns=0, spread_ns=0)}
        mine = rows_of_trace[reference]
        for trace, rows in rows_of_trace.items():
            if trace == reference:
                continue
            fit = None if device else align_by_overlap(signatures[mine], spans[mine], signatures[rows], spans[rows])
            fit = fit or align(signatures[mine], spans[mine, 1], signatures[rows], spans[rows, 1])
            if fit is not None:
                aligned[trace] = fit
        fits = max(fits, aligned, key=len)
        if len(fits) == len(rows_of_trace):
            break
    return fits


def _firsts(index: pd.Index, match: pd.Series) -> Integers:
    """For each row the label of the first row of its match."""
    return index.to_series().groupby(match.to_numpy()).transform("first").to_numpy(np.int64)


def _spread(order: pd.DataFrame, match: pd.Series, offsets: dict[int, int]) -> Integers:
    """For each row how far apart its match's ends lie by clocks that are corrected by these offsets."""
    corrected = (order["end_ns"] - order["trace"].map(offsets)).groupby(match.to_numpy())
    return (corrected.transform("max") - corrected.transform("min")).to_numpy(np.int64)


def _mark_doubtful(pairs: pd.DataFrame, index: pd.Index, spread: Integers) -> None:
    """Mark these rows as doubtful, or dissolve their matches, by how far apart the ends lie."""
    far = spread > LIMIT_NS
    pairs.loc[index, "doubtful"] = (spread > DOUBTFUL_NS) & ~far
    pairs.loc[index[far], "match"] = index[far]
    pairs.loc[index[far], "reason"] = [_FAR.format(to_ms(apart)) for apart in spread[far]]


def _signatures(table: pd.DataFrame) -> Integers:
    """Each collective's fields as numbers, 0 where unknown: kind by name, known kind, dtype, label, bytes."""
    kind = table["kind"].where(table["kind_known"], "")
    common_bytes = table["bytes"].where(table["kind"].isin(SAME_BYTES), -1)
    texts = (table["named"], kind, table["dtype"], table["label"])
    codes = [pd.factorize(column.where(column != "", None))[0] + 1 for column in texts]
    return np.column_stack([*codes, common_bytes.to_numpy(np.int64) + 1])
