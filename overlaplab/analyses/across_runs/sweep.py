"""A sweep over bucket_cap_mb: step time by cap, and when buckets were on the link."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from overlaplab.analyses.across_runs.settings import is_emulated, is_sweep, name_differences
from overlaplab.analyses.across_runs.tiers import is_fastest, spread, step_times, tiers
from overlaplab.analyses.buckets import buckets
from overlaplab.analyses.summary import STEP_PARTS, median_parts, ratio_of_sums, summary
from overlaplab.analyses.worst import drop_damaged, rows_of
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, Trace, Window, activity
from overlaplab.evidence.selection import selected_traces, selected_windows
from overlaplab.intervals import Intervals, clip, intersect, subtract, union
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.words import to_ms

LINK_PARTS = ("hidden", "exposed")

_FIGURES = ("step_ms", "spread_ms", "lowest_ms", "highest_ms", *STEP_PARTS)


def sweep(runs: Sequence[Run], selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per cap, the smallest first; its recordings are pooled.

    Columns: `bucket_cap_mb`, `runs` (recordings), `steps` (of all of them), `buckets` (the most in one step; Int64,
    null where unknown), `step_ms` (median over all steps of all ranks), `spread_ms` (see `spread`; null with too few
    steps), `lowest_ms` and `highest_ms` (of the recordings' medians), `compute_only_ms`, `hidden_ms`, `exposed_ms` and
    `rest_ms` (memory and idle): the median step, split in proportion to the parts' shares of all steps' time;
    `overlap_ratio` (of the sums), `tier` (1 for the fastest caps; what a tier is stands in `across_runs.tiers`),
    `fastest` (alone in the first of several tiers), `emulated`. Figures are Float64.

    Raises `OverlaplabError` if the runs are not a sweep, or one has no measured step, and as `summary`.
    """
    runs_of_cap = _group_by_cap(runs)
    measured = {cap: [_summarise_run(run, selection) for run in recordings] for cap, recordings in runs_of_cap.items()}
    tier_of = tiers([[step_times(table) for table in tables] for tables in measured.values()])
    rows = []
    for tier, (cap, tables) in zip(tier_of, measured.items(), strict=True):
        counts = [_bucket_count(run, selection) for run in runs_of_cap[cap]]
        rows.append(
            {"bucket_cap_mb": cap, "buckets": max((count for count in counts if count), default=None)}
            | _row(tables)
            | {"tier": tier, "fastest": is_fastest(tier, tier_of), "emulated": any(map(is_emulated, runs_of_cap[cap]))}
        )
    table = pd.DataFrame(rows).astype({"buckets": "Int64", "bucket_cap_mb": "Float64", "overlap_ratio": "Float64"})
    table = table.astype(dict.fromkeys(_FIGURES, "Float64"))
    shown = ["bucket_cap_mb", "runs", "steps", "buckets", *_FIGURES, "overlap_ratio", "tier", "fastest", "emulated"]
    return table[shown]


def sweep_links(runs: Sequence[Run], selection: Selection = EVERYTHING) -> pd.DataFrame:
    """When communication was on the link in one step of each cap: the first rank's step closest to the cap's median.

    One row per stretch of time, in ns from the step's start: `bucket_cap_mb`, `path`, `rank`, `step` (both Int64),
    `bucket` (Int64, null for communication outside buckets, such as a gather of parameters), `bytes` (Int64),
    `part` (one of `LINK_PARTS`: `hidden` while the rank computed, `exposed` while it did not), `start_ns`, `end_ns`.
    Raises as `sweep`.
    """
    rows: list[dict[str, Any]] = []
    for cap, recordings in _group_by_cap(runs).items():
        tables = [_summarise_run(run, selection) for run in recordings]
        median = pd.concat(tables)["span_ns"].median()
        firsts = [rows_of(table, {"rank": table["rank"].iloc[0]}) for table in tables]
        off = [(first["span_ns"] - median).abs() for first in firsts]
        place = int(np.argmin([distances.min() for distances in off]))
        row = firsts[place].iloc[int(off[place].to_numpy().argmin())]
        traces = selected_traces(recordings[place], selection)
        trace = next(each for each in traces if pd.isna(row["rank"]) or each.rank == row["rank"])
        windows = {window.step: window for window in selected_windows(trace, selection)}
        window = windows[None if pd.isna(row["step"]) else int(row["step"])]
        shared = {"bucket_cap_mb": cap, "path": recordings[place].path, "rank": trace.rank, "step": window.step}
        rows += [shared | stretch for stretch in _link_rows(recordings[place], trace, window)]
    columns = ["bucket_cap_mb", "path", "rank", "step", "bucket", "bytes", "part", "start_ns", "end_ns"]
    return pd.DataFrame(rows, columns=columns, dtype="object").astype(
        {"bucket_cap_mb": "Float64", "path": "str", "part": "str", "start_ns": "int64", "end_ns": "int64"}
        | dict.fromkeys(("rank", "step", "bucket", "bytes"), "Int64")
    )


def _link_rows(run: Run, trace: Trace, window: Window) -> Iterator[dict[str, Any]]:
    """The step's communication: each bucket's stretches first, then what belongs to no bucket."""
    busy = activity(trace)
    compute = clip(busy.compute, window.start_ns, window.end_ns)
    rows = buckets(run, EVERYTHING if trace.rank is None else Selection(ranks=[trace.rank]))
    rows = rows_of(rows, {"step": window.step}).dropna(subset=["start_ns"])
    spans = rows[["start_ns", "end_ns"]].to_numpy(dtype="int64") + window.start_ns
    for bucket, (start, end) in zip(rows.to_dict("records"), spans, strict=True):
        identity = {"bucket": bucket["index"], "bytes": bucket["bytes"]}
        yield from _stretches(union([start], [end]), compute, window, identity)
    other = subtract(clip(busy.communication, window.start_ns, window.end_ns), union(spans[:, 0], spans[:, 1]))
    yield from _stretches(other, compute, window, {"bucket": pd.NA, "bytes": pd.NA})


def _stretches(
    spans: Intervals, compute: Intervals, window: Window, identity: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    parts = [(LINK_PARTS[0], intersect(spans, compute)), (LINK_PARTS[1], subtract(spans, compute))]
    stretches = sorted((int(start), int(end), part) for part, stretch in parts for start, end in stretch)
    for start, end, part in stretches:
        yield identity | {"part": part, "start_ns": start - window.start_ns, "end_ns": end - window.start_ns}


def _group_by_cap(runs: Sequence[Run]) -> dict[float, list[Run]]:
    """The runs of each cap, the smallest first."""
    if not is_sweep(runs):
        remedy = f"Compare them instead: {name_differences(runs)}."
        raise OverlaplabError("these runs are no sweep over bucket_cap_mb", remedy=remedy)
    by_cap: dict[float, list[Run]] = {}
    for run in runs:
        if run.manifest is not None and run.manifest.bucket_cap_mb is not None:
            by_cap.setdefault(run.manifest.bucket_cap_mb, []).append(run)
    return dict(sorted(by_cap.items()))


def _summarise_run(run: Run, selection: Selection) -> pd.DataFrame:
    table = drop_damaged(summary(run, selection))
    if table.empty:
        raise OverlaplabError("no step was measured", path=run.path, remedy="Leave this run out.")
    return table


def _row(tables: Sequence[pd.DataFrame]) -> dict[str, Any]:
    """A cap's figures, from the summaries of its recordings."""
    pooled = pd.concat(tables)
    times = [step_times(table) for table in tables]
    wide, middles = spread(times), [float(np.nanmedian(recording)) for recording in times]
    return {
        "runs": len(tables),
        "steps": sum(recording.shape[1] for recording in times),
        "step_ms": to_ms(pooled["span_ns"].median()),
        "spread_ms": wide if np.isfinite(wide) else None,
        "lowest_ms": min(middles),
        "highest_ms": max(middles),
        **median_parts(pooled),
        "overlap_ratio": ratio_of_sums(pooled),
    }


def _bucket_count(run: Run, selection: Selection) -> int | None:
    table = buckets(run, selection)
    return int(table.groupby(["rank", "step"], dropna=False).size().max()) if len(table) else None
