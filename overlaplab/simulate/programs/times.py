"""How long collectives of other sizes, or behind another link, occupy it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from overlaplab.costs import transfer_ns
from overlaplab.costs.link import ROUNDS
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run
from overlaplab.manifest import Link
from overlaplab.simulate.player import Launch, Move, Program
from overlaplab.simulate.transfers import transfers

__all__ = ["Transfer", "behind", "transfer_of"]

Transfer = Callable[[str, int], int]
"""T in ns of a kind of collective and its bytes."""


def transfer_of(run: Run, programs: Sequence[Program], link: Link | None) -> Transfer:
    """By the link's formula, and what collectives took beyond their recorded link's: the median of those recorded.

    Without a link by a line through what was measured; raises `OverlaplabError` when it is asked for a kind of which
    too little was.
    """
    if link is None:
        took = transfers(run, run.traces[0], None)

        def measured(kind: str, num_bytes: int) -> int:
            by_size = took.by_size(kind)
            if by_size is None:
                raise OverlaplabError(
                    f"how long its {kind} of other sizes take is not known",
                    path=run.path,
                    remedy="Name a link with --link",
                )
            return by_size(num_bytes)

        return measured
    late_ns = _late_ns(programs, run.manifest.link if run.manifest else None)
    return lambda kind, num_bytes: transfer_ns(kind, num_bytes, link) + late_ns


def behind(program: Program, recorded: Link | None, link: Link | None) -> tuple[Move, ...]:
    """The recorded moves behind another link: each collective takes as much longer as the formula says."""
    return tuple(_moved(move, recorded, link) for move in program)


def _moved(move: Move, recorded: Link | None, link: Link | None) -> Move:
    if not isinstance(move, Launch) or move.kind not in ROUNDS or link is None:
        return move
    beyond_ns = move.transfer_ns - transfer_ns(move.kind, move.bytes, recorded) if recorded else 0
    return replace(move, transfer_ns=max(transfer_ns(move.kind, move.bytes, link) + beyond_ns, 0))


def _late_ns(programs: Sequence[Program], link: Link | None) -> int:
    if link is None:
        return 0
    late = [
        move.transfer_ns - transfer_ns(move.kind, move.bytes, link)
        for move in programs[0]
        if isinstance(move, Launch) and move.kind in ROUNDS
    ]
    return max(round(median(late)), 0) if late else 0
