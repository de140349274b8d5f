"""Pairs of begin and end events (`B`, `E`) become complete events (`X`)."""

from __future__ import annotations

from overlaplab.load.file.decode import FileEvent, Value
from overlaplab.load.file.times import ABSENT


class Spans:
    """The open events of each process and thread; an end belongs to the last begin."""

    def __init__(self) -> None:
        self.unmatched_ends = 0
        self._open: dict[tuple[Value, Value], list[tuple[FileEvent, int]]] = {}

    @property
    def unmatched_begins(self) -> int:
        return sum(map(len, self._open.values()))

    def begin(self, event: FileEvent, time_ns: int) -> None:
        self._open.setdefault((event.pid, event.tid), []).append((event, time_ns))

    def end(self, event: FileEvent, time_ns: int) -> tuple[FileEvent, int] | None:
        """The event that ends here and its start in ns; None if none is open."""
        begun = self._open.get((event.pid, event.tid))
        if not begun or ABSENT in (time_ns, begun[-1][1]) or time_ns < begun[-1][1]:
            self.unmatched_ends += 1
            return None
        return begun.pop()
