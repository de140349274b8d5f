"""Limits that keep what is no trace from taking minutes and gigabytes; each can be raised in the environment."""

from __future__ import annotations

import os

from overlaplab.errors import OverlaplabError


class Limit:
    """A number, unless the environment says another."""

    def __init__(self, name: str, default: int) -> None:
        self.name = name
        self._default = default

    @property
    def value(self) -> int:
        """The environment's number, else the default; an unreadable one counts as absent."""
        try:
            return int(float(os.environ[self.name]))
        except (KeyError, ValueError, OverflowError):
            return self._default

    def error(self, problem: str, *, path: object, remedy: str, enough: int | None = None) -> OverlaplabError:
        """Return the error for what exceeds the limit; `enough` would be a value to raise it to."""
        remedy += f" If this is intended, raise the limit with {self.name}={enough or 2 * self.value}."
        return OverlaplabError(problem, path=path, remedy=remedy)


MAX_TRACES = Limit("OVERLAPLAB_MAX_TRACES", 2048)
"""Most files of a folder, and most ranks in one file. Each takes milliseconds, however small it is."""
MAX_EVENTS = Limit("OVERLAPLAB_MAX_EVENTS", 20_000_000)
"""Most events of one file. Each takes about 65 bytes."""
MAX_RATIO = Limit("OVERLAPLAB_MAX_RATIO", 50)
"""Largest ratio of a gzip file's text to its size. Traces have up to 26; deflate's maximum is 1032."""
