"""Lists of Python numbers as arrays, exactly, or not at all."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["floats", "integers"]

# The standard library's `array` is quicker than numpy, and refuses what it would have to convert or cut.


def integers(values: Sequence[Any]) -> NDArray[np.int64] | None:
    """As they are; None where one is no integer of 64 bits."""
    try:
        return np.frombuffer(array("q", values), dtype=np.int64)
    except (TypeError, OverflowError):
        return None


def floats(values: Sequence[Any]) -> NDArray[np.float64] | None:
    """As they are, integers rounded beyond 2**53; None where one is neither."""
    try:
        return np.frombuffer(array("d", values), dtype=np.float64)
    except (TypeError, OverflowError):
        return None
