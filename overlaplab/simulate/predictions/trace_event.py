"""A range of a predicted trace, and its thread."""

from __future__ import annotations

from msgspec import Struct

COMPUTES, LINK, BY_HAND = 1, 2, 3
"""The thread that computes, launches and waits, the link's own, and the one that makes hops by hand."""
LANES = 1 << 16
"""The first of the threads that carry messages, one for each sender and receiver."""
INSTANT_NS = 1


class Event(Struct, frozen=True):
    """A range of one thread, by times of the player."""

    thread: int
    name: str
    start_ns: int
    end_ns: int
