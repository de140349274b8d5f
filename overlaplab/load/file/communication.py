"""Collective metadata from event arguments, and the input shapes of communication events.

The names are those of torch/csrc/distributed/c10d/ParamCommsUtils.hpp, which kineto copies from the operator
`record_param_comms` to the kernels it launched.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from overlaplab.dtypes import DTYPE_BYTES, torch_dtype
from overlaplab.load.file.columns import Texts, numbers
from overlaplab.load.file.decode import NOTHING, Arguments, Value
from overlaplab.vocabulary import collective_kind

_numbers = attrgetter("group_size", "sequence", "elements_in", "elements_out", "source", "destination")
_COMMUNICATES = re.compile(r"record_param_comms$|(gloo|nccl|c10d|_c10d_functional|c10d_functional):", re.I)
_SHAPED = re.compile(_COMMUNICATES.pattern + "|.*AccumulateGrad", re.I)
_OUTPUT_FIRST = re.compile(r"c10d::", re.I)
"""These operators take output, then input, unless they work in place."""
_NAMED, _INPUTS = 1, 2
_TENSORS = {*DTYPE_BYTES, "tensorlist"}
_MOST_ELEMENTS = 2**48
_MOST_DIGITS = 20
_WITH_ROOT = frozenset({"broadcast", "reduce", "gather", "scatter"})
_SAME_SIZE = frozenset({"all_reduce", "broadcast", "reduce", "send_recv"})
_INPUT_IS_LARGER = _SAME_SIZE | {"reduce_scatter", "scatter", "all_to_all"}
_TIMES_GROUP_SIZE = frozenset({"all_gather", "reduce_scatter"})
"""Kinds whose larger side has a part for each rank of the group."""


class Communication:
    """The rows of `COLLECTIVE_COLUMNS` and `INPUT_COLUMNS` so far, each with the row of its event in the file."""

    def __init__(self) -> None:
        self.collectives: list[tuple[Any, ...]] = []
        self.inputs: list[tuple[Any, ...]] = []
        self._flags = bytearray()
        """Per code of a name: `_NAMED` if it matches `_COMMUNICATES`, plus `_INPUTS` if it matches `_SHAPED`."""

    def append(
        self,
        names: Texts,
        codes: NDArray[np.int32],
        arguments: Sequence[Arguments],
        described: Sequence[int],
        first_row: int,
    ) -> None:
        """Add a slice's events, whose names have these codes; the `described` rows' arguments name a collective."""
        for name in islice(names.code_of, len(self._flags), None):
            text = str(name)
            self._flags.append(_NAMED * bool(_COMMUNICATES.match(text)) | _INPUTS * bool(_SHAPED.match(text)))
        flags = np.frombuffer(bytes(self._flags), dtype=np.uint8)[codes]
        with_shapes = {row for row in np.flatnonzero(flags).tolist() if arguments[row].shapes is not NOTHING}
        naming = set(described)
        texts = list(names.code_of) if with_shapes or naming else []
        for row in sorted(with_shapes | naming):
            event_arguments, shaped = arguments[row], row in with_shapes
            if row in naming or (flags[row] & _NAMED and shaped):
                self.collectives.append((first_row + row, *_collective(str(texts[codes[row]]), event_arguments)))
            if flags[row] & _INPUTS and shaped:
                self.inputs.append((first_row + row, _json(event_arguments.shapes), _json(event_arguments.types)))

    def extend(self, later: Communication, first_row: int) -> None:
        """Add the rows that follow, of which the first one's event has this row in the file."""
        self.collectives += [(first_row + row, *values) for row, *values in later.collectives]
        self.inputs += [(first_row + row, *texts) for row, *texts in later.inputs]


def _collective(
    name: str, arguments: Arguments
) -> tuple[str, str, int, int, int, str, str, int, int, int, int, int, int]:
    """`COLLECTIVE_COLUMNS`, but for `event`."""
    kind = collective_kind(str(arguments.collective or name)) or ""
    dtype = torch_dtype(arguments.dtype) if isinstance(arguments.dtype, str) else ""
    size, sequence, elements_in, elements_out, source, destination = numbers(_numbers(arguments)).tolist()
    if elements_in < 0 and elements_out < 0:
        elements_in, elements_out, of_inputs = _from_shapes(name, kind, arguments)
        dtype = dtype or of_inputs
    # Below 0 where the unknown side may be the larger one.
    smaller = elements_in if elements_out < 0 and kind in _INPUT_IS_LARGER else min(elements_in, elements_out)
    each = DTYPE_BYTES.get(dtype)
    sent = max(elements_in, elements_out) * each if each is not None and smaller >= 0 else -1
    if size < 0 and kind in _TIMES_GROUP_SIZE:
        size = _ratio(elements_in, elements_out)
    group, description = _text(arguments.group), group_description(_text(arguments.group_description))
    sizes = elements_in, elements_out, sent if sent < 2**63 else -1
    root = _root(arguments) if kind in _WITH_ROOT and _OUTPUT_FIRST.match(name) else -1
    ends = source, destination, root
    return kind, dtype, *sizes, group, description, size, sequence, *ends, _comms_id(arguments.comms_id)


def _root(arguments: Arguments) -> int:
    """The first number among an operator's arguments (torch/csrc/distributed/c10d/Ops.cpp); -1 without one."""
    scalars = [text for text in _list(arguments.scalars) if isinstance(text, str)]
    return next((int(text) for text in scalars if text.isdecimal() and len(text) < _MOST_DIGITS), -1)


def _ratio(elements_in: int, elements_out: int) -> int:
    """The larger number ÷ the smaller; -1 if one is unknown, or they do not divide."""
    smaller, larger = sorted((elements_in, elements_out))
    return larger // smaller if smaller > 0 and larger % smaller == 0 else -1


def _comms_id(value: Value) -> int:
    """The lower 63 bits of an unsigned hash of 64 bits; -1 if it is none."""
    if isinstance(value, str):
        value = int(value) if len(value) <= _MOST_DIGITS and value.isascii() and value.isdecimal() else -1
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value & (2**63 - 1) if isinstance(value, int) and 0 <= value < 2**64 else -1


def _text(value: Value) -> str:
    return "" if value is None else str(value)


def _from_shapes(name: str, kind: str, arguments: Arguments) -> tuple[int, int, str]:
    """Elements in and out and their dtype, from the tensors' shapes; -1 and empty where unknown."""
    tensors: list[tuple[int, str]] = []
    for shape, spelling in zip(_list(arguments.shapes), _list(arguments.types), strict=False):
        tensor_dtype = torch_dtype(str(spelling))
        elements = _elements(shape, tensor_dtype)
        if elements is not None and tensor_dtype in _TENSORS:
            tensors.append((elements, tensor_dtype))
    if not tensors:
        return -1, -1, ""
    dtype = next((each for _, each in tensors if each in DTYPE_BYTES), "")
    if _OUTPUT_FIRST.match(name) and kind not in _SAME_SIZE:
        return (tensors[1][0] if len(tensors) > 1 else -1), tensors[0][0], dtype
    elements_of_first = tensors[0][0]
    return elements_of_first, elements_of_first if kind in _SAME_SIZE else -1, dtype


def _elements(shape: object, dtype: str, depth: int = 3) -> int | None:
    """The number of elements of a tensor, or list of tensors, of this shape; None if it is not a tensor.

    The empty shape is that of a scalar tensor; for a list it means nothing, as older torch wrote no shapes for lists.
    """
    if not isinstance(shape, list) or not depth:
        return None
    if all(type(size) is int and size >= 0 for size in shape):
        elements = math.prod(shape) if shape or dtype in DTYPE_BYTES else None
    else:
        parts = [_elements(part, "float32", depth - 1) for part in shape]
        elements = None if None in parts else sum(part for part in parts if part is not None)
    return elements if elements is None or elements < _MOST_ELEMENTS else None


def group_description(text: str) -> str:
    """A group's description; empty for what torch writes where nobody gave one."""
    return "" if text == "undefined" else text


def _json(raw: msgspec.Raw) -> str:
    return bytes(raw).decode(errors="replace")


def _list(raw: msgspec.Raw) -> list[Any]:
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return value if isinstance(value, list) else []
