"""Events from JSON text: a fast typed decoder, and a tolerant one for what that refuses."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from overlaplab.load.file.times import exact_us, needs_text

Value = int | float | str | None

NOTHING = msgspec.Raw(b"")
NO_DURATION = -(2**40)
"""Where an event has no `dur`: 13 days before its start, which no file says."""


class Arguments(msgspec.Struct, gc=False):
    """The fields read from an event's `args`; the names are kineto's."""

    # In kineto's order, as the decoder looks for a key from the last one on.
    external: Value = msgspec.field(name="External id", default=-1)
    device: Value = -1
    stream: Value = -1
    correlation: Value = -1
    external_2021: Value = msgspec.field(name="external id", default=-1)
    rank: Value = -1
    collective: Value = msgspec.field(name="Collective name", default=None)
    collective_rank: Value = msgspec.field(name="Rank", default=-1)
    dtype: Value = None
    elements_in: Value = msgspec.field(name="In msg nelems", default=-1)
    elements_out: Value = msgspec.field(name="Out msg nelems", default=-1)
    group: Value = msgspec.field(name="Process Group Name", default=None)
    group_description: Value = msgspec.field(name="Process Group Description", default=None)
    group_size: Value = msgspec.field(name="Group size", default=-1)
    sequence: Value = msgspec.field(name="Seq", default=-1)
    source: Value = msgspec.field(name="Src Rank", default=-1)
    destination: Value = msgspec.field(name="Dst Rank", default=-1)
    comms_id: Value = msgspec.field(name="Comms Id", default=-1)
    wait_on_stream: Value = -1
    recorded_by: Value = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=-1)
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=NOTHING)
    types: msgspec.Raw = msgspec.field(name="Input type", default=NOTHING)
    scalars: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=NOTHING)
    name: msgspec.Raw = NOTHING
    """The name of a process or thread, in metadata."""


NO_ARGUMENTS = Arguments()


class FileEvent(msgspec.Struct, gc=False):
    """The fields read from an event; `ts` and `dur` as in the file."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: Value = None
    tid: Value = None
    ts: Value = None
    dur: Value = NO_DURATION
    id: Value = -1
    args: Arguments | None = None


class _ExactEvent(FileEvent, gc=False):
    ts: Decimal | None = None  # type: ignore[assignment]
    dur: Decimal | None = Decimal(NO_DURATION)  # type: ignore[assignment]


_fast = msgspec.json.Decoder(list[FileEvent])
_exact = msgspec.json.Decoder(list[_ExactEvent])


def decode_events(text: bytes | bytearray | memoryview) -> tuple[list[FileEvent], NDArray[np.float64] | None]:
    """The events of a JSON array, and their times (µs) if floats hold all of these exactly.

    Raises msgspec's errors unless all are of the usual form.
    """
    events = _fast.decode(text)
    times = [event.ts for event in events]
    us = exact_us(times)
    if us is None and needs_text(times):
        return _exact.decode(text), None  # type: ignore[return-value]
    return events, us


def event_from_object(raw: Mapping[str, object], repairs: Counter[str]) -> FileEvent:
    """The event in a JSON object with possible errors: unusable fields are dropped and counted."""
    arguments = raw.get("args")
    values: dict[str, Any] = {
        field.name: _value(raw[field.encode_name], repairs) for field in _FIELDS if field.encode_name in raw
    }
    return FileEvent(**values, args=_lenient_arguments(arguments, repairs) if isinstance(arguments, dict) else None)


def _lenient_arguments(raw: dict[str, object], repairs: Counter[str]) -> Arguments:
    values: dict[str, Any] = {
        field.name: _value(raw[field.encode_name], repairs) for field in _ARGUMENT_FIELDS if field.encode_name in raw
    }
    texts: dict[str, Any] = {
        field.name: msgspec.Raw(json.dumps(raw[field.encode_name]).encode())
        for field in _RAW_FIELDS
        if field.encode_name in raw
    }
    return Arguments(**values, **texts)


def _value(value: object, repairs: Counter[str]) -> Any:
    if isinstance(value, str):
        if value.isascii() or not _SURROGATES.search(value):
            return value
        repairs["texts were not valid UTF-8 and were repaired"] += 1
        return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


_SURROGATES = re.compile("[\ud800-\udfff]+")
_FIELDS = [field for field in msgspec.structs.fields(FileEvent) if field.name != "args"]
_RAW_FIELDS = [field for field in msgspec.structs.fields(Arguments) if field.type is msgspec.Raw]
_ARGUMENT_FIELDS = [field for field in msgspec.structs.fields(Arguments) if field.type is not msgspec.Raw]
