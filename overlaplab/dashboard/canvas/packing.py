"""A timeline as bytes for `timeline.js`: about 10 bytes an event.

Layout, little-endian: the header's length (uint32), the header (JSON in UTF-8, padded so that the arrays start at a
multiple of 8), and the arrays at the places that the header's `arrays` tells: name → [type, offset, count].

| array | of each | type |
|---|---|---|
| `start`, `length` | event: ns from the header's `base_ns`; ns | uint32, float64 where that is too short |
| `code` | event: place in the header's `names` and in `parts` below | uint16 or uint32 |
| `part` | code: place in the header's `words` | uint8 |
| `first` | lane: its first event; one more at the end | uint32 |
| `linked`, `collective` | event that belongs to a collective: its place; the collective's index | uint32, int32 |
| `compute`, `exposed` | rank and slot of the overview: share of the slot's time, 0 to 255 | uint8 |

The threads of a rank's host come by themselves (`pack_host`), in the same layout, when the reader unfolds them. In
place of the last four arrays they have `calls`, the places of calls that launched something, in order, and `launched`,
the place of that among the run's events.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
from msgspec import Struct
from numpy.typing import NDArray

from overlaplab.charts.lanes import host_colours, mark_colours
from overlaplab.charts.theme import Palette
from overlaplab.findings import mark_name, mark_word
from overlaplab.timeline.host_lanes import HostKind, HostLanes, device_marks
from overlaplab.timeline.marks import MarkKind, Timeline
from overlaplab.words import shorten

SLOTS = 800
"""Slots of the overview, over the whole run."""

_TYPES = {"uint8": "u1", "uint16": "u2", "uint32": "u4", "int32": "i4", "float64": "f8"}


class Packed(Struct, frozen=True, kw_only=True):
    """A timeline's bytes, or a host's."""

    timeline: Timeline
    id: str
    """Tells these bytes from others."""
    data: bytes


def pack(timeline: Timeline) -> Packed:
    """The events of a timeline as bytes (see above)."""
    events = timeline.events
    base, last = _bounds(events)
    linked, collective = _collectives(events)
    compute, exposed = _overview(timeline, base, last)
    shared, arrays = _marks(events, len(timeline.lanes), base, [mark_word(mark) for mark in MarkKind])
    arrays |= {"linked": linked.astype(np.uint32), "collective": collective.astype(np.int32)}
    arrays |= {"compute": compute, "exposed": exposed}
    header = shared | {
        "base_ns": base,
        "last_ns": max(last, base + 1),
        "extent_ns": list(timeline.extent),
        "slots": SLOTS,
        "ranks": [None if rank is None else int(rank) for rank, _, _ in timeline.activities],
        "hosts": [[place, timeline.activities[place][0]] for place in timeline.hosts],
        "lanes": _lanes(timeline),
    }
    return _assemble(timeline, header, arrays)


def pack_host(packed: Packed, place: int, host: HostLanes) -> Packed:
    """The host's lanes of `run.traces[place]` as bytes, to be joined to those of its run, `packed`."""
    base, last = _bounds(host.events)
    shared, arrays = _marks(host.events, len(host.labels), base, [kind.value for kind in HostKind])
    calls, launched = device_marks(packed.timeline.events, place, host)
    arrays |= {"calls": calls.astype(np.uint32), "launched": launched.astype(np.uint32)}
    header = shared | {
        "run": packed.id,
        "host": place,
        "base_ns": base,
        "last_ns": max(last, base + 1),
        "lanes": [{"kind": "host", "label": shorten(label, 60)} for label in host.labels],
    }
    return _assemble(packed.timeline, header, arrays)


def _bounds(events: pd.DataFrame) -> tuple[int, int]:
    """The first start and the last end."""
    return (int(events["start_ns"].min()), int(events["end_ns"].max())) if len(events) else (0, 1)


def _marks(
    events: pd.DataFrame, lanes: int, base: int, words: list[str]
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """What headers and arrays have of any marks; `words` are those of `part`, of which only the used ones are sent."""
    starts, ends = events["start_ns"].to_numpy(np.int64), events["end_ns"].to_numpy(np.int64)
    codes, names, parts = _codes(events, len(words))
    used, part = np.unique(parts, return_inverse=True)
    arrays: dict[str, NDArray[Any]] = {
        "start": _fit_width(starts - base),
        "length": _fit_width(ends - starts),
        "code": codes.astype(np.uint16 if len(names) <= 1 << 16 else np.uint32),
        "part": part.astype(np.uint8),
        "first": np.searchsorted(events["lane"].to_numpy(np.int64), np.arange(lanes + 1)).astype(np.uint32),
    }
    return {"words": [words[number] for number in used], "names": [mark_name(name) for name in names]}, arrays


def part_colours(tones: Palette) -> dict[str, Any]:
    """Every mark's colour by its word, and the palette's own colours."""
    marks = mark_colours(tones)
    words = {mark_word(mark): marks[mark] for mark in MarkKind} | host_colours(tones)
    return {"marks": words, "tones": asdict(tones)}


def _codes(events: pd.DataFrame, width: int) -> tuple[NDArray[np.int64], list[str], NDArray[np.int64]]:
    """A code per event for its pair of name and part, of which there are `width`; per code its name and its part."""
    category = events["name"].astype("category").cat
    pairs = category.codes.to_numpy(np.int64) * width + events["part"].to_numpy(np.int64)
    seen = np.zeros((len(category.categories) + 1) * width, dtype=bool)
    seen[pairs] = True
    used_pairs = np.flatnonzero(seen)
    place = np.zeros(len(seen), dtype=np.int64)
    place[used_pairs] = np.arange(len(used_pairs))
    words = [str(word) for word in category.categories]
    return place[pairs], [words[pair // width] for pair in used_pairs], used_pairs % width


def _collectives(events: pd.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of the events that belong to a collective, and its index."""
    if "collective" not in events:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    index = events["collective"].fillna(-1).to_numpy(np.int64)
    places = np.flatnonzero(index >= 0)
    return places, index[places]


def _lanes(timeline: Timeline) -> list[dict[str, Any]]:
    """What the browser needs to know of each lane."""
    lanes = timeline.lanes
    ranks = [None if pd.isna(rank) else int(rank) for rank in lanes["rank"]]
    described = []
    for rank, label, kind in zip(ranks, lanes["label"], lanes["kind"], strict=True):
        word = "rank ?" if rank is None else f"rank {rank}"
        lane = {"rank": rank, "kind": kind, "label": shorten(str(label).removeprefix(f"{word} "), 60)}
        where = None if rank is None else timeline.coordinates.get(rank)
        described.append(lane if where is None else lane | {"where": where})
    return described


def _overview(timeline: Timeline, first: int, last: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Per rank and slot, the shares of its time with compute and with exposed communication, 255 for all of it."""
    edges = np.linspace(first, max(last, first + 1), SLOTS + 1)
    rows = []
    for _, activity, origin in timeline.activities:
        alone = activity.exposed_communication
        rows.append([_shares(activity.compute - origin, edges), _shares(alone - origin, edges)])
    both = np.array(rows, dtype=np.float64).reshape(-1, 2, SLOTS)
    scaled = np.ceil(255 * both).astype(np.uint8)
    return scaled[:, 0].ravel(), scaled[:, 1].ravel()


def _shares(intervals: NDArray[np.int64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much of each slot between the edges the disjoint, sorted intervals cover, 0 to 1."""
    if len(intervals) == 0:
        return np.zeros(len(edges) - 1)
    bounds = intervals.ravel().astype(np.float64)
    lengths = (intervals[:, 1] - intervals[:, 0]).astype(np.float64)
    before = np.append(0.0, np.cumsum(lengths))
    covered = np.empty(len(bounds))
    covered[0::2], covered[1::2] = before[:-1], before[1:]
    total = np.interp(edges, bounds, covered)
    shares: NDArray[np.float64] = np.clip(np.diff(total) / np.diff(edges), 0.0, 1.0)
    return shares


def _fit_width(values: NDArray[np.int64]) -> NDArray[Any]:
    """The same whole numbers in four bytes each, or eight where they need it."""
    return values.astype(np.uint32 if len(values) == 0 or int(values.max()) < 1 << 32 else np.float64)


def _assemble(timeline: Timeline, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Packed:
    """Header and arrays in one piece, each array at a multiple of 8."""
    places: dict[str, tuple[str, int, int]] = {}
    pieces: list[bytes] = []
    at = 0
    for name, values in arrays.items():
        raw = values.astype(f"<{_TYPES[values.dtype.name]}", copy=False).tobytes()
        places[name] = (values.dtype.name, at, len(values))
        padded = -len(raw) % 8
        pieces += [raw, b"\0" * padded]
        at += len(raw) + padded
    body = b"".join(pieces)
    head = json.dumps({**header, "arrays": places})
    digest = hashlib.blake2b(body, digest_size=8)
    digest.update(head.encode())
    text = json.dumps({"id": digest.hexdigest(), **header, "arrays": places}).encode()
    text += b" " * (-(len(text) + 4) % 8)
    return Packed(timeline=timeline, id=digest.hexdigest(), data=len(text).to_bytes(4, "little") + text + body)
