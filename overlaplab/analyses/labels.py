"""The engine's labels of a trace, as records."""

from __future__ import annotations

from dataclasses import dataclass

from overlaplab.events import Trace, lanes, matching
from overlaplab.vocabulary import ANNOTATION_CATEGORIES, label_fields

__all__ = ["Label", "Span", "labels_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A range on one thread, in absolute ns."""

    start_ns: int
    end_ns: int
    lane: int
    """A number that tells the thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label(Span):
    """One `engine::WORD key=value …` range."""

    word: str
    fields: dict[str, str]
    """Values by key; lists and names are still percent-encoded (see `vocabulary.label_list`)."""


def labels_of(trace: Trace) -> tuple[Label, ...]:
    """The trace's labels in order of start; what only begins like one, or is its mirror image on a GPU, is left out."""
    events = trace.events
    chosen = matching(events["name"], label_fields) & events["category"].isin(ANNOTATION_CATEGORIES).to_numpy()
    rows = events[chosen]
    starts = rows["ts_ns"].tolist()
    ends = (rows["ts_ns"] + rows["dur_ns"]).tolist()
    found = []
    for name, start, end, lane in zip(rows["name"], starts, ends, lanes(events)[chosen].tolist(), strict=True):
        parsed = label_fields(str(name))
        assert parsed is not None
        found.append(Label(word=parsed[0], fields=parsed[1], start_ns=start, end_ns=end, lane=lane))
    return tuple(found)
