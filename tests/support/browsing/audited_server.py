"""The app's server with a record of whom it speaks to."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from browsing.browser import serving

AUDIT = """
import os, sys
def note(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.bind", "socket.sendto"):
        with open(os.environ["SEEN_CONNECTIONS"], "a") as file:
            file.write(f"{event} {arguments[-1] if event != 'socket.getaddrinfo' else arguments[0]!r}\\n")
sys.addaudithook(note)
"""
"""Python runs it at its start, in the server and in whatever the server starts."""


@dataclass
class Served:
    """The app on the stranger's runs, as a process."""

    address: str
    process: subprocess.Popen[bytes]
    connections: Path
    """Gets a line for each host that the process, or one that it starts, connects to, looks up or binds to."""

    def most_memory(self) -> int:
        """The most bytes of memory that the process has had so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024


@contextmanager
def audited(folder: Path, notes: Path) -> Iterator[Served]:
    """The app on a folder; what it connects to is written down in the other."""
    (notes / "sitecustomize.py").write_text(AUDIT)
    connections = notes / "connections.txt"
    environment = {"PYTHONPATH": str(notes), "SEEN_CONNECTIONS": str(connections)}
    line = ("-m", "overlaplab", "app", str(folder), "--port", "{port}")
    with serving(*line, folder=folder, environment=environment) as (address, process):
        yield Served(address, process, connections)
