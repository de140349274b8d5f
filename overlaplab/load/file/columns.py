"""The table of events, grown slice by slice in narrow arrays, then joined and sorted a column at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from mmap import mmap
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from overlaplab.event_columns import EVENT_COLUMNS
from overlaplab.intervals import Integers
from overlaplab.load.file.decode import Value
from overlaplab.load.file.times import strict_array

if TYPE_CHECKING:
    import pandas as pd

_INT32 = np.iinfo(np.int32)
_PART_ROWS = 1 << 16


class Lookup(Protocol):
    def __getitem__(self, text: Value, /) -> int: ...


class _Growing(dict[Value, int]):
    """Codes by text; a new text gets the next one."""

    def __missing__(self, text: Value) -> int:
        self[text] = code = len(self)
        return code


class Texts:
    """Codes of texts, in order of appearance; a number stands for its decimal text."""

    def __init__(self) -> None:
        self.code_of: dict[Value, int] = {}

    def __getitem__(self, text: Value) -> int:
        """The code of a text that may be new."""
        return self.code_of.setdefault(text, len(self.code_of))

    def codes(self, look_up: Callable[[Lookup], Sequence[int]]) -> NDArray[np.int32]:
        """The codes that `look_up` returns, which gets a dictionary: a plain one, the quickest, if no text is new."""
        try:
            return as_codes(look_up(self.code_of))
        except KeyError:
            growing = _Growing(self.code_of)
            codes = as_codes(look_up(growing))
            self.code_of.update(growing)
            return codes

    def to_categorical(self, codes: NDArray[np.int32]) -> pd.Categorical:
        """These codes with their texts; `9` and `"9"` are one."""
        import pandas as pd  # processes that only decode do not need it, nor wait for it

        texts: dict[str, int] = {}
        merged = np.array([texts.setdefault(_text(value), len(texts)) for value in self.code_of], dtype=np.int32)
        if len(texts) < len(self.code_of):
            codes = merged[codes]
        narrow = codes.astype(np.min_scalar_type(-len(texts) - 1))
        return pd.Categorical.from_codes(narrow, pd.Index(list(texts), dtype=object))


def _text(value: Value) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def as_codes(values: Sequence[int]) -> NDArray[np.int32]:
    codes = strict_array(values, np.int32)
    assert codes is not None
    return codes


def numbers(values: Sequence[Value]) -> NDArray[np.int32] | Integers:
    """Each value as an integer of 32 bits, or of 64 if it takes these; -1 if it is none."""
    if (small := strict_array(values, np.int32)) is not None:
        return small
    large = strict_array(values, np.int64)
    return large if large is not None else np.array([number(value) for value in values], dtype=np.int64)


def number(value: object) -> int:
    """The value as a 64-bit integer, -1 if it is none."""
    try:
        if isinstance(value, str):
            value = int(value) if value.strip().lstrip("-").isdecimal() else float(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            return -1
    except (ValueError, OverflowError):
        return -1
    return int(value) if -(2**63) <= value < 2**63 else -1


_ARROWS = ("flow_launch", "flow_backward")
"""Known once all events are; see `Columns.table`."""
_TEXTS = ("name", "category", "phase", "pid", "tid")


class Columns:
    """The columns of `EVENT_COLUMNS`, in the order of the file."""

    def __init__(self) -> None:
        self.rows = 0
        self.texts = {name: Texts() for name in _TEXTS}
        self._grown = {name: Grown(_dtype(name)) for name in EVENT_COLUMNS if name not in _ARROWS}

    def append(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add a slice: the values of each column, as codes where they are texts."""
        for name, part in columns.items():
            self._grown[name].extend(part if EVENT_COLUMNS[name] != "int32" else narrow_to_int32(part))
        self.rows += len(columns["ts_ns"])

    def extend(self, later: Columns) -> dict[str, NDArray[np.int32]]:
        """Add the rows that follow, from columns with codes of their own; what those became, by column of texts."""
        others = {name: list(texts.code_of) for name, texts in later.texts.items()}
        new = {name: texts.codes(partial(_look_up, others[name])) for name, texts in self.texts.items()}
        rows = {name: grown.values() for name, grown in later._grown.items()}
        self.append({name: new[name][values] if name in new else values for name, values in rows.items()})
        return new

    def table(self, base_ns: int, added: Mapping[str, NDArray[Any]]) -> tuple[pd.DataFrame, NDArray[np.intp]]:
        """The events in order of start, and the row that each of them had in the file.

        Of equal starts the longer comes first, so that parents precede children. `added` are whole columns.
        """
        import pandas as pd

        times = self._grown.pop("ts_ns").values()
        times += base_ns
        durations = self._grown.pop("dur_ns").values()
        order = _order(times, durations)
        times, durations = times[order], durations[order]
        columns: dict[str, object] = {}
        for name in EVENT_COLUMNS:
            if name in ("ts_ns", "dur_ns"):
                columns[name] = times if name == "ts_ns" else durations
                continue
            values = (narrow_to_int32(added[name]) if name in added else self._grown.pop(name).values())[order]
            columns[name] = self.texts[name].to_categorical(values) if name in self.texts else values
        return pd.DataFrame(columns, copy=False), order

    def places(self) -> tuple[Integers, Integers, Integers]:
        """Every row's time, and the codes of its process and thread."""
        time, process, thread = (self._grown[name].values() for name in ("ts_ns", "pid", "tid"))
        return time, process, thread


def _look_up(texts: Sequence[Value], codes: Lookup) -> list[int]:
    return [codes[text] for text in texts]


class Grown:
    """An array that grows in parts outside the heap; reallocating it as a whole would fragment the heap."""

    def __init__(self, dtype: str) -> None:
        self._parts: list[NDArray[Any]] = []
        self._dtype = np.dtype(dtype)
        self._room = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"_parts": [self.values()], "_dtype": self._dtype, "_room": 0}

    def extend(self, values: NDArray[Any]) -> None:
        """Add values; the type widens as needed."""
        if values.dtype.itemsize > self._dtype.itemsize:
            self._dtype = values.dtype
            self._close()
        while len(values):
            if not self._room:
                memory = mmap(-1, _PART_ROWS * self._dtype.itemsize)  # returned to the system once it is read
                self._parts.append(np.frombuffer(memory, dtype=self._dtype))
                self._room = _PART_ROWS
            fitting = values[: self._room]
            first = _PART_ROWS - self._room
            self._parts[-1][first : first + len(fitting)] = fitting
            self._room -= len(fitting)
            values = values[len(fitting) :]

    def values(self) -> NDArray[Any]:
        self._close()
        self._parts = [np.concatenate(self._parts) if self._parts else np.empty(0, dtype=self._dtype)]
        return self._parts[0]

    def _close(self) -> None:
        if self._room:
            self._parts[-1] = self._parts[-1][: _PART_ROWS - self._room]
            self._room = 0


def narrow_to_int32(values: NDArray[Any]) -> NDArray[Any]:
    """Convert to int32 if all values fit."""
    if values.dtype == np.int32:
        return values
    fits = not len(values) or (values.min() >= _INT32.min and values.max() <= _INT32.max)
    return values.astype(np.int32) if fits else values


def _dtype(name: str) -> str:
    return "int32" if name in _TEXTS else EVENT_COLUMNS[name]


def _order(times: Integers, durations: Integers) -> NDArray[np.intp]:
    order = np.argsort(times, kind="stable")
    ordered = times[order]
    same = ordered[1:] == ordered[:-1]
    tied = np.zeros(len(order), dtype=bool)
    tied[1:] |= same
    tied[:-1] |= same
    among = order[tied]
    order[tied] = among[np.lexsort((-durations[among], times[among]))]
    return order
