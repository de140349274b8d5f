"""Gathers from the engine's labels: launch, wait, first and last use, free."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote

from msgspec import Struct

from overlaplab.evidence.labels import Label, Span


class Gather(Struct, kw_only=True):
    """One gather of one unit, as the host issued it: in absolute host ns, None where unknown."""

    unit: str
    microbatch: int
    phase: str
    """`forward` or `backward`: the pass that it is gathered for."""
    bytes: int | None
    launch: Span
    """The range that launched it."""
    blocked: tuple[Span, ...] = ()
    """The host ranges that wait for it."""
    first_use_ns: int | None = None
    last_use_ns: int | None = None
    """In its own phase."""
    backward_first_use_ns: int | None = None
    backward_last_use_ns: int | None = None
    """Uses in the backward pass of a forward gather that stays until then."""
    free_ns: int | None = None
    free_phase: str | None = None
    shards: int | None = 0
    """Into how many parts the unit was cut when it was freed, of which each rank still holds one; 0 if nothing of it
    stays, None where this, or whether it was freed, is unknown."""
    regathered: Span | None = None
    """The range that gathers it next, until which such a part is held."""

    @property
    def is_contradictory(self) -> bool:
        """Whether ranges of its name contradict it, as several units share the name."""
        return self.shards is None and self.free_ns is None

    def use(self, phase: str, at_ns: int, *, begins: bool) -> None:
        """Record a use: the first begin and the last end of each phase count."""
        prefix = "backward_" if phase == "backward" and self.phase == "forward" else ""
        if not prefix and phase != self.phase:
            return
        name = f"{prefix}{'first' if begins else 'last'}_use_ns"
        if not begins or getattr(self, name) is None:
            setattr(self, name, at_ns)


def engine_gathers(labels: Iterable[Label]) -> list[Gather]:
    """The gathers in one step's labels, which must be in order of time; in order of launch.

    A module may be gathered, used and freed several times in a microbatch. A wait belongs to the oldest gather not yet
    waited for; a use or a free belongs to the gather waited for last. So a missing label affects only its own gather.
    Labels without a gather are ignored.
    """
    gathers: list[Gather] = []
    held: dict[tuple[str, str], list[Gather]] = {}
    for label in labels:
        fields = label.fields
        if not {"unit", "microbatch"} <= fields.keys():
            continue
        of_unit = held.setdefault((fields["unit"], fields["microbatch"]), [])
        if label.word == "gather_launch":
            unit, microbatch = unquote(fields["unit"]), int(fields["microbatch"])
            phase, size = fields["phase"], int(fields["bytes"])
            gathers.append(Gather(unit=unit, microbatch=microbatch, phase=phase, bytes=size, launch=label))
            of_unit.append(gathers[-1])
        elif label.word == "gather_wait":
            waiting = (g for g in of_unit if not g.blocked and g.phase == fields["phase"])
            if gather := next(waiting, None):
                gather.blocked = (label,)
        elif label.word in ("first_use", "last_use"):
            if gather := _current(of_unit):
                gather.use(fields["phase"], label.start_ns, begins=label.word == "first_use")
        elif label.word == "free" and (gather := _current(of_unit)):
            gather.free_ns, gather.free_phase = label.start_ns, fields["phase"]
            of_unit.remove(gather)
    return gathers


def _current(held: list[Gather]) -> Gather | None:
    """The gather waited for last; the oldest, if none was."""
    waited = [gather for gather in held if gather.blocked]
    return max(waited, key=lambda gather: gather.blocked[0].start_ns) if waited else next(iter(held), None)
