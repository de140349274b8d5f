"""A rank's end of the emulated link, which all its groups share.

[Note: one link for all groups]
Each group has a thread of its own, and the data of two groups may really move at once; but in the model a rank has one
link, so that their times must not overlap. Every collective and message books its time here. A rank sends and receives
at once (full duplex): a collective does both, a message one of them.

What several ranks take part in must lie at the same time on all of them. Each books the first free time from the last
arrival on, and they agree on the latest of these; whoever was earlier books again from there, until all find that time
free. Bookings only ever move to later times, so this ends, and as nobody waits for a booking, groups that the ranks use
in different orders do not block each other. With a single group nothing else is booked, and the ranks need not agree.
"""

import threading
from collections.abc import Callable, Hashable
from typing import NamedTuple

from overlaplab_engine.network.link import Link

OUT, IN = 1, 2
"""The two directions of a link, as bits."""
BOTH_WAYS = OUT | IN
KEPT_NS = 200_000_000
"""Bookings that ended so long before another begins are forgotten: nothing arrives so late."""


class _Booking(NamedTuple):
    begin_ns: int
    end_ns: int
    ways: int


class Wire:
    """What is booked on the link of one rank, in ns by the rank's own clock."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.users = 0
        """Groups and lanes of messages that use it."""
        self._booked: dict[Hashable, _Booking] = {}
        self._lock = threading.Lock()

    @property
    def shared(self) -> bool:
        """Whether more than one group or lane uses it."""
        return self.users > 1

    def add_user(self) -> None:
        with self._lock:
            self.users += 1

    def remove_user(self) -> None:
        with self._lock:
            self.users -= 1

    def book(self, key: Hashable, earliest_ns: int, duration_ns: int, ways: int = BOTH_WAYS) -> int:
        """Book the first free time from `earliest_ns` on, instead of what `key` had booked; returns its beginning."""
        with self._lock:
            self._booked.pop(key, None)
            begin = earliest_ns
            for other in sorted(self._booked.values()):
                if other.ways & ways and other.begin_ns < begin + duration_ns and begin < other.end_ns:
                    begin = other.end_ns
            self._put(key, begin, begin + duration_ns, ways)
            return begin

    def correct_booking(self, key: Hashable, begin_ns: int, end_ns: int, ways: int = BOTH_WAYS) -> None:
        with self._lock:
            self._put(key, begin_ns, end_ns, ways)

    def agree(
        self,
        key: Hashable,
        earliest_ns: int,
        duration_ns: int,
        ways: int,
        latest: Callable[[int], int],
        offset_ns: int = 0,
    ) -> int:
        """Book a time that is free on all members' links; returns its beginning.

        `earliest_ns` and the result are by the members' common clock, which is `offset_ns` ahead of this rank's; all
        members give the same. `latest` returns the greatest of the members' numbers.
        """
        while True:
            begin = latest(self.book(key, earliest_ns - offset_ns, duration_ns, ways) + offset_ns)
            if begin == earliest_ns:
                return begin
            earliest_ns = begin

    def _put(self, key: Hashable, begin_ns: int, end_ns: int, ways: int) -> None:
        self._booked = {k: booking for k, booking in self._booked.items() if booking.end_ns > begin_ns - KEPT_NS}
        self._booked[key] = _Booking(begin_ns, end_ns, ways)
