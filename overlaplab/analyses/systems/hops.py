"""Hops of collectives that are made by hand: who sent what to whom, and which chunk was where after each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from overlaplab.events import Run, Trace, Window
from overlaplab.evidence.executions import executions
from overlaplab.evidence.labels import engine_labels
from overlaplab.evidence.selection import launched_in, rows_by_rank
from overlaplab.selection import EVERYTHING, Selection

_NUMBERS = ("bucket", "hop", "sends", "to", "receives", "source", "bytes")
_COLUMNS = ("rank", "step", "bucket", "kind", "hop", "sends", "to", "receives", "source", "bytes", "start_ns", "end_ns")
_MOMENTS = ("hop", "rank", "chunk", "ranks", "arrived")
_ADDING = ("reduce", "reduce_scatter")


def hops(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per hop of a bucket's all-reduce that `ring` or `tree` made, by rank, bucket and hop.

    Columns, numbers in Int64: `rank`, `step`, `bucket`, `kind` (of the half that it belongs to), `hop` (from 0, through
    both halves), `sends`, `receives` (numbers of chunks) and `to`, `source` (ranks; null where the rank did not send,
    or not receive), `bytes` (that it sent), `start_ns`, `end_ns` (from the step window's start, on the host: with the
    wait for both neighbours and the addition). Empty where collectives are the library's. Raises `OverlaplabError` for
    an unknown rank or step.
    """
    table = pd.DataFrame(rows_by_rank(run, selection, _trace_rows), columns=list(_COLUMNS))
    return table.astype({name: "Int64" for name in _COLUMNS if name != "kind"})


def _trace_rows(trace: Trace, steps: Sequence[Window]) -> Iterator[dict[str, Any]]:
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
