"""Events one by one from text that is not valid JSON: damaged ones are repaired if possible, and skipped otherwise."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import islice
from typing import Any

from overlaplab.load.file.decode import FileEvent, event_from_object

_SEPARATORS = re.compile(r"[\s,\[]*")
_AFTER = re.compile(r"[\s,\]]*")
_NEXT = re.compile(r"\}\s*(?:,\s*(?=\{)|(?=\]))")
"""A place where an event may end and the next begin, or the array may end."""
_BETWEEN = ", \t\r\n"
_WINDOW = 1 << 15
_MOST_REPAIRED = 1 << 18  # characters
_CANDIDATES = 4
"""Places tried as the end of a damaged event; the first ones may lie inside it."""
_INCOMPLETE_CHARACTERS = 16
_ESCAPES = re.compile(r"\\(?:[\"\\/bfnrt]|u[0-9a-fA-F]{4}|)")
_TOKENS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|,(?=\s*[}\]])|-?\b(?:nan|inf|infinity)\b', re.S | re.I)
_CLOSING = re.compile(r'\\"(?=\s*(?:,\s*"|\}|:))')
_MOST_DIGITS = 40


def one_by_one(data: bytes, final: bool, repairs: Counter[str]) -> tuple[list[tuple[bytes, FileEvent]], bytes, bool]:
    """The events, each after its text; the remaining text, which continues in what follows; whether the array ended.

    `final`: no more text follows. Counts in `repairs` what was repaired and what was left out.
    """
    whole = data.decode(errors="surrogateescape")
    reading, events, start, size = _Reading(repairs), list[tuple[bytes, FileEvent]](), 0, _WINDOW
    while not reading.ended and start < len(whole):
        end = min(start + size, len(whole))
        events += reading.events(whole[start:end], final and end == len(whole))
        start, size = start + reading.at, _WINDOW if reading.at else 2 * size
        if end == len(whole):
            break
    return events, whole[start:].encode(errors="surrogateescape"), reading.ended


class _Reading:
    """A place in a window of the text that moves from event to event.

    Windows are small because the decoder counts a window's lines for every error that it reports.
    """

    def __init__(self, repairs: Counter[str]) -> None:
        self.at = 0
        """How much of the window has been read."""
        self.ended = False
        self._text = ""
        self._final = False
        self._raw: dict[str, object] = {}
        self._repairs = repairs
        self._absent_numbers = 0
        self._lost = False
        """Whether the last event was damaged, so that the next closing bracket is ambiguous."""
        self._end: int | None = None
        """Where the array ends, unless more events follow."""
        numbers: dict[str, Any] = {"parse_float": str, "parse_int": _integer, "parse_constant": self._count_absent}
        self._decoder = json.JSONDecoder(strict=False, **numbers)

    def events(self, text: str, final: bool) -> list[tuple[bytes, FileEvent]]:
        """The events, each after its text, up to the end of the array, or the last whole one in the window."""
        self._text, self._final, self.at, self._end = text, final, 0, None
        events: list[tuple[bytes, FileEvent]] = []
        while self._approach():
            start = self.at
            try:
                raw = self._object()
            except _Incomplete:
                break
            if raw is None:
                self._lost = True
                if not self._skip():
                    break
                self._repairs["damaged events were left out"] += 1
            elif "ph" in raw or "ts" in raw:
                own_text = self._text[start : self.at].rstrip(_BETWEEN).encode(errors="surrogateescape")
                events.append((own_text, event_from_object(raw, self._repairs)))
                self._lost, self._end = False, None
        if self._end is not None and final:
            self.at, self.ended = self._end, True
        return events

    def _approach(self) -> bool:
        """Move to the next value, and return whether there is one."""
        while self._pass_separators():
            if self._text[self.at] != "]":
                return True
            after = _AFTER.match(self._text, self.at + 1)
            follows = self._text[after.end() : after.end() + 1] if after else ""
            if follows == "{":
                self.at += 1  # events follow, so it is not the end of their array
            elif not follows and not self._final:
                return False
            elif not self._lost:
                self.at, self.ended = self.at + 1, True
                return False
            else:
                self._end = self._end or self.at + 1
                if not self._skip():
                    return False
        return False

    def _pass_separators(self) -> bool:
        """Move to a possible value or the end of the array, and return whether there is one."""
        match = _SEPARATORS.match(self._text, self.at)
        self.at = match.end() if match else self.at
        return self.at < len(self._text)

    def _skip(self) -> bool:
        """Move past the next possible end of an event, and return whether there is one."""
        match = _NEXT.search(self._text, self.at)
        if match is None:
            self.at = len(self._text) if self._final else self.at
            return False
        self.at = match.end()
        return True

    def _object(self) -> dict[str, object] | None:
        """The object here; None if it cannot be read, empty if it is something else."""
        try:
            raw, self.at = self._decode(self._text, self.at)
        except (ValueError, RecursionError) as error:
            if not self._final and _is_incomplete(error, len(self._text)):
                raise _Incomplete from None
            return self._repair_object()
        return raw

    def _repair_object(self) -> dict[str, object] | None:
        """The object here, if its text can be repaired so that it ends where an event may end; else None."""
        ends = [match.end() for match in islice(_NEXT.finditer(self._text, self.at), _CANDIDATES)]
        if not self._final and len(ends) < _CANDIDATES and len(self._text) - self.at < _WINDOW:
            raise _Incomplete
        for end in ends or [len(self._text)] * self._final:  # at the end of the file, all that is left
            if end - self.at > _MOST_REPAIRED:
                break
            piece = self._text[self.at : end].rstrip(_BETWEEN)
            # In the second reading a backslash is literal before what looks like a closing quote.
            for text in (piece, _CLOSING.sub(r'\\\\"', piece)):
                repaired = _TOKENS.sub(_token, _ESCAPES.sub(_escape, text))
                try:
                    raw, used = self._decode(repaired, 0)
                except (ValueError, RecursionError):
                    continue
                if used == len(repaired):
                    self._repairs["events with invalid escapes were read literally"] += "\\" in repaired
                    self.at = end
                    return raw
        return None

    def _decode(self, text: str, at: int) -> tuple[dict[str, object], int]:
        self._absent_numbers = 0
        raw, end = self._decoder.raw_decode(text, at)
        if self._absent_numbers:
            self._repairs["values that are not numbers (NaN, Infinity) were taken as absent"] += self._absent_numbers
        return raw if isinstance(raw, dict) else {}, end

    def _count_absent(self, _: str) -> None:
        self._absent_numbers += 1


def _escape(match: re.Match[str]) -> str:
    return match[0] if len(match[0]) > 1 else "\\\\"


def _token(match: re.Match[str]) -> str:
    token = match[0]
    if token[0] == '"':
        return token
    return "" if token == "," else "NaN"


class _Incomplete(Exception):  # noqa: N818 (it is not an error)
    """The event continues in text that has not been read yet."""


def _is_incomplete(error: Exception, size: int) -> bool:
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated") or error.pos >= size - _INCOMPLETE_CHARACTERS


def _integer(text: str) -> int | None:
    return int(text) if len(text) <= _MOST_DIGITS else None
