"""From the text of one file to tables, in bounded memory, even if the file is damaged."""

from overlaplab.load.file.trace_file import NotATraceError, TraceFile, read_trace

__all__ = ["NotATraceError", "TraceFile", "read_trace"]
