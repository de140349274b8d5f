"""A `TraceFile` as bytes and back, for the cache and for worker processes.

It is a zip archive, whose checksums reveal damage. Each column of a table, integers all, is a file, and the rest is one
JSON document. A file holds the differences of its column's values, byte by byte: the lowest byte of all, then the next,
which deflate makes small in one quick pass. A categorical column is its codes, with its categories in the JSON.
"""

from __future__ import annotations

import io
import json
import typing
import zipfile
from typing import Any

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.load.file.inflate import deflate
from overlaplab.load.file.trace_file import TraceFile

_FIELDS = "rest.json"
_ARRAY = "values"
_LEVEL = 1


class _Document(msgspec.Struct):
    """What `_FIELDS` holds."""

    fields: dict[str, msgspec.Raw]
    """The content's plain fields, as JSON."""
    tables: dict[str, dict[str, dict[str, Any]]]
    """How the columns of its tables were written, by the tables' names and their own."""


_DOCUMENT = msgspec.json.Decoder(_Document)
_PLAIN = {name: msgspec.json.Decoder(hint) for name, hint in typing.get_type_hints(TraceFile).items()}


def pack(content: TraceFile) -> bytes:
    """The content as bytes, about a tenth of the table's size."""
    plain: dict[str, Any] = {}
    tables: dict[str, dict[str, Any]] = {}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in content.__struct_fields__:
            value = getattr(content, name)
            if isinstance(value, np.ndarray):
                value = pd.DataFrame({_ARRAY: value})
            elif not isinstance(value, pd.DataFrame):
                plain[name] = msgspec.to_builtins(value)
                continue
            tables[name] = {str(column): _put(archive, f"{name}/{column}", value[column]) for column in value}
        _write(archive, _FIELDS, json.dumps({"fields": plain, "tables": tables}).encode())
    return packed.getvalue()


def unpack(packed: bytes) -> TraceFile:
    """The content that was packed, equal in every column, dtype and order of categories; raises if it is damaged."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        document = _DOCUMENT.decode(_read(archive, _FIELDS))
        content: dict[str, Any] = {name: _PLAIN[name].decode(text) for name, text in document.fields.items()}
        for field, described in document.tables.items():
            columns = {name: _read_column(archive, f"{field}/{name}", how) for name, how in described.items()}
            is_array = list(columns) == [_ARRAY]
            content[field] = columns[_ARRAY] if is_array else pd.DataFrame(columns, copy=False)
    return TraceFile(**content)


def _put(archive: zipfile.ZipFile, name: str, column: pd.Series[Any]) -> dict[str, Any]:
    """Write a column, and return what it takes to read it."""
    described: dict[str, Any] = {}
    if isinstance(column.dtype, pd.CategoricalDtype):
        categories = column.cat.categories
        described = {"categories": categories.tolist(), "of": str(categories.dtype), "ordered": column.cat.ordered}
        column = column.cat.codes
    values = column.to_numpy()
    described["dtype"] = str(values.dtype)
    _write(archive, name, _bytewise(values))
    return described


def _read_column(archive: zipfile.ZipFile, name: str, described: dict[str, Any]) -> Any:
    values = _added_up(_read(archive, name), np.dtype(described["dtype"]))
    if "categories" not in described:
        return values
    categories = pd.Index(described["categories"], dtype=described["of"])
    return pd.Categorical.from_codes(values, categories, ordered=described["ordered"])


def _write(archive: zipfile.ZipFile, name: str, content: bytes | NDArray[np.uint8]) -> None:
    archive.writestr(name, deflate.compress(content, _LEVEL))


def _read(archive: zipfile.ZipFile, name: str) -> bytes:
    content: bytes = deflate.decompress(archive.read(name))
    return content


def _bytewise(values: NDArray[Any]) -> NDArray[np.uint8]:
    """The differences of integers, of shape (bytes of one, how many); what overflows is made up by `_added_up`."""
    differences = np.diff(values, prepend=values.dtype.type(0))
    return np.ascontiguousarray(differences.view(np.uint8).reshape(len(values), values.itemsize).T)


def _added_up(planes: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    differences = np.frombuffer(planes, np.uint8).reshape(dtype.itemsize, -1)
    return np.ascontiguousarray(differences.T).view(dtype).ravel().cumsum(dtype=dtype)
