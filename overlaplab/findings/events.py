"""The known facts of one event of a trace."""

from __future__ import annotations

from math import inf

from overlaplab.findings.marks import mark_name
from overlaplab.formats import text
from overlaplab.timeline.event_details import CollectiveDetails, EventDetails, LaunchDetails
from overlaplab.words import rank_word, rate, shorten, size_exact

_NAME_CHARACTERS = 400  # characters of a name
_UNITS = ((1000, "ns", 1), (1_000_000, "µs", 1000), (10_000_000_000, "ms", 1_000_000), (inf, "s", 1_000_000_000))
"""Durations below the first have this unit, of so many ns."""
_DIGITS = ((10, 3), (1000, 2), (inf, 1))
"""Values below the first have so many digits after the point."""


def event_facts(details: EventDetails) -> list[tuple[str, str]]:
    """Pairs of a fact's name and value, the most asked for first; unknown facts are left out."""
    facts: list[tuple[str, object]] = [
        ("name", shorten(mark_name(details["name"]), _NAME_CHARACTERS)),
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
        ("launched by", shorten(launch["name"], _NAME_CHARACTERS)),
        ("in operator", None if around is None else shorten(around, _NAME_CHARACTERS)),
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
    is_message = ":" in (collective["group"] or "")  # and says from which rank to which
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
