"""Sleeps that end on time, and how long a thread ran, or waited for others."""

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

MARGIN_NS = 20_000
"""Sleeps are asked to end this much early, so that a late wake-up still meets the deadline."""
MOST_LATE_NS = 200_000
"""Longer delays come from a busy core and do not predict the next one, so the running mean counts no more than this."""


class Alarm:
    """Wakes a thread on time."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._late_ns = 0.0  # running mean of how late sleeps end

    def sleep_until(self, end_ns: int) -> None:
        """Sleep until shortly before `end_ns`, allowing for the usual wake-up delay, then spin for what is left."""
        wake_ns = end_ns - int(self._late_ns) - MARGIN_NS
        if (left_ns := wake_ns - self._now_ns()) > 0:
            time.sleep(left_ns / 1e9)
            late_ns = min(self._now_ns() - wake_ns, MOST_LATE_NS)
            self._late_ns += (late_ns - self._late_ns) / 8
        while self._now_ns() < end_ns:
            pass  # about 20 µs; another sleep would take longer


def wake_on_time() -> None:
    """Make this thread's sleeps end within microseconds: by default Linux may add 50 µs."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK, 1 ns


SCHEDSTAT = "/proc/thread-self/schedstat"

_open = threading.local()


class CoreTime(NamedTuple):
    """What the kernel has counted for a thread, in ns."""

    ran_ns: int
    """Time on a core."""
    delayed_ns: int
    """Time waiting for one."""


def core_time() -> CoreTime | None:
    """Read this thread's counts; None where the kernel does not count."""
    if not hasattr(_open, "file"):
        try:
            _open.file = os.open(SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            _open.file = None
    if _open.file is None:
        return None
    words = os.pread(_open.file, 64, 0).split()
    return CoreTime(int(words[0]), int(words[1])) if len(words) >= 2 and words[0] != b"0" else None


def blocked_ns() -> int:
    """How long this thread has neither run nor waited for a core since it began, give or take a constant.

    Where the kernel does not count the waiting for cores, that is blocked time, too.
    """
    counts = core_time()
    delayed_ns = 0 if counts is None else counts.delayed_ns
    return time.perf_counter_ns() - time.thread_time_ns() - delayed_ns  # `counts.ran_ns` may miss a tick


class _Waited(threading.local):
    ns = 0
    depth = 0


_waited = _Waited()


@contextlib.contextmanager
def note_wait() -> Iterator[None]:
    """Count this thread as waiting, for communication or whatever else a sleeping device does not make up for.

    Nested waits count once.
    """
    since_ns = time.perf_counter_ns()
    _waited.depth += 1
    try:
        yield
    finally:
        _waited.depth -= 1
        if _waited.depth == 0:
            _waited.ns += time.perf_counter_ns() - since_ns


def waited_ns() -> int:
    """How long this thread has waited within `note_wait` so far."""
    return _waited.ns
