"""What the server settles once, so that each page takes less."""

from __future__ import annotations

import gc
import importlib
from functools import cache

from altair.utils import schemapi

__all__ = ["rest_modules"]


@cache
def rest_modules() -> None:
    """Let the garbage collector pass over what modules consist of, and Altair build charts unchecked, once per server.

    Streamlit has the collector look at every object after each run of the script: with Altair's classes 120 ms, without
    5. Charts are held against Vega-Lite's schema by the tests.
    """
    importlib.import_module("overlaplab.charts")
    schemapi.disable_debug_mode()
    gc.collect()
    gc.freeze()
