"""One rank as a process."""

import os
import signal
import threading
import time

from engine import faults
from engine.config import Config
from engine.train import record

__all__ = ["work"]


def work(config: Config, argv: list[str]) -> None:
    """Record on this rank; ends the process with exit code 2 on any error.

    SIGINT has its default action: a main thread that waits inside a collective would never run a Python handler.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _end_with_parent()
    try:
        record(config, argv)
    except BaseException as error:
        faults.end(error)


def _end_with_parent() -> None:
    """End when the launcher, or torchrun, is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(faults.FAULT)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
