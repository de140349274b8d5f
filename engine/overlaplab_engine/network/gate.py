"""A gate that holds up a GPU's stream without a kernel. The stream waits until a number in the host's memory is large
enough; a separate process, the gate keeper, writes that number when the time has come.

[Note: the keeper is a process]
The keeper must notice within microseconds that a collective has begun and that its time is over, so it polls without
pause. A polling Python thread would hold the interpreter's lock (GIL), which the training needs. A thread that sleeps
between polls wakes up 50 µs late and may then wait for the lock for 5 ms. It could even deadlock: the training may hold
the lock in a launch that waits for space in the device's queue, and only opening the gate would make space. A thread
in C would need a compiler on the user's machine. A separate process avoids all this, at the price of one core.
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

STARTING_S = 30.0
"""How long the keeper may take to start."""
ENDING_S = 10.0
"""How long the keeper may take to end."""


class Gate:
    """The shared page (see `overlaplab_engine.network.gate_keeper`) and the keeper's process."""

    def __init__(self) -> None:
        """Start the keeper. EngineError if that fails."""
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
        """The page's address in this process."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._page))

    def check(self) -> None:
        """EngineError if the keeper ended unexpectedly; the gate is then open."""
        if not self._closing and not self._watch.is_alive():
            code = self._keeper.returncode
            raise EngineError(f"--link-wait host: the gate keeper's process has ended with code {code}; record again")

    def close(self) -> None:
        """End the keeper and leave the gate open: waiting streams go on."""
        self._closing = True
        self._words[CLOSING] = 1
        self._watch.join(ENDING_S)
        if self._watch.is_alive():
            self._keeper.kill()
            self._watch.join()

    def free(self) -> None:
        """Free the page; call it when no device has the page registered."""
        self._words.release()
        self._page.close()

    def _watch_keeper(self) -> None:
        """Open the gate when the keeper ends, even if it was killed."""
        self._keeper.wait()
        self._words[RELEASED] = OPEN
