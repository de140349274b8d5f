"""A `TraceFile` as bytes and back, for the cache and for worker processes.

It is a zip archive, whose checksums reveal damage. Each table or array is a Parquet table, and the other fields are one
JSON document. A categorical column is stored as its codes, with its categories in the JSON, because Parquet would
return the categories in order of first use.
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

_FIELDS = "rest.json"
_ARRAY = "values"
ROWS = 1 << 18
"""Rows encoded at a time; the writer's memory grows with it."""


def pack(content: TraceFile) -> bytes:
    """The content as bytes, about a tenth of the table's size."""
    plain: dict[str, Any] = {}
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
                plain[field.name] = msgspec.to_builtins(value)
                continue
            archive.writestr(field.name, _parquet(value))
        archive.writestr(_FIELDS, json.dumps({"fields": plain, "columns": columns}))
    return packed.getvalue()


def unpack(packed: bytes) -> TraceFile:
    """The content that was packed, equal in every column, dtype and order of categories; raises if it is damaged."""
    types = typing.get_type_hints(TraceFile)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        document = json.loads(archive.read(_FIELDS))
        content: dict[str, Any] = {
            name: None if value is None else msgspec.convert(value, types[name])
            for name, value in document["fields"].items()
        }
        for name, dictionaries in document["columns"].items():
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
    # Column by column, to avoid holding the whole table twice.
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
