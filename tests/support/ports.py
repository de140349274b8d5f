"""Ports for what tests start."""

import secrets
import socket

PORTS = range(10_000, 32_000)
"""Below those from which the kernel takes one for each outgoing connection (32768 on Linux)."""


def free_port() -> int:
    """A port of 127.0.0.1 that is free, and stays so until its server starts.

    One that the kernel picks (`bind` to port 0) may belong to a connection of the tests beside this one a moment later.
    """
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
