"""A step of two stages by GPipe with two microbatches, written out by hand: forward 10 µs, backward 20, sends 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from made.ranks import carried
from made.traces import event, op, run_of, step
from overlaplab import Run

_ACTIONS = (
    {"forward": (0, 10), "backward": (60, 90)},
    {"forward": (13, 25), "backward": (36, 57)},
)
_MESSAGES = (  # sender, receiver, number, when the sender and the receiver called
    *((0, 1, 0, 10, 0), (0, 1, 1, 20, 23)),
    *((1, 0, 0, 56, 20), (1, 0, 1, 77, 80)),
)


def made_pipeline(folder: Path) -> Run:
    """The run of both ranks."""
    folder.mkdir(exist_ok=True)
    return run_of(folder, *(_rank(rank) for rank in range(2)))


def _rank(rank: int) -> list[dict[str, Any]]:
    events = [step(0, 0, 110)]
    for kind, starts in _ACTIONS[rank].items():
        for microbatch, start in enumerate(starts):
            end = start + (10 if kind == "forward" else 20)
            label = f"engine::stage_{kind} stage={rank} microbatch={microbatch}"
            events += [event(label, start, end, cat="user_annotation"), op("mm", start, end)]
    for sender, receiver, number, sent, asked in _MESSAGES:
        own = sent if rank == sender else asked
        name = f"0%3A{sender}-{receiver}"
        label = f"engine::launch seq={number} group={name}"
        events.append(event(label, own, own + 0.5, cat="user_annotation"))
        events += carried(number, own, max(sent, asked) + 2, kind="send_recv", group=name)
    return events
