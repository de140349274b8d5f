"""The keys of a trace beside `traceEvents`, which describe its process."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from overlaplab.load.file.columns import number
from overlaplab.load.file.communication import group_description

if TYPE_CHECKING:
    from overlaplab.events import Group

_LIST = re.compile(r"\[ *\d{1,9}(?: *, *\d{1,9})* *\]")
TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")


class Keys(msgspec.Struct):
    """The keys that are read, with unchecked values."""

    distributedInfo: Any = None  # noqa: N815 (the file's spelling)
    baseTimeNanoseconds: Any = None  # noqa: N815
    deviceProperties: Any = None  # noqa: N815
    host_name: Any = None


_KEYS = msgspec.json.Decoder(Keys)


class Process(TypedDict):
    """The process, from `distributedInfo` and `host_name`; None where unknown."""

    rank: int | None
    world_size: int | None
    backend: str | None
    host: str | None
    groups: tuple[Group, ...]


def keys_before(text: bytes) -> Keys | None:
    """The keys in text that ends with the opening bracket of `traceEvents`; None if that is in a nested value."""
    try:
        return _KEYS.decode(text + b"]}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return None if "truncated" in str(error) and b"\\u" not in text else _search_keys(text)


def keys_after(text: bytes, repairs: Counter[str]) -> Keys:
    """The keys in the text after the array's closing bracket."""
    text = text.strip()
    if text in (b"", b"}"):
        return Keys()
    whole = b"{" + text.lstrip(b"], \t\r\n")
    try:
        return _KEYS.decode(whole)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        trailing = TRAILING.search(str(error))
        repairs["stretch of text after the events was no JSON and was left out"] += 1
        return _search_keys(whole[: int(trailing[1])] if trailing else whole)


def _search_keys(text: bytes) -> Keys:
    """The keys in text that is not JSON as a whole."""
    characters = text.decode(errors="replace")
    return Keys(*(_value(characters, name) for name in Keys.__struct_fields__))


def _value(text: str, name: str) -> object:
    for match in re.finditer(rf'"{name}"\s*:\s*', text):
        try:
            return json.JSONDecoder(strict=False).raw_decode(text, match.end())[0]
        except (ValueError, RecursionError):
            continue
    return None


def device_names(keys: Keys) -> tuple[str, ...]:
    """The names in `deviceProperties`, each once: devices that the process could see, whether or not it used them."""
    listed = keys.deviceProperties if isinstance(keys.deviceProperties, list) else []
    names = [_text(device.get("name", "unnamed")) for device in listed if isinstance(device, dict)]
    return tuple(dict.fromkeys(names))


def base_ns(keys: Keys, repairs: Counter[str]) -> int:
    """The offset of all times; 0 without a usable value."""
    base = number(keys.baseTimeNanoseconds)
    if base < 0 and keys.baseTimeNanoseconds is not None:
        repairs["baseTimeNanoseconds that is no time was taken as absent"] += 1
    return max(0, base)


def process(keys: Keys) -> Process:
    """The process, from `distributedInfo` and `host_name`."""
    info = keys.distributedInfo if isinstance(keys.distributedInfo, dict) else {}
    host = _text(keys.host_name) if isinstance(keys.host_name, str) and keys.host_name else None
    rank, size = number(info.get("rank")), number(info.get("world_size"))
    backend, groups = info.get("backend"), info.get("pg_config")
    return Process(
        rank=rank if rank >= 0 else None,
        world_size=size if size > 0 else None,
        backend=_text(backend) if isinstance(backend, str) else None,
        host=host,
        groups=tuple(_group(group) for group in groups if isinstance(group, dict)) if isinstance(groups, list) else (),
    )


def _group(raw: dict[str, Any]) -> Group:
    from overlaplab.events import Group  # with pandas, for which processes that only decode do not wait

    size, ranks = number(raw.get("pg_size")), raw.get("ranks")
    if isinstance(ranks, str):  # as kineto writes it by itself, without torch
        ranks = ranks[1:-1].split(",") if _LIST.fullmatch(ranks) else None
    members = [number(rank) for rank in ranks] if isinstance(ranks, list) else []
    return Group(
        name=_text(raw.get("pg_name", "")),
        description=group_description(_text(raw.get("pg_desc", ""))),
        size=size if size >= 0 else None,
        ranks=tuple(members) if min(members, default=0) >= 0 else (),
    )


def _text(value: object) -> str:
    """A value as text that UTF-8 can encode: JSON may contain half a surrogate pair."""
    return str(value).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
