"""What the timeline's marks are called, and the known facts of one event."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any
from urllib.parse import unquote

from overlaplab.causes import Cause
from overlaplab.evidence.arrays import int_or_none
from overlaplab.findings.actions.words import cause_words
from overlaplab.findings.diagnosis.causes import collective_label
from overlaplab.findings.thresholds import SHORT_PAUSE_NS
from overlaplab.formats import text
from overlaplab.timeline.event_details import CollectiveDetails, EventDetails, LaunchDetails
from overlaplab.timeline.marks import CAUSE_MARKS, MarkKind
from overlaplab.vocabulary import label_fields, label_list
from overlaplab.words import kind_word, rank_word, rate, shorten, size_exact

_NAME_CHARACTERS = 1000  # characters of a name
_MOST_PARAMETERS = 3  # parameters of a bucket
_SILENT = ("modelled_ns", "dtype")  # fields of labels that names leave out


def exposed_name(row: Mapping[Any, Any]) -> str:
    """A row of `overlaplab.exposed` on the timeline: `waited for rank 3: bucket 5, all-reduce 19`."""
    cause, late = Cause(row["cause"]), int_or_none(row["late_rank"])
    overhead = cause is Cause.GAP and row["exposed_ns"] < SHORT_PAUSE_NS
    return f"{cause_words(cause, late, overhead=overhead)}: {collective_label(row)}"


def mark_word(mark: MarkKind) -> str:
    """What a kind of mark is called in the legend; of exposed time the cause, in words. Gaps may be long or short."""
    if mark is MarkKind.GAP:
        return "host paused, long or short"
    return cause_words(CAUSE_MARKS[mark]) if mark in CAUSE_MARKS else mark.value


def mark_name(name: str) -> str:
    """An event's name; of the engine's labels what they say, in words: `all-reduce of 5.23 MB, number 121, group 0`."""
    label = label_fields(name)
    if label is None:
        return shorten(name, _NAME_CHARACTERS)
    word, fields = label
    begin = word.replace("_", " ")
    if word == "comm" and "kind" in fields:
        begin = kind_word(unquote(fields.pop("kind")))
        if "bytes" in fields:
            begin += f" of {size_exact(int(fields.pop('bytes')))}"
    parts = [_field_words(key, value) for key, value in fields.items() if key not in _SILENT]
    return shorten(", ".join([begin, *parts]), _NAME_CHARACTERS)


def group_name(name: str) -> str:
    """A name of `WindowStatistics.kernels` in words: `all-reduce on the link` for `engine::comm all_reduce`."""
    if not name.startswith("engine::"):
        return name
    word, _, kind = name.removeprefix("engine::").partition(" ")
    return f"{kind_word(kind)} on the link" if word == "comm" and kind else word.replace("_", " ")


def _field_words(key: str, value: str) -> str:
    """One field of a label in words."""
    if key == "seq":
        return f"number {value}"
    if key == "link":
        return f"emulated link {unquote(value)}"
    if key == "sync":
        return "gradients are sent" if value == "1" else "gradients are kept"
    if key == "bytes":
        return size_exact(int(value))
    if key == "parameters":
        names = label_list(value)
        more = f" and {len(names) - _MOST_PARAMETERS} more" if len(names) > _MOST_PARAMETERS else ""
        return f"parameters {', '.join(names[:_MOST_PARAMETERS])}{more}"
    return f"{key.replace('_', ' ')} {unquote(value)}"


_FACT_CHARACTERS = 400  # of a name among an event's facts
_UNITS = ((1000, "ns", 1), (1_000_000, "µs", 1000), (10_000_000_000, "ms", 1_000_000), (inf, "s", 1_000_000_000))
"""(limit in ns, unit, its ns): durations below the limit have this unit."""
_DIGITS = ((10, 3), (1000, 2), (inf, 1))
"""(limit, digits): values below the limit have so many digits after the point."""


def event_facts(details: EventDetails) -> list[tuple[str, str]]:
    """Pairs of a fact's name and value, the most asked for first; unknown facts are left out."""
    facts: list[tuple[str, object]] = [
        ("name", shorten(mark_name(details["name"]), _FACT_CHARACTERS)),
        ("counts as", f"{details['counts_as']} ({shorten(details['category'], 40)})"),
        ("rank", rank_word(details["rank"])),
        ("step", details["step"]),
        ("start", _moment(details["start_ns"])),
        ("end", _moment(details["end_ns"])),
        ("lasts", _duration(details["duration_ns"])),
        ("device, stream", _device_and_stream(details)),
        ("process, thread", f"{shorten(details['process'], 60)}, {shorten(details['thread'], 60)}"),
        ("correlation", details["correlation"]),
    ]
    facts += _launch(details["launch"])
    if details["collective"] is not None:
        facts += _collective(details["collective"])
    return [(what, str(value)) for what, value in facts if value is not None]


def _moment(ns: int) -> str:
    """A time since the run's zero: in ms, to the µs."""
    return f"{text(ns, 'ns', 3, grouped=True)} ms"


def _duration(ns: int | None) -> str | None:
    """A duration in the unit that suits it, to the ns or four digits; as on the canvas (`lasting` in words.js)."""
    if ns is None:
        return None
    unit, scale = next((unit, scale) for below, unit, scale in _UNITS if abs(ns) < below)
    value = ns / scale
    digits = next(digits for below, digits in _DIGITS if abs(value) < below)
    words = f"{value:,.{digits}f}".rstrip("0").rstrip(".") if scale > 1 else str(ns)
    return f"{words} {unit}" if ns else "0 ms"


def _device_and_stream(details: EventDetails) -> str | None:
    numbers = [str(number) for number in (details["device"], details["stream"]) if number is not None]
    return ", ".join(numbers) or None


def _launch(launch: LaunchDetails | None) -> list[tuple[str, object]]:
    if launch is None:
        return []
    around = launch["operator"]
    return [
        ("launched by", shorten(launch["name"], _FACT_CHARACTERS)),
        ("in operator", None if around is None else shorten(around, _FACT_CHARACTERS)),
        ("launch began", f"{_moment(launch['start_ns'])}, {_duration(launch['delay_ns'])} before the event"),
        ("launch thread", shorten(launch["thread"], 60)),
    ]


def _arrival(collective: CollectiveDetails) -> str | None:
    """When this rank arrived, where that is not its start: so wait and transfer may exceed what the event lasts."""
    arrived, start = collective["arrived_ns"], collective["start_ns"]
    if arrived is None or start is None or arrived == start:
        return None
    side = "before" if arrived < start else "after"
    apart = _duration(abs(start - arrived))
    return f"{_moment(arrived)}, {apart} {side} its start: wait and transfer count from arrivals"


def _collective(collective: CollectiveDetails) -> list[tuple[str, object]]:
    is_message = ":" in (collective["group"] or "")  # such a group says from which rank to which
    group = collective["group"] if is_message else collective["group_description"] or collective["group"]
    size = collective["group_size"]
    bound = " or more: the transfer alone is not known" if collective["bus_is_lower_bound"] else ""
    bus = collective["bus_gb_per_s"]
    error = ", within clock error" if collective["within_clock_error"] else ""
    return [
        ("collective", f"{collective['index']}: {(collective['kind'] or 'unknown').replace('_', '-')}"),
        ("group", None if group is None else shorten(str(group), 80) + ("" if size is None else f", {size} ranks")),
        ("size", None if collective["bytes"] is None else size_exact(collective["bytes"])),
        ("dtype", collective["dtype"]),
        ("arrived", _arrival(collective)),
        ("waits here", _duration(collective["wait_ns"])),
        ("transfer", _duration(collective["transfer_ns"])),
        ("exposed here", _duration(collective["exposed_ns"])),
        ("bus bandwidth", None if bus is None else f"{rate(bus)}{bound}"),
        ("skew of starts", None if collective["skew_ns"] is None else f"{_duration(collective['skew_ns'])}{error}"),
        ("last rank", collective["last_rank"]),
        ("match across ranks", "doubtful: the ranks' ends lie far apart" if collective["doubtful"] else None),
        (
            "not matched across ranks",
            None if collective["unmatched"] is None else shorten(collective["unmatched"], 200),
        ),
    ]
