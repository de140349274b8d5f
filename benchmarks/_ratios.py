"""The line that benchmarks print: two sides measured in turns, and the ratios of the pairs."""

import statistics
from collections.abc import Sequence

__all__ = ["line"]


def line(what: str, ours: Sequence[float], theirs: Sequence[float], *, unit: str = "ms", scale: float = 1e3) -> str:
    """Median and quartiles of `ours ÷ theirs`, pair by pair; values times `scale` are in the unit."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return (
        f"{what}: {middle:.3f} ({low:.3f} to {high:.3f}, {len(ratios)} pairs; "
        f"medians {statistics.median(ours) * scale:.1f} and {statistics.median(theirs) * scale:.1f} {unit})"
    )
