"""The labels that the engine writes into traces; `traces/README.md` has their grammar.

A span is a `_RecordFunctionFast`, which takes 0.2 µs when nothing records; `torch.profiler.record_function` takes 5 µs.
Its name is built once, when the span is created, so that hot code only enters and leaves it.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, cast
from urllib.parse import quote, unquote

from torch._C._profiler import _RecordFunctionFast

PREFIX = "engine::"
Span = _RecordFunctionFast


class Word(StrEnum):
    """The kind of a label, its name after `engine::`."""

    FORWARD = "forward"
    BACKWARD = "backward"
    STAGE_FORWARD = "stage_forward"
    STAGE_BACKWARD = "stage_backward"
    STAGE_BACKWARD_INPUT = "stage_backward_input"
    STAGE_BACKWARD_WEIGHT = "stage_backward_weight"
    OPTIMIZER = "optimizer"
    UPDATE = "update"
    GRADIENT_READY = "gradient_ready"
    BUCKET_READY = "bucket_ready"
    BUCKET_LAUNCH = "bucket_launch"
    BUCKET_DONE = "bucket_done"
    PARAM_GATHER_LAUNCH = "param_gather_launch"
    PARAM_GATHER_WAIT = "param_gather_wait"
    GATHER_LAUNCH = "gather_launch"
    GATHER_WAIT = "gather_wait"
    FIRST_USE = "first_use"
    LAST_USE = "last_use"
    FREE = "free"
    SCATTER_LAUNCH = "scatter_launch"
    SCATTER_DONE = "scatter_done"
    RECOMPUTE = "recompute"
    SERVE = "serve"
    REPLICA_LAUNCH = "replica_launch"
    ACTIVATION_LAUNCH = "activation_launch"
    WAIT = "wait"
    COLLECTIVE = "collective"
    LAUNCH = "launch"
    COMM = "comm"
    COPY = "copy"
    HOP = "hop"
    PROCESSOR = "processor"


KEYS: dict[Word, tuple[str, ...]] = {
    Word.FORWARD: ("microbatch",),
    Word.BACKWARD: ("microbatch", "sync"),
    Word.STAGE_FORWARD: ("stage", "microbatch"),
    Word.STAGE_BACKWARD: ("stage", "microbatch"),
    Word.STAGE_BACKWARD_INPUT: ("stage", "microbatch"),
    Word.STAGE_BACKWARD_WEIGHT: ("stage", "microbatch"),
    Word.OPTIMIZER: (),
    Word.UPDATE: ("unit",),
    Word.GRADIENT_READY: ("parameter",),
    Word.BUCKET_READY: ("bucket", "bytes", "parameters"),
    Word.BUCKET_LAUNCH: ("bucket",),
    Word.BUCKET_DONE: ("bucket",),
    Word.PARAM_GATHER_LAUNCH: ("bucket", "bytes"),
    Word.PARAM_GATHER_WAIT: ("bucket",),
    Word.GATHER_LAUNCH: ("unit", "phase", "microbatch", "bytes"),
    Word.GATHER_WAIT: ("unit", "phase", "microbatch"),
    Word.FIRST_USE: ("unit", "phase", "microbatch"),
    Word.LAST_USE: ("unit", "phase", "microbatch"),
    Word.FREE: ("unit", "phase", "microbatch", "bytes"),
    Word.SCATTER_LAUNCH: ("unit", "microbatch", "bytes"),
    Word.SCATTER_DONE: ("unit", "microbatch"),
    Word.RECOMPUTE: ("module",),
    Word.SERVE: ("worker", "staleness"),
    Word.REPLICA_LAUNCH: ("unit", "microbatch", "bytes"),
    Word.ACTIVATION_LAUNCH: ("module", "phase", "microbatch"),
    Word.WAIT: (),
    Word.COLLECTIVE: ("seq", "kind", "dtype", "bytes", "group"),
    Word.LAUNCH: ("seq", "group"),
    Word.COMM: ("seq", "kind", "dtype", "bytes", "group", "link", "modelled_ns"),
    Word.COPY: ("way", "bytes", "link", "modelled_ns"),
    Word.HOP: ("bucket", "kind", "hop", "bytes", "sends", "to", "receives", "source"),
    Word.PROCESSOR: ("ran_ns", "delayed_ns", "unit", "phase"),
}
"""The keys of each label, in the order in which they are written."""

OPTIONAL = {
    Word.COMM: frozenset({"link", "modelled_ns"}),
    Word.COPY: frozenset({"link", "modelled_ns"}),
    Word.HOP: frozenset({"sends", "to", "receives", "source"}),
    Word.PROCESSOR: frozenset({"unit", "phase"}),
}
LISTS = frozenset({"parameters"})


def label(word: Word, **values: str | int | Sequence[str]) -> str:
    """The text of a label: `engine::WORD key=value …`, values percent-encoded, lists joined by commas.

    Raises ValueError for keys that the grammar does not have for this word.
    """
    keys = [key for key in KEYS[word] if key in values]
    if len(keys) != len(values) or any(key not in values and key not in OPTIONAL.get(word, ()) for key in KEYS[word]):
        raise ValueError(f"engine::{word} takes the keys {KEYS[word]}, not {tuple(values)}")
    return " ".join([PREFIX + word, *(f"{key}={_encode(values[key])}" for key in keys)])


def parse(text: str) -> tuple[Word, dict[str, str | list[str]]]:
    """The word and values of a label, the inverse of `label`; numbers stay text. ValueError for anything else."""
    head, *pairs = text.split(" ")
    if not head.startswith(PREFIX):
        raise ValueError(f"not a label: {text!r}")
    word = Word(head.removeprefix(PREFIX))
    values: dict[str, str | list[str]] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        values[key] = [unquote(v) for v in value.split(",") if v] if key in LISTS else unquote(value)
    return word, values


def span(word: Word, **values: str | int | Sequence[str]) -> Span:
    """A range in the trace with this label: a context manager that can be reused, but not nested in itself."""
    trace_range = Span(label(word, **values))
    if threading.current_thread() is not threading.main_thread():
        trace_range = cast(Span, _AcrossBorders(trace_range))
    return cast(Span, _Bordered(trace_range)) if word in _BORDERED else trace_range


def instant(mark: Span) -> None:
    """Put a range of about a microsecond into the trace; its start marks the instant."""
    with mark:
        pass


_BORDERED = {Word.FORWARD, Word.BACKWARD, Word.OPTIMIZER, Word.WAIT, Word.GATHER_WAIT, Word.PARAM_GATHER_WAIT}
at_borders: list[Callable[[], None]] = []
"""Called where passes and waits begin and end: `recording.processor` counts between these."""


class _AcrossBorders:
    """A span of another thread than the training's, within which the recording may begin or end."""

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
