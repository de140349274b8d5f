"""One file's text becomes tables, in bounded memory, whatever it holds."""

from overlaplab.load.file.trace_file import TraceFile, read_trace

__all__ = ["TraceFile", "read_trace"]
