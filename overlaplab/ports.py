"""Free ports for what listens on this machine."""

from __future__ import annotations

import errno
import secrets
import socket

_RANGE = range(10_000, 32_000)
"""Below those from which the kernel takes one for each outgoing connection (32768 on Linux)."""
_MOST_TRIED = 100


def free_port() -> int:
    """A port of 127.0.0.1 that is free, and stays so until its server starts.

    One that the kernel picks (`bind` to port 0) may belong to another program's connection a moment later.
    """
    while True:
        port = next_free_port("127.0.0.1", secrets.choice(_RANGE))
        if port is not None and port in _RANGE:
            return port


def next_free_port(host: str, port: int) -> int | None:
    """The first port from this one on where nobody listens yet; None if there is none near.

    Raises `OSError` if the host is no address of this machine.
    """
    family, *_, (address, *_) = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    for tried in range(port, min(port + _MOST_TRIED, 1 << 16)):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that has just closed is free
            try:
                probe.bind((address, tried))
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
            else:
                return tried
    return None
