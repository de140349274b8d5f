"""A gate that holds up a GPU's stream without a kernel: the stream waits until a number in the host's memory is great
enough, and a process, the gate's keeper, writes that number when the time has come.

[Note: the keeper is a process]
The keeper must notice within microseconds that a collective has begun and that its time is over, so it polls all the
time. A Python thread that polls would hold the interpreter's lock (GIL), which the training needs. A thread that sleeps
between polls wakes up 50 µs late, and then waits for the lock for up to 5 ms. It could even deadlock: the training may
hold the lock in a launch that waits for space in the device's queue, and only the gate's opening would make space. A
thread in C would need a compiler on the user's machine. A process of its own has none of these troubles; it occupies
one core.
"""

import ctypes
import mmap
import os
import subprocess
import sys
import threading
import time

from overlaplab_engine.errors import EngineError
from overlaplab_engine.network import gate_keeper
from overlaplab_engine.network.gate_keeper import CLOSING, OPEN, PAGE, READY, RELEASED

__all__ = ["Gate"]

STARTING_S = 30.0
"""How long the keeper may take to start."""
ENDING_S = 10.0
"""How long it may take to end."""


class Gate:
    """The shared page (see `overlaplab_engine.network.gate_keeper`) and the keeper's process."""

    def __init__(self) -> None:
        """Start the keeper. EngineError where that cannot be."""
        if not hasattr(os, "memfd_create"):
            raise EngineError("--link-wait host needs Linux; use --link-wait kernel")
        fd = os.memfd_create("overlaplab-gate")
        try:
            os.ftruncate(fd, PAGE)
            self._page = mmap.mmap(fd, PAGE)
            command = [sys.executable, "-I", "-S", gate_keeper.__file__, str(fd), str(os.getpid())]
            self._keeper = subprocess.Popen(command, pass_fds=[fd], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        finally:
            os.close(fd)
        self._words = memoryview(self._page).cast("Q")
        self._closing = False
        self._watch = threading.Thread(target=self._watch_keeper, name="gate-watch", daemon=True)
        self._watch.start()
        deadline = time.monotonic() + STARTING_S
        while not self._words[READY]:
            if not self._watch.is_alive() or time.monotonic() > deadline:
                self.close()
                raise EngineError("--link-wait host: the gate keeper's process does not start; use --link-wait kernel")
            time.sleep(0.001)

    @property
    def address(self) -> int:
        """Where the page begins in this process' memory."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._page))

    def check(self) -> None:
        """EngineError if the keeper has ended by itself; then the gate is open."""
        if not self._closing and not self._watch.is_alive():
            code = self._keeper.returncode
            raise EngineError(f"--link-wait host: the gate keeper's process has ended with code {code}; record again")

    def close(self) -> None:
        """End the keeper; whatever waits goes on, and nothing waits any more."""
        self._closing = True
        self._words[CLOSING] = 1
        self._watch.join(ENDING_S)
        if self._watch.is_alive():
            self._keeper.kill()
            self._watch.join()

    def free(self) -> None:
        """Give the page back, which no device may know any more."""
        self._words.release()
        self._page.close()

    def _watch_keeper(self) -> None:
        """Open the gate when the keeper ends, even if it was killed."""
        self._keeper.wait()
        self._words[RELEASED] = OPEN
