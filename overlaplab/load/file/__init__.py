"""From the text of one file to tables, in bounded memory, even if the file is damaged."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlaplab.load.file.trace_file import NotATraceError, TraceFile, read_trace
else:

    def __getattr__(name: str) -> object:  # processes that only decode do not wait for pandas
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module("overlaplab.load.file.trace_file"), name)


__all__ = ["NotATraceError", "TraceFile", "read_trace"]
