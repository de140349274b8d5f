"""What the engine's labels alone tell: hops, copies between device and host, recomputed passes, staleness."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from overlaplab.costs.memory import copied_bytes
from overlaplab.events import Run, Trace, Window, activity, enclosing_ranges, event_times, launchers, rule_of
from overlaplab.evidence.clocks import run_zero_ns
from overlaplab.evidence.executions import executions
from overlaplab.evidence.labels import Label, engine_labels, span_intervals
from overlaplab.evidence.selection import launched_in, rows_by_rank
from overlaplab.intervals import Integers, Intervals, intersect, total, union
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.vocabulary import Rule, label_list

_NUMBERS = ("bucket", "hop", "sends", "to", "receives", "source", "bytes")
_HOPS = ("rank", "step", "bucket", "kind", "hop", "sends", "to", "receives", "source", "bytes", "start_ns", "end_ns")
_MOMENTS = ("hop", "rank", "chunk", "ranks", "arrived")
_ADDING = ("reduce", "reduce_scatter")
_COPIES = ("rank", "step", "way", "count", "bytes", "theory_bytes", "copy_ns", "hidden_ns")
_PASSES = {"rank": "Int64", "step": "Int64", "module": "object", "passes": "int64", "recompute_ns": "int64"}
_UPDATES = ("rank", "step", "worker", "staleness", "start_ns", "end_ns")


def hops(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per hop of a bucket's all-reduce that `ring` or `tree` made, by rank, bucket and hop.

    Columns, numbers in Int64: `rank`, `step`, `bucket`, `kind` (of the half that it belongs to), `hop` (from 0, through
    both halves), `sends`, `receives` (numbers of chunks) and `to`, `source` (ranks; null where the rank did not send,
    or not receive), `bytes` (that it sent), `start_ns`, `end_ns` (from the step window's start, on the host: with the
    wait for both neighbours and the addition). Empty where collectives are the library's. Raises `OverlaplabError` for
    an unknown rank or step.
    """
    table = pd.DataFrame(rows_by_rank(run, selection, _hop_rows), columns=list(_HOPS))
    return table.astype({name: "Int64" for name in _HOPS if name != "kind"})


def _hop_rows(trace: Trace, steps: Sequence[Window]) -> Iterator[dict[str, Any]]:
    ran = executions(trace)
    for step in steps:
        for launch in launched_in(engine_labels(trace), step):
            for hop in ran.hops(launch):
                numbers = {name: int(hop.fields[name]) if name in hop.fields else None for name in _NUMBERS}
                times = {"start_ns": hop.start_ns - step.start_ns, "end_ns": hop.end_ns - step.start_ns}
                yield {"step": step.step, "kind": hop.fields["kind"], **numbers, **times}


def chunks_after_hops(table: pd.DataFrame) -> pd.DataFrame:
    """Places of chunks: one row per rank, chunk and moment, from all ranks' rows of `hops` of one step and bucket.

    Columns: `hop` (the moment after it; -1 before the first), `rank`, `chunk`, `ranks` (of how many ranks the chunk
    there holds the sum; all: it is done), `arrived` (whether it came in that hop). Every rank begins with its own
    values; what arrives is added in the first half, and replaces what was there in the second. Empty where a rank's
    hops are absent.
    """
    ranks = sorted({int(rank) for name in ("rank", "to", "source") for rank in table[name].dropna()})
    if {*ranks} != {*table["rank"]}:
        return pd.DataFrame(columns=list(_MOMENTS))
    chunks = sorted({int(chunk) for name in ("sends", "receives") for chunk in table[name].dropna()})
    held = {(rank, chunk): 1 for rank in ranks for chunk in chunks}
    rows = [(-1, rank, chunk, 1, False) for rank, chunk in held]
    for hop, received in table.dropna(subset=["receives"]).sort_values("hop").groupby("hop"):
        arrived = {}
        for row in received.to_dict("records"):
            before = held[row["rank"], row["receives"]] if row["kind"] in _ADDING else 0
            arrived[row["rank"], row["receives"]] = before + held[row["source"], row["receives"]]
        held |= arrived
        rows += [(int(str(hop)), *place, count, place in arrived) for place, count in held.items()]
    return pd.DataFrame(rows, columns=list(_MOMENTS))


def copies(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank, step and direction in which something was copied; by the engine's labels.

    On a GPU a copy lasts as long as what was launched in its label. FSDP2 copies by itself there, without labels.

    Columns, numbers in Int64: `rank`, `step`, `way` (`down`, to the host, or `up`), `count`, `bytes`, `theory_bytes`
    (what should be copied; null where run.json does not tell), `copy_ns` (when at least one was under way), `hidden_ns`
    (of it, while the rank computed). Raises `OverlaplabError` for an unknown rank or step.
    """
    theory = {} if run.manifest is None else copied_bytes(run.manifest)
    rows = [row | {"theory_bytes": theory.get(row["way"])} for row in rows_by_rank(run, selection, _copy_rows)]
    return pd.DataFrame(rows, columns=list(_COPIES)).astype({name: "Int64" for name in _COPIES if name != "way"})


def _copy_rows(trace: Trace, steps: Sequence[Window]) -> Iterator[dict[str, Any]]:
    copied = [label for label in engine_labels(trace) if label.word == "copy"]
    computing = activity(trace).compute
    launched = np.flatnonzero(launchers(trace) >= 0)
    launched = launched[enclosing_ranges(trace, launched, span_intervals(copied)) >= 0]  # of many events few
    for step in steps:
        in_step = launched_in(copied, step)
        for way in dict.fromkeys(label.fields["way"] for label in in_step):
            these = [label for label in in_step if label.fields["way"] == way]
            busy = _copy_time(trace, these, launched)
            yield {
                "step": step.step,
                "way": way,
                "count": len(these),
                "bytes": sum(int(label.fields["bytes"]) for label in these),
                "copy_ns": total(busy),
                "hidden_ns": total(intersect(busy, computing)),
            }


def _copy_time(trace: Trace, these: Sequence[Label], launched: Integers) -> Intervals:
    """When at least one of these copies was under way; `launched`: the rows of what was launched in any copy."""
    spans = span_intervals(these)
    if rule_of(trace) is not Rule.GPU:
        return spans
    return union(*event_times(trace.events, launched[enclosing_ranges(trace, launched, spans) >= 0]))


def recomputation(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank, step and checkpointed module, in the order in which they ran again; empty without any.

    Columns: `rank`, `step` (Int64), `module`, `passes` (how many of its forward passes ran again), `recompute_ns` (how
    long they took on the host). By the engine's labels, so that it is empty for other loops. Raises `OverlaplabError`
    for an unknown rank or step.
    """
    return pd.DataFrame(rows_by_rank(run, selection, _pass_rows), columns=list(_PASSES)).astype(_PASSES)


def _pass_rows(trace: Trace, steps: Sequence[Window]) -> Iterator[dict[str, Any]]:
    again = [label for label in engine_labels(trace) if label.word == "recompute"]
    for step in steps:
        took: dict[str, list[int]] = {}
        for label in launched_in(again, step):
            took.setdefault(label.fields["module"], []).append(label.end_ns - label.start_ns)
        for module, durations in took.items():
            name = label_list(module)[0]
            yield {"step": step.step, "module": name, "passes": len(durations), "recompute_ns": sum(durations)}


def staleness(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per update that a server made while it recorded, in order; empty without an asynchronous server.

    Columns, in Int64: `rank` and `step` (the server's own), `worker` (the rank whose gradients were applied),
    `staleness` (how many updates were made since the worker got the parameters with which it computed them), and
    `start_ns`, `end_ns` (of the update, from the run's start). Raises `OverlaplabError` for an unknown rank or step.
    """
    rows = rows_by_rank(run, selection, partial(_update_rows, run))
    return pd.DataFrame(rows, columns=list(_UPDATES)).astype("Int64")


def _update_rows(run: Run, trace: Trace, steps: Sequence[Window]) -> Iterator[dict[str, Any]]:
    served = [label for label in engine_labels(trace) if label.word == "serve"]
    zero_ns = run_zero_ns(run, trace)
    for step in steps:
        for label in launched_in(served, step):
            fields = {name: int(label.fields[name]) for name in ("worker", "staleness")}
            yield {"step": step.step, **fields, "start_ns": label.start_ns - zero_ns, "end_ns": label.end_ns - zero_ns}
