"""Deflate by isal, which takes a third of the time, or by the standard library, which reads and writes the same."""

from __future__ import annotations

import zlib
from contextlib import suppress
from importlib import import_module
from typing import Any

deflate: Any = zlib
with suppress(ImportError):
    deflate = import_module("isal.isal_zlib")
