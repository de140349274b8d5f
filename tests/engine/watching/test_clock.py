"""Marks by a GPU's events, with events that the test completes; tests/gpu/test_gpu_watch.py has real ones."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from overlaplab_engine.watching.clock import MAX_PENDING, EventClock

MAIN, OTHER = object(), object()


class Event:
    """A CUDA event that is over once `over` says so."""

    over: ClassVar[set[int]] = set()
    at_ms: ClassVar[list[float]] = []

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.number = len(self.at_ms)

    def record(self) -> None:
        self.at_ms.append(float(self.number) ** 2)

    def query(self) -> bool:
        return self.number in self.over

    def elapsed_time(self, other: Event) -> float:
        return self.at_ms[other.number] - self.at_ms[self.number]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> EventClock:
    Event.over, Event.at_ms = set(), []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: MAIN)
    clock = EventClock()
    clock.begin_step()
    return clock


def test_spans_are_read_once_they_are_over_and_in_order(clock: EventClock) -> None:
    read: list[int] = []
    marks: list[Any] = [clock.mark() for _ in range(4)]
    clock.span(marks[0], marks[1], read.append)
    clock.span(marks[2], marks[3], read.append)
    clock.begin_step()
    assert read == []
    Event.over = {0, 1, 2}
    clock.begin_step()
    assert read == [1_000_000]
    Event.over = {3}
    clock.begin_step()
    assert read == [1_000_000, 5_000_000]


def test_other_streams_and_captures_have_no_marks(clock: EventClock, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = clock.mark()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: OTHER)
    assert clock.mark() is None
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: MAIN)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert clock.mark() is None
    clock.span(mark, None, pytest.fail)
    clock.span(None, mark, pytest.fail)
    Event.over = {0}
    clock.begin_step()


def test_what_waits_to_be_read_is_bounded(clock: EventClock) -> None:
    for _ in range(MAX_PENDING + 10):
        clock.span(clock.mark(), clock.mark(), lambda ns: None)
    assert len(clock._pending) == MAX_PENDING
