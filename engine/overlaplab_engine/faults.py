"""How a rank ends when something fails: it tells the error once, closes its recording if it can, and is gone.

[Note: who began it]
When a rank fails, the others fail too, for want of it. So a rank that only lost a peer tells nothing at first and waits
a while to be ended by the launcher, which by then has seen the first one's end. If nobody ends it, the other rank is
stuck and says nothing: then the loss is what there is to tell, marked so that any real error comes before it.
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

__all__ = ["FAULT", "MANAGED", "end", "tell"]

FAULT = 2
"""Exit code of bad input and of faults."""
MANAGED = "OVERLAPLAB_LAUNCHER"
"""Set in the environment of ranks that `overlaplab_engine.launch` started: it tells their errors, they need not."""
TRACEBACK = "OVERLAPLAB_TRACEBACK"
"""Set it to see where an error came from."""
GRACE_S = 3.0
"""How long a rank that lost a peer waits to be ended."""
CLOSING_S = 10.0
"""How long a rank that fails may take to close its recording."""

_told: list[BaseException] = []
_asked_to_end = threading.Event()


def tell(error: BaseException) -> None:
    """Tell this rank's error, to the launcher or on stderr; from now on this process ends within `CLOSING_S`.

    Called where the error passes by an open recording, so that closing it delays nobody. Only the first call counts.
    """
    if _told:
        return
    _told.append(error)
    watchdog = threading.Timer(CLOSING_S, _leave, (error,))
    watchdog.daemon = True
    watchdog.start()
    signal.signal(signal.SIGTERM, _note_request)  # the recording is closed first
    if TRACEBACK in os.environ:
        traceback.print_exception(error)
    if is_lost_peer(error):
        return
    _write(_describe(error))


def end(error: BaseException) -> NoReturn:
    """Tell the error and end this process, whatever its threads are doing."""
    tell(error)
    if is_lost_peer(_told[0]):  # [Note: who began it]
        deadline = time.monotonic() + GRACE_S
        while not _asked_to_end.is_set() and time.monotonic() < deadline:
            time.sleep(0.05)
    _leave(_told[0])


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
    """Leave the message where the launcher reads it, and say it unless the launcher will."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        data = {"message": message, "timestamp": int(time.time()), "time_ns": time.time_ns(), "lost_peer": lost_peer}
        with open(path, "w") as file:
            json.dump(data, file)
    if MANAGED not in os.environ:
        print(f"overlaplab record: rank {os.environ.get('RANK', '0')}: {message}", file=sys.stderr, flush=True)
