"""A `TraceFile` as bytes and back: what the cache keeps, and what a worker process hands over.

A zip archive (its checksums tell a damaged one) of a Parquet table for each table or array, and one JSON document for
the rest. A dictionary-encoded column is stored as its numbers, and its dictionary in the JSON, because Parquet would
give a dictionary back in the order of first use.
"""

from __future__ import annotations

import io
import json
import typing
import zipfile
from dataclasses import fields
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from overlaplab.load.file import TraceFile

__all__ = ["pack", "unpack"]

_REST = "rest.json"
_ARRAY = "values"
ROWS = 1 << 18
"""Encoded at a time: what the writer holds grows with it."""


def pack(content: TraceFile) -> bytes:
    """All that a file holds, in about a tenth of the space of the table."""
    rest: dict[str, Any] = {}
    columns: dict[str, dict[str, Any]] = {}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for field in fields(content):
            value = getattr(content, field.name)
            if isinstance(value, np.ndarray):
                value = pd.DataFrame({_ARRAY: value})
                columns[field.name] = {}
            elif isinstance(value, pd.DataFrame):
                columns[field.name] = {str(name): _dictionary(value[name]) for name in value}
            else:
                rest[field.name] = msgspec.to_builtins(value)
                continue
            archive.writestr(field.name, _parquet(value))
        archive.writestr(_REST, json.dumps({"fields": rest, "columns": columns}))
    return packed.getvalue()


def unpack(packed: bytes) -> TraceFile:
    """What `pack` was given, equal in every column, dtype and order of a dictionary; raises if anything is damaged."""
    types = typing.get_type_hints(TraceFile)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        told = json.loads(archive.read(_REST))
        content: dict[str, Any] = {
            name: None if value is None else msgspec.convert(value, types[name])
            for name, value in told["fields"].items()
        }
        for name, dictionaries in told["columns"].items():
            content[name] = _restored(archive.read(name), dictionaries)
    return TraceFile(**content)


def _dictionary(column: pd.Series[Any]) -> dict[str, Any] | None:
    if not isinstance(column.dtype, pd.CategoricalDtype):
        return None
    categories = column.cat.categories
    return {"values": categories.tolist(), "dtype": str(categories.dtype), "ordered": bool(column.cat.ordered)}


def _parquet(table: pd.DataFrame) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    plain: dict[str, Any] = {
        str(name): column.cat.codes if isinstance(column.dtype, pd.CategoricalDtype) else column
        for name, column in table.items()
    }
    arrow = pa.table({name: pa.array(column.to_numpy()) for name, column in plain.items()})
    integers = [name for name in plain if pa.types.is_integer(arrow.schema.field(name).type)]
    file = io.BytesIO()
    pq.write_table(
        arrow,
        file,
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in plain if name not in integers],
        column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
        write_statistics=False,
        row_group_size=ROWS,
    )
    return file.getvalue()


def _restored(parquet: bytes, dictionaries: dict[str, Any]) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(parquet))
    # One by one: all at once would hold the whole table twice.
    columns: dict[str, Any] = {
        name: file.read(columns=[name], use_threads=False).column(0).to_numpy() for name in file.schema_arrow.names
    }
    if not dictionaries:
        return columns[_ARRAY]
    for name, dictionary in dictionaries.items():
        if dictionary is not None:
            categories = pd.Index(dictionary["values"], dtype=dictionary["dtype"])
            columns[name] = pd.Categorical.from_codes(columns[name], categories, ordered=dictionary["ordered"])
    return pd.DataFrame(columns, copy=False)
