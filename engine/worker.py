"""One rank as a process: how it starts, and how it ends when something fails."""

import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import NoReturn

from engine.comm import is_lost_peer
from engine.config import Config
from engine.train import record

__all__ = ["work"]

FAULT = 2
"""Exit code of bad input and of faults."""
MANAGED = "OVERLAPLAB_LAUNCHER"
"""Set in the environment of ranks that `engine.launch` started: it tells their errors, they need not."""
TRACEBACK = "OVERLAPLAB_TRACEBACK"
"""Set it to see where an error came from."""
GRACE_S = 3.0
"""How long a rank that lost a peer waits before it ends, so that the peer's end is seen first."""
CLOSING_S = 8.0
"""How long a rank that fails may take to close its recording."""


def work(config: Config, argv: list[str]) -> None:
    """Record on this rank; ends the process with exit code 2 on any error.

    SIGINT has its default action: a main thread that waits inside a collective would never run a Python handler.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _end_with_parent()
    try:
        record(config, argv)
    except BaseException as error:
        fail(error)


def fail(error: BaseException) -> NoReturn:
    """Tell the error once and end this process, whatever its threads are doing."""
    if TRACEBACK in os.environ:
        traceback.print_exception(error)
    lost = is_lost_peer(error)
    message = describe(error)
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path and not lost:
        with open(path, "w") as file:
            json.dump({"message": message, "timestamp": int(time.time())}, file)
    if lost:
        time.sleep(GRACE_S)
    if MANAGED not in os.environ:
        rank = os.environ.get("RANK", "0")
        text = f"lost another rank ({message})" if lost else message
        print(f"overlaplab record: rank {rank}: {text}", file=sys.stderr, flush=True)
    os._exit(FAULT)


def describe(error: BaseException) -> str:
    """An error on one line."""
    text = " ".join(str(error).split()) or "no message"
    return text if type(error).__name__ == "EngineError" else f"{type(error).__name__}: {text}"


def _end_with_parent() -> None:
    """End when the launcher, or torchrun, is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(FAULT)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
