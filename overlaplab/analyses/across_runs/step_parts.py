"""What the median step of several is made of."""

from __future__ import annotations

import pandas as pd

from overlaplab.words import to_ms

STEP_PARTS = {
    "compute_only_ms": ("compute_only_ns",),
    "hidden_ms": ("overlapped_ns",),
    "exposed_ms": ("exposed_comm_ns",),
    "rest_ms": ("memory_only_ns", "idle_ns"),
}
"""The parts of a step, and the columns of `summary` that each consists of."""


def median_parts(table: pd.DataFrame) -> dict[str, float | None]:
    """The median step of rows of `summary`, split in proportion to the parts' shares of all steps' time, in ms; None
    where nothing was measured.

    Medians of the parts would not add up to it.
    """
    median, span = to_ms(table["span_ns"].median()), int(table["span_ns"].sum())
    return {
        part: median * sum(int(table[column].sum()) for column in columns) / span if span else None
        for part, columns in STEP_PARTS.items()
    }
