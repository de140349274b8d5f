"""How long the actions of a stage take, by kind: as means, scaled, and with backward passes whole or in halves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TypeAlias

from overlaplab.costs.pipeline import (
    BACKWARD,
    INPUT,
    WEIGHT,
)

UPDATE = "update"
"""Beside the kinds of actions: the optimizer's work."""

_Times: TypeAlias = Mapping[str, int]
"""By kind of action, in ns."""


def mean_times(tables: Sequence[_Times]) -> dict[str, int]:
    """The mean of each kind."""
    return {kind: round(fmean(own[kind] for own in tables)) for kind in tables[0]}


def split_backward(took: _Times, idle: _Times, halves: bool, first: bool, *, hidden: bool) -> tuple[_Times, _Times]:
    """The times of a stage's actions whose backward passes are whole, or in halves, each with as much of the host's.

    `hidden`: the device makes up for the host's.
    """
    if halves and BACKWARD in took:
        own = 0 if hidden else idle[BACKWARD]
        inputs = 0 if first else (took[BACKWARD] - own) // 2 + own
        rest = took[BACKWARD] - inputs + (0 if first else own)
        return (
            _without(took, BACKWARD) | {INPUT: inputs, WEIGHT: rest},
            _without(idle, BACKWARD) | {INPUT: min(idle[BACKWARD], inputs), WEIGHT: min(idle[BACKWARD], rest)},
        )
    if not halves and INPUT in took:
        own = idle[WEIGHT if first else INPUT]
        both = took[INPUT] + took[WEIGHT]
        whole = both if hidden else both - idle[INPUT] - idle[WEIGHT] + own
        return _without(took, INPUT, WEIGHT) | {BACKWARD: whole}, _without(idle, INPUT, WEIGHT) | {BACKWARD: own}
    return took, idle


def _without(took: _Times, *kinds: str) -> dict[str, int]:
    return {kind: ns for kind, ns in took.items() if kind not in kinds}


def scaled_times(took: _Times, idle: _Times, scale: float) -> dict[str, int]:
    """Without the optimizer's updates and what is idle, which are as before."""
    fixed = {kind: ns if kind == UPDATE else idle.get(kind, 0) for kind, ns in took.items()}
    return {kind: fixed[kind] + round((ns - fixed[kind]) * scale) for kind, ns in took.items()}


def actions_ns(took: _Times) -> int:
    """One action of each kind, without the optimizer's update."""
    return sum(ns for kind, ns in took.items() if kind != UPDATE)
