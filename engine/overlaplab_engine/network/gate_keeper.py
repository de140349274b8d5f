"""The gate keeper: a process that lets a GPU's stream go on when a collective's modelled time is over.

    python gate_keeper.py FD PARENT

FD is the descriptor of one page of memory, shared by the device, the training process (whose id is PARENT) and this
process. `network.gate` starts it and explains why it is a process. It imports only the standard library, so that it
starts within milliseconds.

The page holds one number per cache line. Each number has one writer, which uses a single 64-bit store. So nobody reads
half a number, and nothing depends on the order in which stores to different numbers become visible.
"""

import gc
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable

PAGE = 4096
"""Bytes of the shared page."""

BEGUN = 0
"""Index of the word in which the device writes the number of the collective that has begun; numbers increase."""
ORDER = 8
"""Then the device writes here how long this collective is to take; see `order`."""
RELEASED = 16
"""The keeper writes here the number of the collective that may end; the device waits until it is large enough."""
CLOSING = 24
"""The training process writes 1 here to end the keeper."""
READY = 32
"""The keeper writes 1 here when it starts to poll."""

OPEN = 1 << 62
"""The training process writes this to `RELEASED` when the keeper has ended: every stream goes on."""

NUMBER_BITS = 16
POLLS = 4096
"""After this many polls, about a millisecond, the keeper checks that the training process is still there."""


def order(number: int, ns: int) -> int:
    """Encode in 64 bits that collective `number` takes `ns` (below 78 hours); the lowest 16 bits are the number's."""
    return ns << NUMBER_BITS | number % (1 << NUMBER_BITS)


def keep(words: memoryview, orphaned: Callable[[], bool]) -> None:
    """Release each collective when its time is over, until `CLOSING` is set or `orphaned()` is true.

    `words` is the page as 64-bit words. A collective whose launch failed gets no order; then the next one begins.
    """
    number = begun_ns = polls = 0
    while not words[CLOSING]:
        if words[BEGUN] != number:
            number, begun_ns = words[BEGUN], time.perf_counter_ns()
        elif words[RELEASED] != number:
            ns, ordered = divmod(words[ORDER], 1 << NUMBER_BITS)
            if ordered == number % (1 << NUMBER_BITS) and time.perf_counter_ns() >= begun_ns + ns:
                words[RELEASED] = number
        polls += 1
        if polls % POLLS == 0 and orphaned():
            return


def main(fd: int, parent: int) -> None:
    """Keep the gate for the process `parent`, which opens the gate when this process has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the training process, which ends this one
    gc.disable()
    words = memoryview(mmap.mmap(fd, PAGE)).cast("Q")
    words[READY] = 1
    keep(words, lambda: os.getppid() != parent)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
