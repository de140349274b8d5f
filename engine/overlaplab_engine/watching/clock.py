"""Marks in time: on a CPU the host's clock, on a GPU events in the stream that computes, read some steps later."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

MAX_PENDING = 4096
"""Spans of events that wait to be read; beyond them the oldest stay unknown, so that memory stays bounded."""

Receive = Callable[[int], None]
"""A function that is given a duration in ns."""


class WatchHostClock:
    """Marks are times of the host: what ran is over when it goes on."""

    def begin_step(self) -> None:
        """Nothing is outstanding."""

    def mark(self) -> int:
        """The time now."""
        return time.perf_counter_ns()

    def span(self, start: int | None, end: int | None, receive: Receive) -> None:
        """Give `receive` the time between two marks."""
        if start is not None and end is not None:
            receive(end - start)


class EventClock:
    """Marks are events in the stream in which the training computes; the host never waits for them.

    What runs in other streams holds up nothing by itself: FSDP2 gathers there, and lets the computing stream wait.
    """

    def __init__(self) -> None:
        self._pending: deque[tuple[Any, Any, Receive]] = deque(maxlen=MAX_PENDING)
        self._stream: Any = None

    def begin_step(self) -> None:
        """Take the current stream for the one that computes, and read the spans that are over."""
        self._stream = torch.cuda.current_stream()
        while self._pending and self._pending[0][1].query():
            start, end, receive = self._pending.popleft()
            receive(round(start.elapsed_time(end) * 1e6))

    def mark(self) -> Any:
        """An event in the current stream; None where that is another one, or is being captured."""
        if torch.cuda.is_current_stream_capturing() or torch.cuda.current_stream() != self._stream:
            return None
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def span(self, start: Any, end: Any, receive: Receive) -> None:
        """Give `receive` the time between two marks, at the beginning of a step in which they are over."""
        if start is not None and end is not None:
            self._pending.append((start, end, receive))
