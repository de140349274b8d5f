"""The gate keeper: a process that lets a GPU's stream go on once a collective has taken its time.

    python gate_keeper.py FD PARENT

FD is the descriptor of one page of memory, which the device, the training's process (its id is PARENT) and this process
share. `network.gate` starts it, and says why it is a process. It imports the standard library alone, so that it starts
within milliseconds.

The page holds one number per cache line. Each number has one writer, which writes it by a single store of 64 bits. So
nobody reads half a number, and nothing depends on the order in which stores to different numbers become visible.
"""

import gc
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

__all__ = ["BEGUN", "CLOSING", "OPEN", "ORDER", "PAGE", "READY", "RELEASED", "keep", "order"]

PAGE = 4096
"""Bytes of the shared page."""

BEGUN = 0
"""Where the device writes the number of the collective that has begun; numbers grow."""
ORDER = 8
"""Where the device then writes how long this collective is to take; see `order`."""
RELEASED = 16
"""Where the keeper writes the number of the collective that may end; the device waits until it is great enough."""
CLOSING = 24
"""Where the training's process writes 1 to end the keeper."""
READY = 32
"""Where the keeper writes 1 when it has begun to poll."""

OPEN = 1 << 62
"""What the training's process writes to `RELEASED` when there is no keeper any more: every stream goes on."""

NUMBER_BITS = 16
POLLS = 4096
"""After so many polls, about a millisecond, the keeper asks whether the training's process is still there."""


def order(number: int, ns: int) -> int:
    """That collective `number` takes `ns`, below 78 hours; in 64 bits, the lowest 16 of which are the number's."""
    return ns << NUMBER_BITS | number % (1 << NUMBER_BITS)


def keep(words: memoryview, orphaned: Callable[[], bool]) -> None:
    """Release each collective when its time is over, until `CLOSING` is set or `orphaned()` is true.

    `words` are the page's, 64 bits each. A collective whose launch failed gets no order; then the next one begins.
    """
    number = begun_ns = 0
    for _ in _polls(words, orphaned):
        if words[BEGUN] != number:
            number, begun_ns = words[BEGUN], time.perf_counter_ns()
        elif words[RELEASED] != number:
            ns, of = divmod(words[ORDER], 1 << NUMBER_BITS)
            if of == number % (1 << NUMBER_BITS) and time.perf_counter_ns() >= begun_ns + ns:
                words[RELEASED] = number


def _polls(words: memoryview, orphaned: Callable[[], bool]) -> Iterator[None]:
    polls = 0
    while not words[CLOSING]:
        yield
        polls += 1
        if polls % POLLS == 0 and orphaned():
            return


def main(fd: int, parent: int) -> None:
    """Keep the gate for the process `parent`, which opens it when this one has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the training's process, which ends this one
    gc.disable()
    words = memoryview(mmap.mmap(fd, PAGE)).cast("Q")
    words[READY] = 1
    keep(words, lambda: os.getppid() != parent)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
