"""Marks in time: on a CPU the host's clock, on a GPU events in the current stream, which are read some steps later."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

MAX_PENDING = 4096
"""Spans of events that wait to be read; beyond them the oldest stay unknown, so that memory stays bounded."""

Receive = Callable[[int], None]
"""A function that is given a duration in ns."""


class HostClock:
    """What ran is over when the host goes on."""

    def mark(self) -> int:
        """The time now."""
        return time.perf_counter_ns()

    def span(self, start: int, end: int, receive: Receive) -> None:
        """Give `receive` the time between two marks."""
        receive(end - start)

    def poll(self) -> None:
        """Nothing is outstanding."""


class EventClock:
    """What ran on a GPU's current stream; the host never waits for it."""

    def __init__(self) -> None:
        self._pending: deque[tuple[Any, Any, Receive]] = deque(maxlen=MAX_PENDING)

    def mark(self) -> Any:
        """An event in the current stream."""
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def span(self, start: Any, end: Any, receive: Receive) -> None:
        """Give `receive` the time between two marks once `poll` finds that both are over."""
        self._pending.append((start, end, receive))

    def poll(self) -> None:
        """Read the spans that are over."""
        while self._pending and self._pending[0][1].query():
            start, end, receive = self._pending.popleft()
            receive(round(start.elapsed_time(end) * 1e6))
