"""What each rank sent, from its trace, and in theory (docs/design.md, "The engine's strategies")."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd

from overlaplab.costs import Theory, ring_factor
from overlaplab.costs.link import ROUNDS
from overlaplab.costs.volume import theory
from overlaplab.events import Run, Trace, Window
from overlaplab.evidence.fsdp2 import fill_sizes, fsdp2_ranges
from overlaplab.evidence.launches import LaunchSpan, launches, total_bytes
from overlaplab.evidence.matching import match_collectives
from overlaplab.evidence.selection import launched_in, rows_by_rank
from overlaplab.manifest import strategy_traits
from overlaplab.selection import EVERYTHING, Selection

_COLUMNS = ("rank", "step", "kind", "count", "bytes", "sent_bytes")

_RECEIVER = re.compile(r":\d{1,9}-(\d{1,9})(?::|$)")


def volume(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank, step and kind of collective that the step launched, in order of first launch.

    Columns, numbers in Int64: `rank`, `step`, `kind` (`unknown` if it is), `count`, `bytes` (of the full tensors),
    `sent_bytes` (as a ring sends them: all-reduce 2(n-1)/n, all-gather, reduce-scatter and all-to-all (n-1)/n, others
    1; of messages only those that the rank sends); both null if any is unknown: bytes come from the engine's labels and
    torch's arguments, and for FSDP2 from the manifest; n is the size of the group, see `collectives`. Empty if nothing
    is launched, or device activity was not recorded. Raises `OverlaplabError` for an unknown rank or step.
    """
    rows = rows_by_rank(run, selection, partial(_trace_rows, run))
    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype({c: "Int64" for c in _COLUMNS if c != "kind"})


def volume_theory(run: Run) -> Theory | None:
    """`overlaplab.costs.volume.theory` of the run; None also without a manifest or known traits."""
    traits = strategy_traits(run.manifest)
    return None if run.manifest is None or traits is None else theory(run.manifest, traits)


def _trace_rows(run: Run, trace: Trace, steps: Sequence[Window]) -> Iterator[dict[str, Any]]:
    every = match_collectives(run)
    sizes = every.loc[every["trace"] == run.traces.index(trace), "size"].to_numpy()
    ranges = fsdp2_ranges(trace)
    sized = fill_sizes(launches(trace), ranges, run.manifest)
    for step in steps:
        by_kind: dict[str, list[LaunchSpan]] = {}
        for launch in launched_in(sized, step):
            by_kind.setdefault(launch.kind or "unknown", []).append(launch)
        for kind, of_kind in by_kind.items():
            full = total_bytes(of_kind)
            parts = [_sent_bytes(launch, trace.rank, int(sizes[launch.row])) for launch in of_kind]
            known_parts = [part for part in parts if part is not None]
            sent = None if full is None or len(known_parts) < len(parts) else round(sum(known_parts))
            yield {"step": step.step, "kind": kind, "count": len(of_kind), "bytes": full, "sent_bytes": sent}


def _sent_bytes(launch: LaunchSpan, rank: int | None, size: int) -> float | None:
    """What a ring of `size` ranks sends of a collective with known bytes; None if it needs the size, and that is -1."""
    if _is_received(launch, rank):
        return 0
    if size < 1 and launch.kind in ROUNDS:
        return None
    return (launch.bytes or 0) * ring_factor(launch.kind or "unknown", size)


def _is_received(launch: LaunchSpan, rank: int | None) -> bool:
    """Whether it is a message from another rank: the engine's groups of messages are called `GROUP:SENDER-RECEIVER`."""
    if launch.source is not None:
        return True
    receiver = _RECEIVER.search(launch.group or "") if launch.kind == "send_recv" else None
    return receiver is not None and rank is not None and int(receiver[1]) == rank
