"""Texts out of traces, and figures, as people read them, in terminals, charts and pages alike."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

__all__ = [
    "count",
    "duration",
    "gradient_word",
    "last_gradient",
    "ms",
    "percent",
    "rank_word",
    "sentence",
    "shorten",
    "size",
    "size_exact",
    "to_ms",
    "unit_name",
    "unit_of",
    "visible",
]


@overload
def to_ms(ns: float) -> float: ...
@overload
def to_ms(ns: pd.Series[Any]) -> pd.Series[Any]: ...
@overload
def to_ms(ns: npt.NDArray[Any]) -> npt.NDArray[np.float64]: ...
def to_ms(ns: Any) -> Any:
    """Nanoseconds as milliseconds, which is what people are shown."""
    return ns / 1e6


def visible(text: str) -> str:
    """A string out of a trace as one line of what can be seen: each order to a terminal, each mark that turns the
    direction of what follows, and whatever else is invisible becomes U+FFFD; line ends, tabs and strange spaces become
    a space.
    """
    return "".join(
        char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}" for char in text
    )


def shorten(text: str, limit: int = 60) -> str:
    """At most `limit` characters of a string out of a trace, as `visible` has it, cut in the middle: names differ at
    the ends.
    """
    flat = visible(text[:20_000])
    if len(flat) <= limit:
        return flat
    head = (limit - 1) // 2
    return f"{flat[:head]}…{flat[len(flat) - (limit - 1 - head) :]}"


def gradient_word(name: Any, arrival: Any, shape: Any) -> str:
    """A gradient's parameter by its name; else by its place in the order of arrival and its shape, if it has them:
    `gradient 17 (1024×4096)`.
    """
    import pandas as pd  # slow, and the command line's help needs other words of this module

    if not pd.isna(name):
        return shorten(str(name), 80)
    word = "an unknown gradient" if pd.isna(arrival) else f"gradient {arrival}"
    return word if shape is None else f"{word} ({'×'.join(map(str, shape)) or 'a scalar'})"


def last_gradient(bucket: dict[Any, Any]) -> str | None:
    """Which gradient of a row of `overlaplab.buckets` came last, as `gradient_word` has it; None where unknown."""
    import pandas as pd

    if not pd.isna(bucket["last_parameter"]):
        return gradient_word(bucket["last_parameter"], None, None)
    told = zip(bucket["arrivals"], bucket["shapes"], strict=True)
    arrived = [(arrival, shape) for arrival, shape in told if not pd.isna(arrival)]
    return gradient_word(None, *max(arrived, key=lambda found: found[0])) if arrived else None


def unit_name(unit: object, limit: int = 80) -> str:
    """The name of a unit of parameters; FSDP2 gives the root module none."""
    return shorten(str(unit), limit) or "(root)"


def percent(part: float, whole: float) -> str:
    """`part` as a rounded percentage of `whole`; only nothing is 0 %, only everything 100 %."""
    if whole <= 0:
        return "-"
    share = 100 * part / whole
    if 0 < share < 1:
        return "<1\u00a0%"
    if 99 < share < 100:
        return ">99\u00a0%"
    return f"{share:.0f}\u00a0%"


def ms(ns: float) -> str:
    """A duration in ns as ms, with as many digits as it takes to see it: `1,264 ms`, `57.6 ms`, `0.004 ms`."""
    return duration(to_ms(ns))


def duration(milliseconds: float) -> str:
    """As `ms`, of a duration in ms."""
    digits = 0 if abs(milliseconds) >= 1000 else 1 if abs(milliseconds) >= 1 else 2 if abs(milliseconds) >= 0.1 else 3
    return f"{milliseconds:,.{digits}f} ms" if milliseconds else "0 ms"


def count(number: int, noun: str) -> str:
    """A number of things: `1 rank`, `2 ranks`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def rank_word(rank: object) -> str:
    """A rank as text; a trace may not tell which one it is."""
    return str(rank) if isinstance(rank, Integral) else "unknown"


def sentence(text: str) -> str:
    """A warning as a sentence of its own."""
    return f"{text[:1].upper()}{text[1:]}."


_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))


def size(count: int) -> str:
    """Bytes in decimal units, as links are sold."""
    unit, scale = unit_of(count)
    return f"{count / scale:.1f} {unit}" if scale > 1 else f"{count} B"


def size_exact(count: int) -> str:
    """Bytes with three figures, where they are compared: `1.21 MB`, `12.1 MB`, `121 MB`."""
    unit, scale = unit_of(count)
    value = count / scale
    digits = 0 if scale == 1 or value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}"


def unit_of(count: float) -> tuple[str, float]:
    """The unit that suits so many bytes, and how many bytes it has."""
    return next((pair for pair in _UNITS if count >= pair[1]), _UNITS[-1])
