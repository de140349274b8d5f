"""From the text of one file to tables, in bounded memory, even if the file is damaged."""

from overlaplab.load.file.trace_file import TraceFile, read_trace

__all__ = ["TraceFile", "read_trace"]
