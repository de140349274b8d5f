"""What lies in the server's memory for good."""

from __future__ import annotations

import gc
import importlib
from functools import cache

__all__ = ["rest_modules"]


@cache
def rest_modules() -> None:
    """Let the garbage collector pass over what modules consist of, once per server.

    Streamlit has it look at every object after each run of the script: with Altair's classes 120 ms, without 5.
    """
    importlib.import_module("overlaplab.charts")
    gc.collect()
    gc.freeze()
