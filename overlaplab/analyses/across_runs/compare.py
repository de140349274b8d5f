"""Runs side by side: step time and its parts, and which run is fastest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from overlaplab.analyses.across_runs.settings import is_emulated, is_predicted, model_settings, setting_numbers
from overlaplab.analyses.across_runs.tiers import Steps, is_fastest, spread, step_times, tiers
from overlaplab.analyses.memory import held_by_rank, memory, peaks
from overlaplab.analyses.summary import median_parts, ratio_of_sums, summary
from overlaplab.analyses.systems.label_tables import recomputation
from overlaplab.analyses.volume import volume, volume_theory
from overlaplab.analyses.worst import drop_damaged
from overlaplab.events import Run, once_per_run
from overlaplab.manifest import strategy_traits
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.words import to_ms

MEASURES = {
    "step_ms": "span_ns",
    "exposed_ms": "exposed_comm_ns",
    "exposed_wait_ms": "exposed_wait_ns",
    "exposed_transfer_ms": "exposed_transfer_ns",
    "comm_ms": "comm_ns",
    "compute_ms": "compute_ns",
}
"""The compared figures and the column of `summary` that each shows, in ms."""

_COSTS = (
    *("sent_bytes", "theory_sent_bytes", "memory_bytes", "theory_memory_bytes", "peak_memory_bytes"),
    *("activation_bytes", "recompute_ms"),
)


def compare(runs: Sequence[Run], selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per run, in the given order.

    Columns: `path`, `strategy`, `bucket_cap_mb` (both null without a manifest), `ranks`, `steps` (how many were
    measured), per figure of `MEASURES` `<figure>_median` and `<figure>_iqr` in ms over all steps of all ranks (null if
    any is unknown), `overlap_ratio` (of the sums, null without communication), `fastest` (bool), `emulated` (bool: an
    emulated link), `predicted` (bool: nobody recorded it), `sent_bytes` (the median step of the mean rank, see
    `volume`; where parameters are averaged, which not every step does, the mean step), `theory_sent_bytes` (see
    `volume_theory`), `memory_bytes` (parameters, gradients and optimizer states of the rank that holds most),
    `theory_memory_bytes` (see `memory`), `peak_memory_bytes` (see `peaks`, the rank with most), `activation_bytes`
    (what autograd keeps of a microbatch, the rank with most): all six Float64, null where unknown, `recompute_ms`
    (Float64; median over all steps of all ranks, see `recomputation`; null without any), `phantoms` (emulated ranks
    without a process), `spread_ms` (which decides whether a run is fastest, see `spread`; Float64, null with too few
    steps), `model` (the model and its input in run.json, as JSON, without the precision; null where unknown),
    `recording_of` (the place of the first run of the same setting, from 0), `tier` (1 for the fastest settings; Int64,
    null among runs of different models).

    Runs of the same settings are recordings of one setting and judged together, unless all runs are: then each stands
    for itself. What a tier is, and by which test, stands in `across_runs.tiers`; all recordings of a setting that is
    alone in the first of several tiers are fastest. Among runs of different models none is.

    Its `attrs["parts_ms"]` has, by path, what the median step is made of (see `median_parts`).
    """
    rows = [_summarise_whole_run(run) if selection.is_everything else _summarise_run(run, selection) for run in runs]
    measured = [table for table, _ in rows]
    table = pd.DataFrame([row for _, row in rows])
    settings = setting_numbers(runs)
    of_setting: dict[int, list[Steps]] = {}
    for setting, times in zip(settings, map(step_times, measured), strict=True):
        of_setting.setdefault(setting, []).append(times)
    tier_numbers = tiers(list(of_setting.values())) if table["model"].nunique() < 2 else None
    tier_of = dict(zip(of_setting, tier_numbers, strict=True)) if tier_numbers else {}
    spreads = {setting: spread(recordings) for setting, recordings in of_setting.items()}
    table["fastest"] = [tier_numbers is not None and is_fastest(tier_of[setting], tier_numbers) for setting in settings]
    table["spread_ms"] = [spreads[setting] if np.isfinite(spreads[setting]) else None for setting in settings]
    table["recording_of"] = settings
    table["tier"] = pd.array([tier_of.get(setting) for setting in settings], dtype="Int64")
    figures = [f"{figure}_{of}" for figure in MEASURES for of in ("median", "iqr")]
    numbers = ("bucket_cap_mb", "overlap_ratio", "spread_ms", *figures, *_COSTS)
    table = table.astype(dict.fromkeys(numbers, "Float64"))
    shown = ["path", "strategy", "bucket_cap_mb", "ranks", "steps", *figures, "overlap_ratio", "fastest", "emulated"]
    table = table[[*shown, "predicted", *_COSTS, "phantoms", "spread_ms", "model", "recording_of", "tier"]]
    table.attrs["parts_ms"] = {run.path: median_parts(steps) for run, steps in zip(runs, measured, strict=True)}
    return table


def _summarise_run(run: Run, selection: Selection) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A run's `summary`, and its row without the columns that depend on other runs."""
    table = drop_damaged(summary(run, selection))
    recomputed_ms = to_ms(recomputation(run, selection).groupby(["rank", "step"], dropna=False)["recompute_ns"].sum())
    row = _row(run, table)
    return table, row | _sizes(run, volume(run, selection), row["steps"]) | {"recompute_ms": recomputed_ms.median()}


@once_per_run
def _summarise_whole_run(run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """`_summarise_run` of all ranks and steps, cached per run."""
    return _summarise_run(run, EVERYTHING)


def _row(run: Run, table: pd.DataFrame) -> dict[str, Any]:
    manifest = run.manifest
    row: dict[str, Any] = {
        "path": run.path,
        "strategy": manifest.strategy if manifest else None,
        "bucket_cap_mb": manifest.bucket_cap_mb if manifest else None,
        "ranks": table["rank"].nunique(dropna=False),
        "steps": table["start_ns"].groupby(table["rank"], dropna=False).count().max() if len(table) else 0,
        "overlap_ratio": ratio_of_sums(table),
        "emulated": is_emulated(run),
        "predicted": is_predicted(run),
        "phantoms": len(manifest.phantom_ranks) if manifest else 0,
        "model": model_settings(manifest),
    }
    for figure, column in MEASURES.items():
        values = to_ms(table[column]).astype("Float64")
        quartiles = (values[:0] if values.isna().any() else values).quantile([0.25, 0.5, 0.75])
        row[f"{figure}_median"] = quartiles[0.5]
        row[f"{figure}_iqr"] = quartiles[0.75] - quartiles[0.25]
    return row


def _sizes(run: Run, table: pd.DataFrame, steps: int) -> dict[str, Any]:
    """What was sent in so many steps and held, and both in theory."""
    theory, memories = volume_theory(run), run.manifest.memory if run.manifest else ()
    largest = held_by_rank(memory(run)).max()
    return {
        "sent_bytes": _sent_bytes(run, table, steps),
        "theory_sent_bytes": theory.sent_bytes if theory and table["step"].notna().any() else None,  # of one step
        "memory_bytes": largest["bytes"],
        "theory_memory_bytes": largest["formula_bytes"],
        "peak_memory_bytes": peaks(run)["peak_bytes"].max(),
        "activation_bytes": max((held.activations or 0 for held in memories), default=0) or None,
    }


def _sent_bytes(run: Run, table: pd.DataFrame, steps: int) -> float | None:
    """What the mean rank sent in the median step, or in the mean one where not every step sends; None if unknown."""
    if not len(table) or table["sent_bytes"].isna().any():
        return None
    by_step = table.groupby(["rank", "step"], dropna=False)["sent_bytes"].sum().groupby("step", dropna=False).mean()
    traits = strategy_traits(run.manifest)
    return float(by_step.sum() / max(steps, 1) if traits and traits.averages_parameters else by_step.median())
