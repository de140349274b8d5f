"""Importing this makes whoever asks DNS for a name fail, and notes it in the file ASKED."""

import os
import socket
import traceback


def fail(*_):
    with open(os.environ["ASKED"], "a") as asked:
        asked.writelines(traceback.format_stack())
    raise OSError("no DNS here")


def forbid():
    socket.getfqdn = socket.gethostbyaddr = fail


forbid()
