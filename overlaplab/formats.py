"""Numbers of tables as people read them: one rule per unit, for terminal, HTML report, dashboard and CSV files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from overlaplab.columns import Column, column
from overlaplab.words import byte_unit, shorten, size_exact, to_ms

UNKNOWN = "–"
_BYTES = {"MB": 1e6, "kB": 1e3}


def text(value: Any, unit: str, digits: int = 0, *, grouped: bool = False) -> str:
    """One value as it is shown, with so many digits, and commas between thousands where it is `grouped`.

    `unit` is that of a column (`ns` become ms, a `ratio` becomes percent), or `MB` or `kB` for bytes. What is unknown
    is an en dash.
    """
    if pd.isna(value):
        return UNKNOWN
    commas = "," if grouped else ""
    if unit == "count":
        return f"{value:{commas}{'.12g' if isinstance(value, float) else ''}}"
    return str(value) if unit == "text" else f"{_number(value, unit):z{commas}.{digits}f}"


def digits(values: pd.Series[Any] | pd.DataFrame, unit: str = "ns", *, one_digit_from: float = 1000) -> int:
    """How many digits such numbers need: one where the largest of them is shown as `one_digit_from` or more, two from
    10 on, else three.
    """
    numbers = values.to_numpy(dtype="float64", na_value=np.nan)
    largest = _number(np.abs(numbers[~np.isnan(numbers)]).max(initial=0), unit)
    return 1 if largest >= one_digit_from else 2 if largest >= 10 else 3


def texts(values: pd.Series[Any], column: Column) -> list[str]:
    """A column's values, with as many digits as it needs; bytes each in the unit that suits it."""
    match column.unit:
        case "text" | "flag":
            return [UNKNOWN if pd.isna(value) else shorten(str(value), 80) for value in values]
        case "count":
            return [text(value, "count", grouped=True) for value in values]
        case "bytes":
            return [UNKNOWN if pd.isna(value) else size_exact(round(value)) for value in values]
    numbers = values.astype("Float64")
    places = 1 if column.unit == "ratio" else digits(numbers, column.unit)
    words = [text(value, column.unit, places, grouped=True) for value in numbers]
    return ["0" if zero else word for word, zero in zip(words, numbers.eq(0).fillna(False), strict=True)]


def as_shown(table: pd.DataFrame, columns: Iterable[Column]) -> pd.DataFrame:
    """These columns under their titles, in the units in which they are shown."""
    return pd.DataFrame({column.title: _shown_values(table[column.name], column) for column in columns})


def in_one_unit(values: pd.Series[Any], column: Column) -> tuple[pd.Series[Any], str, str]:
    """A column of numbers in the unit that suits the largest of them, that unit, and how each is formatted (printf).

    Bytes and rates have three significant digits, times as many as `digits` says.
    """
    if column.unit not in ("bytes", "GB/s", "ns", "ms", "ratio"):
        return values, column.shown_unit, ""
    numbers = values.astype("Float64")
    match column.unit:
        case "bytes" | "GB/s":
            whole = 1.0 if column.unit == "bytes" else 1e9
            largest = float(numbers.abs().max()) if numbers.notna().any() else 0.0
            unit, scale = byte_unit(largest * whole)
            return numbers * whole / scale, unit if whole == 1 else f"{unit}/s", "%.3g"
        case "ratio":
            return _number(numbers, "ratio"), column.shown_unit, "%.1f"
    return _number(numbers, column.unit), "ms", f"%.{digits(numbers, column.unit)}f"


def as_held(table: pd.DataFrame, of: str) -> pd.DataFrame:
    """A whole table of the analysis `of` with titles above its columns, its values as they are."""
    return table.rename(columns={name: column(of, str(name)).title_as_held for name in table})


def _shown_values(values: pd.Series[Any], column: Column) -> pd.Series[Any]:
    if column.unit not in ("ns", "bytes", "ratio"):
        return values
    unit = column.shown or "MB" if column.unit == "bytes" else column.unit
    numbers: pd.Series[Any] = _number(values.astype("Float64"), unit)
    return numbers


def _number(value: Any, unit: str) -> Any:
    """Numbers in the unit in which they are shown."""
    match unit:
        case "ns":
            return to_ms(value)
        case "ratio":
            return 100 * value
    return value / _BYTES.get(unit, 1)
