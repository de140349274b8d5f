"""What the link model predicts: buckets sent over the modelled link at their recorded ready times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from overlaplab.analyses.buckets import buckets
from overlaplab.analyses.summary import summary
from overlaplab.costs import transfer_ns
from overlaplab.events import Run
from overlaplab.manifest import Link, traits_of
from overlaplab.simulate.player import Launch, Move, Work, play


def replay(run: Run, link: Link) -> pd.DataFrame:
    """One row per step and launch of a bucket, in launch order, with times in ns from the run's start.

    A collective starts once its last rank is ready and the link has finished the previous one, and ends T later:
    start = max(ready, previous end), end = start + T. T is that of the collective by which the strategy averages
    gradients, or of an all-reduce if that is unknown.

    Columns: `step`, `index`, `ready_ns` (of the last rank), `end_ns` (measured, of the last rank),
    `predicted_start_ns`, `predicted_end_ns`. Buckets without size or ready time are left out. The ranks' clocks must
    agree. Empty where a server averages gradients.
    """
    traits = traits_of(run.manifest)
    kind = traits.gradients if traits else "all_reduce"
    starts = summary(run)[["rank", "step", "start_ns"]].rename(columns={"start_ns": "begins_ns"})
    sent = buckets(run).dropna(subset=["ready_ns", "bytes"])
    table = sent.head(0 if kind == "server" else len(sent)).merge(starts, on=["rank", "step"])
    table["nth"] = table.groupby(["rank", "step", "index"], dropna=False).cumcount()
    table["order"] = table.groupby(["rank", "step"], dropna=False).cumcount()
    for column in ("ready_ns", "end_ns"):
        table[column] += table["begins_ns"]
    last = table.groupby(["step", "index", "nth"], dropna=False).agg(
        order=("order", "min"), bytes=("bytes", "first"), ready_ns=("ready_ns", "max"), end_ns=("end_ns", "max")
    )
    last = last.reset_index().sort_values(["step", "order"], kind="stable", ignore_index=True)
    predicted: list[tuple[int, int]] = []
    for _, step in last.groupby("step", dropna=False):
        ready = zip(step["ready_ns"], step["bytes"], strict=True)
        launched = [(int(ready_ns), transfer_ns(kind, int(size), link)) for ready_ns, size in ready]
        carried = play([list(_program(launched))]).carried
        predicted += [carried[number] for number in range(len(launched))]
    result = last[["step", "index", "ready_ns", "end_ns"]].copy()
    result["predicted_start_ns"] = [start for start, _ in predicted]
    result["predicted_end_ns"] = [end for _, end in predicted]
    return result


def _program(launched: Sequence[tuple[int, int]]) -> Iterator[Move]:
    """A rank that launches each at its time, or with the one before; takes times and T in order."""
    now = 0
    for number, (at_ns, took_ns) in enumerate(launched):
        yield Work(max(at_ns - now, 0))
        yield Launch(number, took_ns)
        now = max(now, at_ns)
