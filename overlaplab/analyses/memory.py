"""What each rank holds: parameters, gradients, optimizer states, beside ZeRO's formulas (arXiv 1910.02054, §3.1)."""

from __future__ import annotations

import pandas as pd

from overlaplab.costs.memory import formula
from overlaplab.events import Run
from overlaplab.manifest import strategy_traits

_COLUMNS = ("rank", "part", "bytes", "formula_bytes", "formula")
_PEAKS = ("rank", "peak_bytes", "scratch_bytes")


def memory(run: Run) -> pd.DataFrame:
    """Three rows per rank: what it held after the last step's update, as measured from its tensors' storages.

    Columns: `rank` (Int64), `part` (`parameters`, `gradients`, `optimizer`; in a fourth row `host`, what an offloaded
    optimizer keeps there), `bytes`, `formula_bytes` (Int64; what the strategy should hold), `formula` (its text, such
    as `12Ψ/N`, where Ψ is the number of parameters and N the number of ranks). The formulas ignore padding. Mixed
    precision adds up to 16Ψ with bfloat16 gradients, and to 18Ψ with fp32 `main_grad` alone. Empty if the manifest has
    no memory; the formulas are null if it does not name parameters.
    """
    manifest = run.manifest
    rows = []
    for held in manifest.memory if manifest else ():
        assert manifest is not None
        measured = {"parameters": held.parameters, "gradients": held.gradients, "optimizer": held.optimizer}
        if held.host is not None:
            measured["host"] = held.host
        for part, size in measured.items():
            rows.append((held.rank, part, size, *formula(manifest, strategy_traits(manifest), part, held.rank)))
    table = pd.DataFrame(rows, columns=list(_COLUMNS))
    return table.astype(dict.fromkeys(("rank", "bytes", "formula_bytes"), "Int64"))


def held_by_rank(table: pd.DataFrame) -> pd.DataFrame:
    """`bytes` and `formula_bytes` of all that each rank holds on its device, from rows of `memory`; null if any is."""
    return table[table["part"] != "host"].groupby("rank")[["bytes", "formula_bytes"]].sum(min_count=3)


def peaks(run: Run) -> pd.DataFrame:
    """One row per rank: memory beside the parts of `memory`.

    Columns, in Int64: `rank`, `peak_bytes` (the CUDA allocator's peak, which includes activations and buffers, unlike
    the formulas; null on CPU), `scratch_bytes` (lent to phantoms, not part of any other figure; null without phantoms).
    A rank for which run.json has neither has no row.
    """
    memories = run.manifest.memory if run.manifest else ()
    rows = [(held.rank, held.peak_allocated, held.scratch or None) for held in memories]  # recorders write 0, too
    return pd.DataFrame(rows, columns=list(_PEAKS)).astype("Int64").dropna(subset=list(_PEAKS[1:]), how="all")
