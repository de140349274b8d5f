"""Events one by one out of text that is not JSON: what can be mended is mended, what cannot does not harm the rest."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import islice

from overlaplab.load.decode import Event, lenient

__all__ = ["one_by_one"]

_SEPARATORS = re.compile(r"[\s,]*")
_AFTER = re.compile(r"[\s,\]]*")
_NEXT = re.compile(r"\}\s*(?:,\s*(?=\{)|(?=\]))")
"""Where an event may end and the next begin, or the array may end."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_INCOMPLETE_CHARACTERS = 16
_ESCAPES = re.compile(r"\\(?:[\"\\/bfnrt]|u[0-9a-fA-F]{4}|)")
_TOKENS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|,(?=\s*[}\]])|-?\b(?:nan|inf|infinity)\b', re.S | re.I)
_CLOSING = re.compile(r'\\"(?=\s*(?:,\s*"|\}|:))')
_MOST_DIGITS = 40


def one_by_one(data: bytes, final: bool, repairs: Counter[str]) -> tuple[list[Event], bytes, bool]:
    """The events, what is left to be read together with more, and whether the array ended.

    `final` says that no more follows. Counts in `repairs` what was mended and what was left out.
    """
    reading = _Reading(data.decode(errors="surrogateescape"), final, repairs)
    events = reading.events()
    return events, reading.text[reading.at :].encode(errors="surrogateescape"), reading.ended


class _Reading:
    """A place in the text that moves from event to event."""

    def __init__(self, text: str, final: bool, repairs: Counter[str]) -> None:
        self.text = text
        self.at = 0
        self.ended = False
        self._final = final
        self._raw: dict[str, object] = {}
        self._repairs = repairs
        self._mended = False
        self._end: int | None = None
        """Of the array, if the last event that was read is the last one; after a damaged one nobody knows."""
        self._decoder = json.JSONDecoder(strict=False, parse_float=str, parse_int=_integer, parse_constant=self._absent)

    def events(self) -> list[Event]:
        """Read to the end of the array, of the text, or of its last whole event."""
        found: list[Event] = []
        lost = False
        while self._approach(lost):
            try:
                raw = self._one()
            except _Incomplete:
                break
            if raw is None:
                lost = True
                if not self._skip():
                    break
                self._repairs["damaged events were left out"] += 1
            elif "ph" in raw or "ts" in raw:
                found.append(lenient(raw, self._repairs))
                lost, self._end = False, None
        if self._end is not None and self._final:
            self.at, self.ended = self._end, True
        return found

    def _approach(self, lost: bool) -> bool:
        """Move to the next value; whether there is one."""
        while self._pass_separators():
            if self.text[self.at] not in "[]":
                return True
            after = _AFTER.match(self.text, self.at + 1)
            follows = self.text[after.end() : after.end() + 1] if after else ""
            if self.text[self.at] == "[" or follows == "{":
                self.at += 1  # events go on, so that it is not the end of their array
            elif not follows and not self._final:
                return False
            elif not lost:
                self.at, self.ended = self.at + 1, True
                return False
            else:
                self._end = self._end or self.at + 1
                if not self._skip():
                    return False
        return False

    def _pass_separators(self) -> bool:
        """Move to what is no space or comma; whether there is something."""
        match = _SEPARATORS.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.at < len(self.text)

    def _skip(self) -> bool:
        """Move behind the next place where an event may end; whether there is one."""
        match = _NEXT.search(self.text, self.at)
        if match is None:
            self.at = len(self.text) if self._final else self.at
            return False
        self.at = match.end()
        return True

    def _one(self) -> dict[str, object] | None:
        """The object here; None where it cannot be read, empty where it is something else."""
        error = self._read()
        if error is None:
            return self._raw
        if not self._final and _is_incomplete(error, len(self.text)):
            raise _Incomplete
        if not self._mended:
            self._mend()
            if self._read() is None:
                return self._raw
        return self._raw if self._read_unclosed() else None

    def _read(self) -> Exception | None:
        try:
            raw, self.at = self._decoder.raw_decode(self.text, self.at)
        except (ValueError, RecursionError) as error:
            return error
        self._raw = raw if isinstance(raw, dict) else {}
        return None

    def _mend(self) -> None:
        """Mend escapes, commas and numbers in all that is not cut off."""
        end = len(self.text) if self._final else self.text.rfind("}") + 1
        mended = _ESCAPES.sub(self._escape, self.text[self.at : end])
        self.text = _TOKENS.sub(self._token, mended) + self.text[end:]
        self.at, self._mended = 0, True

    def _escape(self, match: re.Match[str]) -> str:
        if match[0] != "\\":
            return match[0]
        self._repairs["invalid escapes were taken literally"] += 1
        return "\\\\"

    def _token(self, match: re.Match[str]) -> str:
        token = match[0]
        if token[0] == '"':
            return token
        return "" if token == "," else "NaN"

    def _absent(self, _: str) -> None:
        self._repairs["numbers that are none (NaN, Infinity) were taken as absent"] += 1

    def _read_unclosed(self) -> bool:
        """Read an object in which a text ends with a backslash, as paths on Windows do."""
        ends = [match.end() for match in islice(_NEXT.finditer(self.text, self.at), 2)]
        for end in ends or [len(self.text)]:
            piece = _CLOSING.sub(r'\\\\"', self.text[self.at : end])
            try:
                raw, used = self._decoder.raw_decode(piece)
            except (ValueError, RecursionError):
                continue
            if isinstance(raw, dict) and not piece[used:].strip(" ,\t\r\n"):
                self._repairs["invalid escapes were taken literally"] += 1
                self.at, self._raw = end, raw
                return True
        return False


class _Incomplete(Exception):  # noqa: N818 (it is not an error)
    """The event goes on in what was not read yet."""


def _is_incomplete(error: Exception, size: int) -> bool:
    return isinstance(error, json.JSONDecodeError) and (
        error.msg.startswith("Unterminated") or error.pos >= size - _INCOMPLETE_CHARACTERS
    )


def _integer(text: str) -> int | None:
    return int(text) if len(text) <= _MOST_DIGITS else None
