"""Whether the emulated link was attained, step by step (docs/design.md, "Link attained")."""

from __future__ import annotations

from msgspec import Struct

from overlaplab.manifest import LinkStep, Manifest

MOST_RATIO = 1.05
"""A step's collectives may together take this multiple of their modelled time."""
MOST_LATE = 0.10
"""A single collective may be late by this share of the step."""
ENOUGH_STEPS = 3
"""A run is attained if so many steps are, or all where fewer are recorded."""


class Attained(Struct, frozen=True, kw_only=True):
    """What the link carried in one recorded step, on the rank on which it kept its model worst."""

    step: int
    """The ProfilerStep's number."""
    ratio: float
    """Time that the step's collectives took, divided by their modelled time."""
    latest_ns: int
    """The most that one of them took beyond its modelled time."""
    attained: bool


def attained_steps(manifest: Manifest) -> tuple[Attained, ...]:
    """The recorded steps in order; empty without an emulated link, and where run.json does not say."""
    of_step: dict[int, list[LinkStep]] = {}
    for row in manifest.link_steps or ():
        of_step.setdefault(row.step, []).append(row)
    return tuple(
        Attained(
            step=step,
            ratio=max(row.occupied_ns / row.modelled_ns if row.modelled_ns else 1.0 for row in of_ranks),
            latest_ns=max(row.latest_ns for row in of_ranks),
            attained=all(map(_is_attained, of_ranks)),
        )
        for step, of_ranks in sorted(of_step.items())
    )


def link_attained(manifest: Manifest | None) -> bool | None:
    """Whether the run attained its emulated link: enough of its steps did. None without such a link."""
    if manifest is None:
        return None
    steps = attained_steps(manifest)
    if not steps:
        return manifest.link_attained
    return sum(step.attained for step in steps) >= min(ENOUGH_STEPS, len(steps))


def _is_attained(row: LinkStep) -> bool:
    late = row.took_ns is not None and row.latest_ns > MOST_LATE * row.took_ns
    return row.modelled_ns == 0 or (row.occupied_ns <= MOST_RATIO * row.modelled_ns and not late)
