"""The labels that the engine writes into traces; `traces/README.md` has their grammar.

A span is a `_RecordFunctionFast`, which takes 0.2 µs when nothing records; `torch.profiler.record_function` takes 5 µs.
Its name is built once, when the span is created, so that hot code only enters and leaves it.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cache
from typing import Any, cast
from urllib.parse import quote

import torch
from torch._C._profiler import _RecordFunctionFast

PREFIX = "engine::"
Span = _RecordFunctionFast


class Word(StrEnum):
    """The kind of a label, its name after `engine::`; each with the keys of its label, in the order of the text."""

    keys: tuple[str, ...]
    optional: frozenset[str]
    """Those of the keys that a label may lack."""

    def __new__(cls, word: str, keys: str = "") -> "Word":
        """A member: its name in labels, and their keys; optional ones end in `?`."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.keys = tuple(keys.replace("?", "").split())
        member.optional = frozenset(key[:-1] for key in keys.split() if key.endswith("?"))
        return member

    FORWARD = "forward", "microbatch"
    BACKWARD = "backward", "microbatch sync"
    STAGE_FORWARD = "stage_forward", "stage microbatch"
    STAGE_BACKWARD = "stage_backward", "stage microbatch"
    STAGE_BACKWARD_INPUT = "stage_backward_input", "stage microbatch"
    STAGE_BACKWARD_WEIGHT = "stage_backward_weight", "stage microbatch"
    OPTIMIZER = "optimizer"
    UPDATE = "update", "unit"
    GRADIENT_READY = "gradient_ready", "parameter"
    BUCKET_READY = "bucket_ready", "bucket bytes parameters"
    BUCKET_LAUNCH = "bucket_launch", "bucket"
    BUCKET_DONE = "bucket_done", "bucket"
    PARAM_GATHER_LAUNCH = "param_gather_launch", "bucket bytes"
    PARAM_GATHER_WAIT = "param_gather_wait", "bucket"
    GATHER_LAUNCH = "gather_launch", "unit phase microbatch bytes"
    GATHER_WAIT = "gather_wait", "unit phase microbatch"
    FIRST_USE = "first_use", "unit phase microbatch"
    LAST_USE = "last_use", "unit phase microbatch"
    FREE = "free", "unit phase microbatch bytes"
    SCATTER_LAUNCH = "scatter_launch", "unit microbatch bytes"
    SCATTER_DONE = "scatter_done", "unit microbatch"
    RECOMPUTE = "recompute", "module"
    SERVE = "serve", "worker staleness"
    REPLICA_LAUNCH = "replica_launch", "unit microbatch bytes"
    ACTIVATION_LAUNCH = "activation_launch", "module phase microbatch"
    WAIT = "wait"
    COLLECTIVE = "collective", "seq kind dtype bytes group"
    LAUNCH = "launch", "seq group"
    COMM = "comm", "seq kind dtype bytes group link? modelled_ns?"
    COPY = "copy", "way bytes link? modelled_ns?"
    HOP = "hop", "bucket kind hop bytes sends? to? receives? source?"
    PROCESSOR = "processor", "ran_ns delayed_ns unit? phase?"


def label(word: Word, **values: str | int | Sequence[str]) -> str:
    """The text of a label: `engine::WORD key=value …`, values percent-encoded, lists joined by commas.

    Raises ValueError for keys that the grammar does not have for this word.
    """
    keys = [key for key in word.keys if key in values]
    if len(keys) != len(values) or any(key not in values and key not in word.optional for key in word.keys):
        raise ValueError(f"engine::{word} takes the keys {word.keys}, not {tuple(values)}")
    return " ".join([PREFIX + word, *(f"{key}={_encode(values[key])}" for key in keys)])


def span(word: Word, **values: str | int | Sequence[str]) -> Span:
    """A range in the trace with this label: a context manager that can be reused, but not nested in itself.

    Make it on the thread that enters it.
    """
    trace_range = operator(label(word, **values))
    return cast(Span, _Bordered(trace_range)) if word in _BORDERED else trace_range


@cache
def kept_span(word: Word, **values: str | int) -> Span:
    """A span that is made when first asked for, and then kept."""
    return span(word, **values)


def operator(name: str) -> Span:
    """A range in the trace with this name, for what stands in place of an operator; see `span`."""
    if threading.current_thread() is threading.main_thread():
        return Span(name)
    return cast(Span, _MayOutliveRecording(Span(name)))


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a type in labels and files, such as `float32`."""
    return str(dtype).removeprefix("torch.")


def instant(mark: Span) -> None:
    """Put a range of about a microsecond into the trace; its start marks the instant."""
    with mark:
        pass


_BORDERED = {Word.FORWARD, Word.BACKWARD, Word.OPTIMIZER, Word.WAIT, Word.GATHER_WAIT, Word.PARAM_GATHER_WAIT}
at_borders: list[Callable[[], None]] = []
"""Called where passes and waits begin and end: `recording.processor` counts between these."""


class _MayOutliveRecording:
    """A span of a thread that does not train: the recording may begin or end within it."""

    def __init__(self, inner: Span) -> None:
        self._inner = inner

    def __enter__(self) -> None:
        self._inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        with contextlib.suppress(RuntimeError):  # raised if the recording began or ended inside
            self._inner.__exit__(*error)


class _Bordered:
    """A span at whose borders `at_borders` are called, outside it."""

    def __init__(self, inner: Span) -> None:
        self._inner = inner

    def __enter__(self) -> None:
        for call in at_borders:
            call()
        self._inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)
        for call in at_borders:
            call()


def _encode(value: str | int | Sequence[str]) -> str:
    if isinstance(value, int):
        return str(value)
    return quote(value) if isinstance(value, str) else ",".join(quote(v) for v in value)
