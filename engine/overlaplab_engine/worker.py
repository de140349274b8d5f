"""The process of one rank."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from overlaplab_engine import faults
from overlaplab_engine.config import Config
from overlaplab_engine.train import record


def work(config: Config, argv: list[str]) -> NoReturn:
    """Record on this rank and end the process."""
    run(partial(record, config, argv))


def run(job: Callable[[], None]) -> NoReturn:
    """Do this rank's job and end the process, with exit code 2 after any error.

    SIGINT gets its default action, because a main thread inside a collective would never run a Python handler.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _end_with_parent()
    try:
        job()
    except BaseException as error:
        faults.end(error)
    finish()


def finish() -> NoReturn:
    """End a process whose work is done, without shutting down the interpreter.

    A gloo thread that releases a Python object during the shutdown would abort the process ("terminate called without
    an active exception"); this was seen in 1 of 14 runs.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _end_with_parent() -> None:
    """End when the launcher or torchrun is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(faults.FAULT)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
