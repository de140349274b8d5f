"""Logarithmic axes with readable numbers, such as `256 kB` or `0.5 ms`."""

from __future__ import annotations

import math
from collections.abc import Iterable

import altair as alt

_SIZE = (
    "datum.value >= 1e9 ? format(datum.value / 1e9, '~g') + ' GB' : datum.value >= 1e6 ?"
    " format(datum.value / 1e6, '~g') + ' MB' : datum.value >= 1e3 ? format(datum.value / 1e3, '~g') + ' kB' :"
    " format(datum.value, '~g') + ' B'"
)


def log_domain(values: Iterable[float]) -> tuple[float, float]:
    """The range of the positive values with some room on both sides; 1 to 10 if there are none."""
    positive = [value for value in values if value > 0 and math.isfinite(value)]
    if not positive:
        return 1.0, 10.0
    low, high = min(positive), max(positive)
    room = max((high / low) ** 0.05, 1.25 if high / low > 2 else 2.0)
    return low / room, high * room


def log_ticks(domain: tuple[float, float]) -> list[float]:
    """The places of ticks: 1, 2 and 5 of each decade; on long axes 1 alone, or 1 of every few decades."""
    low, high = (math.log10(bound) for bound in domain)
    decades = high - low
    steps = (1, 2, 5) if decades <= 3.5 else (1,)
    every = max(1, round(decades / 9))
    powers = range(math.floor(low), math.ceil(high) + 1)
    ticks = [digit * 10.0**power for power in powers if power % every == 0 for digit in steps]
    return [tick for tick in ticks if domain[0] <= tick <= domain[1]]


def log_scale(domain: tuple[float, float]) -> alt.Scale:
    """A logarithmic scale over exactly this domain."""
    return alt.Scale(type="log", domain=list(domain), nice=False, clamp=True)


def size_axis(domain: tuple[float, float], title: str) -> alt.Axis:
    """An axis of bytes in decimal units."""
    return alt.Axis(title=title, values=log_ticks(domain), labelExpr=_SIZE, labelOverlap=True)
