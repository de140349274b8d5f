"""Lists of Python numbers as arrays, without rounding where possible."""

from __future__ import annotations

from collections.abc import Sequence
from struct import error, pack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlaplab.intervals import Integers

# `struct` takes half the time of numpy and of `array`, and refuses values that it would have to convert or truncate.
# The arrays are read-only.


def small_integers(values: Sequence[Any]) -> NDArray[np.int32] | None:
    """Return an array of int32; None if any value is not a 32-bit integer."""
    try:
        return np.frombuffer(pack(f"{len(values)}i", *values), dtype=np.int32)
    except error:
        return None


def integers(values: Sequence[Any]) -> Integers | None:
    """Return an array of int64; None if any value is not a 64-bit integer."""
    try:
        return np.frombuffer(pack(f"{len(values)}q", *values), dtype=np.int64)
    except error:
        return None


def floats(values: Sequence[Any]) -> NDArray[np.float64] | None:
    """Return an array of floats, which round integers beyond 2**53; None if any value is not a number."""
    try:
        return np.frombuffer(pack(f"{len(values)}d", *values), dtype=np.float64)
    except (error, OverflowError):
        return None
