"""Times from files as exact int64 ns.

Files hold µs, with any number of decimals. A float resolves 1 ns only below 2**43 µs (102 days); for larger times, such
as Unix time, the decimal text is read. Some tools write integer ns. As 1e17 µs is the year 5138, times beyond it must
be ns. `displayTimeUnit` does not help: it is the unit in which viewers show times, and torch always writes `ms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from struct import error, pack
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from overlaplab.intervals import Integers

Number = TypeVar("Number", np.int32, np.int64, np.float64)
Time = int | float | str | Decimal | None

ABSENT = np.iinfo(np.int64).min
"""A missing time."""
LIMIT_NS = 2**61 - 1
"""Up to 2043 as Unix time; a difference between any two, with a duration added, still fits into 64 bits."""
EXACT_FLOAT_US = 2.0**43
LEAST_NS = 10**17


def needs_text(values: Sequence[Time]) -> bool:
    """Whether some of the µs are floats too large to be exact to 1 ns."""
    return any(type(value) is float and abs(value) >= EXACT_FLOAT_US for value in values)


def exact_us(values: Sequence[Time]) -> NDArray[np.float64] | None:
    """Times in µs as floats, which are exact to 1 ns; None if some are not, or are no numbers."""
    us = strict_array(values, np.float64)
    return us if us is not None and np.all(np.abs(us) < EXACT_FLOAT_US) else None  # false for NaN


def us_as_ns(us: NDArray[np.float64]) -> Integers:
    """Exact times in µs as ns."""
    below = np.floor(us)
    return (below * 1000 + np.rint((us - below) * 1000)).astype(np.int64)


def counts_ns(values: Sequence[Time]) -> bool | None:
    """Whether these are ns rather than µs; None if there is no time to decide by."""
    numbers = strict_array(values, np.float64)
    if numbers is None:
        numbers = np.array([float(number) for value in values if (number := _decimal(value)) is not None])
    ordered = np.sort(numbers[np.isfinite(numbers) & (numbers != 0)])
    return bool(ordered[len(ordered) // 2] >= LEAST_NS) if len(ordered) else None


def nanoseconds(values: Sequence[Time], *, ns: bool = False) -> Integers:
    """Each value (µs, or ns) in ns; `ABSENT` if it is not a number, or beyond `LIMIT_NS`."""
    scale = 1 if ns else 1000
    if not ns and (us := exact_us(values)) is not None:
        return us_as_ns(us)
    if (whole := strict_array(values, np.int64)) is not None:
        most = LIMIT_NS // scale
        return np.where((whole <= most) & (whole >= -most), whole * scale, ABSENT)
    return np.array([_round_to_ns(value, scale) for value in values], dtype=np.int64)


def _round_to_ns(value: Time, scale: int) -> int:
    number, most = _decimal(value), LIMIT_NS // scale
    return round(number * scale) if number is not None and -most <= number <= most else ABSENT


def _decimal(value: Time) -> Decimal | None:
    if value is None:
        return None
    try:
        number = Decimal(value.strip() if isinstance(value, str) else value)
    except (InvalidOperation, ValueError):
        return None
    return number if number.is_finite() else None


def strict_array(values: Sequence[Any], kind: type[Number]) -> NDArray[Number] | None:
    """Return a read-only array; None if it cannot have any of the values. Floats round integers beyond 2**53.

    `struct` takes half the time of numpy and of `array`, and refuses values that it would have to convert or truncate.
    """
    dtype = np.dtype(kind)
    try:
        return np.frombuffer(pack(f"{len(values)}{dtype.char}", *values), dtype)
    except (error, OverflowError):
        return None
