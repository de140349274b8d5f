"""What is known of one event of a trace, fact by fact."""

from __future__ import annotations

from overlaplab.formats import text
from overlaplab.timeline.event_details import CollectiveDetails, EventDetails, LaunchDetails
from overlaplab.words import rank_word, shorten, size_exact

__all__ = ["event_facts"]

_NAME = 400  # characters of a name; the search finds the whole of it


def event_facts(details: EventDetails) -> list[tuple[str, str]]:
    """Pairs of what is known of the event and its value, in the order in which one asks."""
    facts: list[tuple[str, object]] = [
        ("name", shorten(details["name"], _NAME)),
        ("counts as", f"{details['counts_as']} ({shorten(details['category'], 40)})"),
        ("rank", rank_word(details["rank"])),
        ("step", details["step"]),
        ("start", _exact(details["start_ns"])),
        ("end", _exact(details["end_ns"])),
        ("lasts", _exact(details["duration_ns"])),
        ("device, stream", _where(details)),
        ("process, thread", f"{shorten(details['process'], 60)}, {shorten(details['thread'], 60)}"),
        ("correlation", details["correlation"]),
    ]
    facts += _launch(details["launch"])
    if details["collective"] is not None:
        facts += _collective(details["collective"])
    return [(what, str(value)) for what, value in facts if value is not None]


def _exact(ns: int | None) -> str | None:
    """A time to the ns."""
    return None if ns is None else f"{text(ns, 'ns', 6, grouped=True)} ms"


def _where(details: EventDetails) -> str | None:
    known = [str(number) for number in (details["device"], details["stream"]) if number is not None]
    return ", ".join(known) or None


def _launch(launch: LaunchDetails | None) -> list[tuple[str, object]]:
    if launch is None:
        return []
    around = launch["operator"]
    return [
        ("launched by", shorten(launch["name"], _NAME)),
        ("in operator", None if around is None else shorten(around, _NAME)),
        ("launch began", f"{_exact(launch['start_ns'])}, {_exact(launch['delay_ns'])} before the event"),
        ("launch thread", shorten(launch["thread"], 60)),
    ]


def _collective(found: CollectiveDetails) -> list[tuple[str, object]]:
    group = found["group_description"] or found["group"]
    size = found["group_size"]
    bound = " or more: the transfer alone is not known" if found["bus_is_lower_bound"] else ""
    bus = found["bus_gb_per_s"]
    error = ", within clock error" if found["within_clock_error"] else ""
    return [
        ("collective", f"{found['index']}: {(found['kind'] or 'unknown').replace('_', '-')}"),
        ("group", None if group is None else shorten(str(group), 80) + ("" if size is None else f", {size} ranks")),
        ("bytes", None if found["bytes"] is None else f"{found['bytes']:,} ({size_exact(found['bytes'])})"),
        ("dtype", found["dtype"]),
        ("waits here", _exact(found["wait_ns"])),
        ("transfer", _exact(found["transfer_ns"])),
        ("exposed here", _exact(found["exposed_ns"])),
        ("bus bandwidth", None if bus is None else f"{bus:.2f} GB/s{bound}"),
        ("skew of starts", None if found["skew_ns"] is None else f"{_exact(found['skew_ns'])}{error}"),
        ("last rank", found["last_rank"]),
        ("not matched across ranks", None if found["unmatched"] is None else shorten(found["unmatched"], 200)),
    ]
