"""What the server settles, so that each page takes less."""

from __future__ import annotations

import gc
import importlib
import time
from functools import cache
from threading import Lock

from altair.utils import schemapi

_SLOW_S = 0.01
_THAWED_S = 60.0
_FIRST_PAGE = Lock()


class Resting:
    """A callback of the garbage collector: what a slow look at all objects leaves is passed over from then on.

    Runs that are kept, what was drawn of them and modules that came later make Streamlit's look after each page ever
    slower (70 ms with two of the sample runs). What is passed over is still freed when nothing refers to it, but for
    cycles; so once in a while the collector looks at everything again.
    """

    def __init__(self, slow_s: float = _SLOW_S, thawed_s: float = _THAWED_S) -> None:
        self._slow_s = slow_s
        self._thawed_s = thawed_s
        self._began = 0.0
        self._thawed = time.monotonic()

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Called by the collector before and after each look at a generation."""
        if info["generation"] < 2:
            return
        if phase == "start":
            self._began = time.thread_time()
        elif time.thread_time() - self._began >= self._slow_s:
            if time.monotonic() - self._thawed >= self._thawed_s:
                self._thawed = time.monotonic()
                gc.unfreeze()  # the next look is at everything, and slow, and what it leaves rests again
            else:
                gc.freeze()


def rest_modules() -> None:
    """Let the garbage collector pass over what modules consist of, and Altair build charts unchecked, once per server.

    Pages that are asked for meanwhile wait. Streamlit has the collector look at every object after each run of the
    script: with Altair's classes 120 ms, without 5. Charts are held against Vega-Lite's schema by the tests.
    """
    with _FIRST_PAGE:
        _rest_modules()


@cache
def _rest_modules() -> None:
    importlib.import_module("overlaplab.charts")
    schemapi.disable_debug_mode()
    gc.collect()
    gc.freeze()
    gc.callbacks.append(Resting())
