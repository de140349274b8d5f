"""What each rank holds: parameters, gradients, optimizer states, beside ZeRO's formulas (arXiv 1910.02054, §3.1)."""

from __future__ import annotations

import pandas as pd

from overlaplab.costs.memory import formula
from overlaplab.events import Run
from overlaplab.manifest import traits_of

__all__ = ["memory", "peaks"]

_COLUMNS = ("rank", "part", "bytes", "formula_bytes", "formula")
_PEAKS = ("rank", "peak_bytes", "scratch_bytes")


def memory(run: Run) -> pd.DataFrame:
    """Three rows per rank: what it held after the last step's update, as measured from its tensors' storages.

    Columns: `rank` (Int64), `part` (`parameters`, `gradients`, `optimizer`), `bytes`, `formula_bytes` (Int64; what the
    strategy should hold), `formula` (its text, with Ψ the number of parameters and N that of ranks, such as `12Ψ/N`).
    The formulas know no padding. Mixed precision sums up to 16Ψ with bfloat16 gradients and to 18Ψ with fp32
    `main_grad` alone. Empty without a manifest that tells it; the formulas are null where it does not name parameters.
    """
    manifest = run.manifest
    rows = []
    for held in manifest.memory if manifest else ():
        assert manifest is not None
        measured = {"parameters": held.parameters, "gradients": held.gradients, "optimizer": held.optimizer}
        for part, size in measured.items():
            rows.append((held.rank, part, size, *formula(manifest, traits_of(manifest), part)))
    table = pd.DataFrame(rows, columns=list(_COLUMNS))
    return table.astype(dict.fromkeys(("rank", "bytes", "formula_bytes"), "Int64"))


def peaks(run: Run) -> pd.DataFrame:
    """One row per rank: what it had beside the parts of `memory`.

    Columns, in Int64: `rank`, `peak_bytes` (the CUDA allocator's highest mark: activations and buffers included, which
    the formulas do not know; null on CPU), `scratch_bytes` (lent to phantoms, in none of the other figures; null
    without them). A rank of which run.json tells neither has no row.
    """
    told = run.manifest.memory if run.manifest else ()
    rows = [(held.rank, held.peak_allocated, held.scratch) for held in told]
    return pd.DataFrame(rows, columns=list(_PEAKS)).astype("Int64").dropna(subset=list(_PEAKS[1:]), how="all")
