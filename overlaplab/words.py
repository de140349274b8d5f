"""Texts from traces and figures in readable form, for terminals, charts and pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd


@overload
def to_ms(ns: float) -> float: ...
@overload
def to_ms(ns: pd.Series[Any]) -> pd.Series[Any]: ...
@overload
def to_ms(ns: npt.NDArray[Any]) -> npt.NDArray[np.float64]: ...
def to_ms(ns: Any) -> Any:
    """Nanoseconds as milliseconds, the unit shown to people."""
    return ns / 1e6


def ms_to_ns(milliseconds: float) -> int:
    """Milliseconds, as others' files have them, in ns."""
    return round(milliseconds * 1e6)


def visible_line(text: str) -> str:
    """A string from a trace as one line of visible characters.

    Line ends, tabs and unusual spaces become a space. Control characters, direction marks and other invisible
    characters become U+FFFD.
    """
    return "".join(
        char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}" for char in text
    )


def shorten(text: str, limit: int = 60) -> str:
    """At most `limit` characters of a string, made a `visible_line`; cut in the middle, as names differ at the ends."""
    flat = visible_line(text[:20_000])
    if len(flat) <= limit:
        return flat
    head = (limit - 1) // 2
    return f"{flat[:head]}…{flat[len(flat) - (limit - 1 - head) :]}"


def gradient_word(name: Any, arrival: Any, shape: Any) -> str:
    """A gradient by its parameter's name, else by its arrival number and shape, if known: `gradient 17 (1024×4096)`."""
    import pandas as pd  # slow to import, and the command line's help needs this module

    if not pd.isna(name):
        return shorten(str(name), 80)
    word = "an unknown gradient" if pd.isna(arrival) else f"gradient {arrival}"
    return word if shape is None else f"{word} ({'×'.join(map(str, shape)) or 'a scalar'})"


def last_gradient(bucket: dict[Any, Any]) -> str | None:
    """The gradient that arrived last in a row of `overlaplab.buckets`, as from `gradient_word`; None where unknown."""
    if isinstance(bucket["last_parameter"], str):
        return gradient_word(bucket["last_parameter"], None, None)
    arrival, shape = last_arrival(bucket)
    return None if arrival is None else gradient_word(None, arrival, shape)


def last_arrival(bucket: dict[Any, Any]) -> tuple[Any, Any]:
    """Arrival number and shape of the gradient that came last in a row of `overlaplab.buckets`; None where unknown."""
    import pandas as pd

    gradients = zip(bucket["arrivals"], bucket["shapes"], strict=True)
    arrived = [(arrival, shape) for arrival, shape in gradients if not pd.isna(arrival)]
    return max(arrived, key=lambda gradient: gradient[0], default=(None, None))


def kind_word(kind: object) -> str:
    """A kind of collective as people write it: `all-reduce`; `unknown` where nothing tells."""
    return shorten(kind.replace("_", "-"), 30) if isinstance(kind, str) and kind else "unknown"


def unit_name(unit: object, limit: int = 80) -> str:
    """The name of a unit of parameters; FSDP2 does not name the root module."""
    return shorten(str(unit), limit) or "(root)"


def percent(part: float, whole: float) -> str:
    """`part` as a rounded percentage of `whole`; 0 % only for nothing, 100 % only for everything."""
    if whole <= 0:
        return "-"
    share = 100 * part / whole
    if 0 < share < 1:
        return "<1\u00a0%"
    if 99 < share < 100:
        return ">99\u00a0%"
    return f"{share:z.0f}\u00a0%"


def ms(ns: float) -> str:
    """A duration in ns as ms, with enough digits for its size: `1,264 ms`, `57.6 ms`, `0.004 ms`."""
    return duration(to_ms(ns))


def duration(milliseconds: float) -> str:
    """Format a duration in ms with as many digits as it needs."""
    digits = 0 if abs(milliseconds) >= 1000 else 1 if abs(milliseconds) >= 1 else 2 if abs(milliseconds) >= 0.1 else 3
    return f"{milliseconds:z,.{digits}f} ms" if milliseconds else "0 ms"


def ordinal(number: int) -> str:
    """A place in a sequence: `1st`, `22nd`, `100th`."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 // 10 != 1 else "th"
    return f"{number:,}{ending}"


def ago(seconds: float) -> str:
    """How long ago something was: `12 s ago`, `5 min ago`, `3 h ago`, `2 days ago`."""
    for unit, length, limit in (("s", 1, 120), ("min", 60, 120 * 60), ("h", 3600, 48 * 3600)):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds / 86400:.0f} days ago"


def amount(number: float) -> str:
    """Three digits of a number, or as many as it has before the point: `0.125`, `30.1`, `27,672`."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def count(number: int, noun: str) -> str:
    """A number of things: `1 rank`, `2,000 steps`, `3 microbatches`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "es" if noun.endswith("ch") else "s")


def join_names(names: Sequence[str]) -> str:
    """One name or more as a list: `a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def known_names(name: str, names: Iterable[str], most: int | None = None) -> str:
    """Say which names an unknown one may mean, as they begin with it or are written alike, and all that are known.

    `most`: of how many the names are listed; then `…`.
    """
    names = list(names)
    alike = [each for each in names if name and each.startswith(name)] or get_close_matches(name, names, cutoff=0.7)
    meant = f"Did you mean {' or '.join(alike[:3])}? " if alike else ""
    return f"{meant}Known: {', '.join(names[:most])}{' …' if len(names) > len(names[:most]) else ''}"


_MOST_NUMBERS = 8


def numbers_named(numbers: Sequence[int], *, last: str = ", ") -> str:
    """Whole numbers as a list; of many the first ones and how many there are: `3, 5, 8, … (812 in all)`.

    `last` stands before the last one of a whole list.
    """
    if len(numbers) > _MOST_NUMBERS:
        return f"{', '.join(map(str, numbers[:_MOST_NUMBERS]))}, … ({len(numbers):,} in all)"
    return last.join(filter(None, (", ".join(map(str, numbers[:-1])), *map(str, numbers[-1:]))))


def rank_word(rank: object) -> str:
    """A rank as text; `unknown` for a trace without one."""
    return str(rank) if isinstance(rank, Integral) else "unknown"


def capitalise(text: str) -> str:
    """With a capital letter at the beginning alone."""
    return text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """A warning as a full sentence, or several."""
    return f"{capitalise(text).removesuffix('.')}."


_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))


def size_exact(count: int) -> str:
    """Bytes in decimal units, as is usual for links, with three significant digits: `1.21 MB`, `12.1 MB`, `121 MB`."""
    unit, scale = byte_unit(count)
    value = count / scale
    digits = 0 if scale == 1 or value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}"


def rate(gb_per_s: float) -> str:
    """A bandwidth with three significant digits: `96.4 MB/s`, `1.24 GB/s`."""
    return f"{size_exact(round(gb_per_s * 1e9))}/s"


def cap_digits(cap_mb: float) -> str:
    """A cap in MiB with every digit that it needs, as an option takes it: a digit fewer may make other buckets."""
    return f"{cap_mb:.12g}"


def byte_unit(count: float) -> tuple[str, float]:
    """The unit that suits so many bytes, and its size in bytes."""
    return next((pair for pair in _UNITS if count >= pair[1]), _UNITS[-1])


def doubt_clause(gain_ns: int, doubt_ns: int | None) -> str:
    """The error of a predicted gain, which it follows, and whether it may be none; empty where `doubt_ns` is unknown.

    `doubt_ns`: see `simulate.predictions.error.gain_half_ns`.
    """
    if doubt_ns is None:
        return ""
    return f" ± {ms(doubt_ns)}{'' if abs(gain_ns) > doubt_ns else ', so perhaps none'}"
