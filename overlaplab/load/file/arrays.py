"""Lists of Python numbers as arrays, without rounding where possible."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The standard library's `array` is faster than numpy, and refuses values that it would have to convert or truncate.


def integers(values: Sequence[Any]) -> NDArray[np.int64] | None:
    """As int64; None if any is not a 64-bit integer."""
    try:
        return np.frombuffer(array("q", values), dtype=np.int64)
    except (TypeError, OverflowError):
        return None


def floats(values: Sequence[Any]) -> NDArray[np.float64] | None:
    """As floats, which round integers beyond 2**53; None if any is not a number."""
    try:
        return np.frombuffer(array("d", values), dtype=np.float64)
    except (TypeError, OverflowError):
        return None
