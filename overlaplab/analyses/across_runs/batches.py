"""The largest batch that fits under each way of sharding, and what a sample costs then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from overlaplab.analyses.across_runs.settings import same_but_batch
from overlaplab.analyses.memory import peaks
from overlaplab.analyses.summary import summary
from overlaplab.analyses.worst import drop_damaged
from overlaplab.events import Run
from overlaplab.manifest import Manifest, strategy_traits
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.words import to_ms

PUBLISHED = {
    "DDP": (7, 15),
    "SHARD_GRAD_OP": (11, 11),
    "FULL_SHARD": (15, 12),
    "FULL_SHARD, offloaded": (20, 23),
}
"""The largest batch per GPU, and the minutes of an epoch, so that ratios are those of the time per sample.

GPT-2 Large (762M) on two GPUs of 24 GB, units of 1M parameters or more: S. Mangrulkar and S. Gugger, "Accelerate
Large Model Training using PyTorch Fully Sharded Data Parallel", Hugging Face, 2022, table 1."""

_SIZES = ("memory_limit_bytes", "peak_memory_bytes", "batch")
_RATIOS = (
    *("batch_ratio", "published_batch_ratio", "sample_ms", "sample_iqr_ms", "sample_ratio"),
    "published_sample_ratio",
)


def largest_batches(runs: Sequence[Run], selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per run whose batch is the largest within its memory limit, in the given order; others have none.

    Columns: `path`, `sharding` (`DDP`, FSDP's `SHARD_GRAD_OP` or `FULL_SHARD`, offloaded or not, or the strategy's
    name), `memory_limit_bytes`, `peak_memory_bytes` (the rank with most), `batch` (samples per rank and microbatch):
    Int64; `sample_ms` (the median step over all ranks' steps ÷ the samples of all ranks), `sample_iqr_ms` (the range of
    the middle half of the steps ÷ these samples), `batch_ratio` and
    `sample_ratio` (÷ that of the first row with DDP, else of the first; null where both did other work, apart from the
    batch, or had another limit), `published_batch_ratio` and `published_sample_ratio` (the same of Hugging Face's
    measurements, see `PUBLISHED`): Float64, null where unknown.
    """
    with_batch = [(run, run.manifest) for run in runs if run.manifest is not None and run.manifest.largest_batch]
    rows = [_row(run, manifest, selection) for run, manifest in with_batch]
    base = next((place for place, row in enumerate(rows) if row["sharding"] == "DDP"), 0)
    for row, (_, manifest) in zip(rows, with_batch, strict=True):
        row |= _ratios(row, rows[base], comparable=same_but_batch(manifest, with_batch[base][1]))
    table = pd.DataFrame(rows, columns=["path", "sharding", *_SIZES, *_RATIOS])
    return table.astype(dict.fromkeys(_SIZES, "Int64") | dict.fromkeys(_RATIOS, "Float64"))


def _row(run: Run, manifest: Manifest, selection: Selection) -> dict[str, Any]:
    batch = manifest.model.batch if manifest.model else None
    low, middle, high = to_ms(drop_damaged(summary(run, selection))["span_ns"]).quantile([0.25, 0.5, 0.75])
    samples = (batch or 0) * (manifest.accumulate or 1) * manifest.axes.dp
    return {
        "path": run.path,
        "sharding": _sharding(manifest),
        "memory_limit_bytes": manifest.memory_limit,
        "peak_memory_bytes": peaks(run)["peak_bytes"].max(),
        "batch": batch,
        "sample_ms": middle / samples if samples else None,
        "sample_iqr_ms": (high - low) / samples if samples else None,
    }


def _ratios(row: dict[str, Any], base: dict[str, Any], *, comparable: bool) -> dict[str, float | None]:
    ratios: dict[str, float | None] = {
        ratio: row[figure] / base[figure] if comparable and row[figure] and base[figure] else None
        for ratio, figure in (("batch_ratio", "batch"), ("sample_ratio", "sample_ms"))
    }
    published, of_base = PUBLISHED.get(row["sharding"]), PUBLISHED.get(base["sharding"])
    if published is not None and of_base is not None:
        for name, here, there in zip(("batch", "sample"), published, of_base, strict=True):
            ratios[f"published_{name}_ratio"] = here / there
    return ratios


def _sharding(manifest: Manifest) -> str | None:
    traits = strategy_traits(manifest)
    if traits is None or traits.cuts_layers or traits.stages:
        return manifest.strategy
    if traits.gathers == "units":
        stays_gathered = manifest.reshard_after_forward is False
        return f"{'SHARD_GRAD_OP' if stays_gathered else 'FULL_SHARD'}{', offloaded' if manifest.offload else ''}"
    return "DDP" if traits.buckets and not traits.sharded and not traits.hops else manifest.strategy
