"""How a rank ends after an error: it reports the error once, closes its recording if it can, and exits.

[Note: the first cause]
When a rank fails, the others lose a peer and fail too. So a rank that only lost a peer first reports nothing and waits
a while: the launcher, which sees the first rank's end, normally ends the others. If nobody ends this rank, the other
one is stuck and silent. Then the lost peer is reported, marked so that any real error takes precedence.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from types import FrameType
from typing import NoReturn

from overlaplab_engine.errors import EngineError
from overlaplab_engine.network.communicator import is_lost_peer

FAULT = 2
"""Exit code for bad input and other errors."""
MANAGED = "OVERLAPLAB_LAUNCHER"
"""Set for ranks that `overlaplab_engine.launch` started: the launcher prints their errors."""
TRACEBACK = "OVERLAPLAB_TRACEBACK"
"""If set, errors are printed with their traceback."""
GRACE_S = 3.0
"""How long a rank that lost a peer waits for the launcher to end it."""
CLOSING_S = 10.0
"""How long a failing rank may take to close its recording."""

_reported: list[BaseException] = []
_asked_to_end = threading.Event()


def tell(error: BaseException) -> None:
    """Report this rank's error, to the launcher or on stderr; afterwards the process ends within `CLOSING_S`.

    Call it before the recording is closed, so that closing delays no other rank. Only the first call counts.
    """
    if _reported:
        return
    _reported.append(error)
    watchdog = threading.Timer(CLOSING_S, _leave, (error,))
    watchdog.daemon = True
    watchdog.start()
    signal.signal(signal.SIGTERM, _note_request)  # close the recording before ending
    if TRACEBACK in os.environ:
        traceback.print_exception(error)
    if is_lost_peer(error):
        return
    _write(_describe(error))


def end(error: BaseException) -> NoReturn:
    """Report the error and end this process, whatever its threads are doing."""
    tell(error)
    if is_lost_peer(_reported[0]):  # [Note: the first cause]
        deadline = time.monotonic() + GRACE_S
        while not _asked_to_end.is_set() and time.monotonic() < deadline:
            time.sleep(0.05)
    _leave(_reported[0])


def _leave(error: BaseException) -> NoReturn:
    if is_lost_peer(error) and not _asked_to_end.is_set():
        _write(f"lost another rank ({_describe(error)})", lost_peer=True)
    os._exit(FAULT)


def _note_request(signum: int, frame: FrameType | None) -> None:
    _asked_to_end.set()


def _describe(error: BaseException) -> str:
    text = " ".join(str(error).split()) or "no message"
    return text if isinstance(error, EngineError) else f"{type(error).__name__}: {text}"


def _write(message: str, lost_peer: bool = False) -> None:
    """Write the message to the launcher's file, and print it unless the launcher does."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        data = {"message": message, "timestamp": int(time.time()), "time_ns": time.time_ns(), "lost_peer": lost_peer}
        with open(path, "w") as file:
            json.dump(data, file)
    if MANAGED not in os.environ:
        print(f"overlaplab record: rank {os.environ.get('RANK', '0')}: {message}", file=sys.stderr, flush=True)
