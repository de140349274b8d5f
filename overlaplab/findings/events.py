"""The known facts of one event of a trace."""

from __future__ import annotations

from overlaplab.findings.marks import mark_name
from overlaplab.formats import text
from overlaplab.timeline.event_details import CollectiveDetails, EventDetails, LaunchDetails
from overlaplab.words import rank_word, rate, shorten, size_exact

_NAME_CHARACTERS = 400  # characters of a name


def event_facts(details: EventDetails) -> list[tuple[str, str]]:
    """Pairs of a fact's name and value, the most asked for first; unknown facts are left out."""
    facts: list[tuple[str, object]] = [
        ("name", shorten(mark_name(details["name"]), _NAME_CHARACTERS)),
        ("counts as", f"{details['counts_as']} ({shorten(details['category'], 40)})"),
        ("rank", rank_word(details["rank"])),
        ("step", details["step"]),
        ("start", _exact_ms(details["start_ns"])),
        ("end", _exact_ms(details["end_ns"])),
        ("lasts", _exact_ms(details["duration_ns"])),
        ("device, stream", _device_and_stream(details)),
        ("process, thread", f"{shorten(details['process'], 60)}, {shorten(details['thread'], 60)}"),
        ("correlation", details["correlation"]),
    ]
    facts += _launch(details["launch"])
    if details["collective"] is not None:
        facts += _collective(details["collective"])
    return [(what, str(value)) for what, value in facts if value is not None]


def _exact_ms(ns: int | None) -> str | None:
    """A time in ms, to the ns."""
    return None if ns is None else f"{text(ns, 'ns', 6, grouped=True)} ms"


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
        ("launch began", f"{_exact_ms(launch['start_ns'])}, {_exact_ms(launch['delay_ns'])} before the event"),
        ("launch thread", shorten(launch["thread"], 60)),
    ]


def _arrival(collective: CollectiveDetails) -> str | None:
    """When this rank arrived, where that is not its start: so wait and transfer may exceed what the event lasts."""
    arrived, start = collective["arrived_ns"], collective["start_ns"]
    if arrived is None or start is None or arrived == start:
        return None
    side = "before" if arrived < start else "after"
    apart = _exact_ms(abs(start - arrived))
    return f"{_exact_ms(arrived)}, {apart} {side} its start: wait and transfer count from arrivals"


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
        (
            "bytes",
            None if collective["bytes"] is None else f"{collective['bytes']:,} ({size_exact(collective['bytes'])})",
        ),
        ("dtype", collective["dtype"]),
        ("arrived", _arrival(collective)),
        ("waits here", _exact_ms(collective["wait_ns"])),
        ("transfer", _exact_ms(collective["transfer_ns"])),
        ("exposed here", _exact_ms(collective["exposed_ns"])),
        ("bus bandwidth", None if bus is None else f"{rate(bus)}{bound}"),
        ("skew of starts", None if collective["skew_ns"] is None else f"{_exact_ms(collective['skew_ns'])}{error}"),
        ("last rank", collective["last_rank"]),
        ("match across ranks", "doubtful: the ranks' ends lie far apart" if collective["doubtful"] else None),
        (
            "not matched across ranks",
            None if collective["unmatched"] is None else shorten(collective["unmatched"], 200),
        ),
    ]
