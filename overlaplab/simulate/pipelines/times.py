"""How long the actions of a stage take, by kind: as means, scaled, and with backward passes whole or in halves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TypeAlias

from overlaplab.costs.pipeline import BACKWARD, INPUT, WEIGHT

UPDATE = "update"
"""Beside the kinds of actions: the optimizer's work."""

_Times: TypeAlias = Mapping[str, int]
"""By kind of action, in ns."""


def mean_times(tables: Sequence[_Times]) -> dict[str, int]:
    """The mean of each kind."""
    return {kind: round(fmean(table[kind] for table in tables)) for kind in tables[0]}


def split_backward(took: _Times, idle: _Times, halves: bool, first: bool, *, hidden: bool) -> tuple[_Times, _Times]:
    """The times of a stage's actions whose backward passes are whole, or in halves, each with as much of the host's.

    `hidden`: the device makes up for the host's.
    """
    if halves and BACKWARD in took:
        host_ns = 0 if hidden else idle[BACKWARD]
        inputs = 0 if first else (took[BACKWARD] - host_ns) // 2 + host_ns
        weight_ns = took[BACKWARD] - inputs + (0 if first else host_ns)
        return (
            _drop_kinds(took, BACKWARD) | {INPUT: inputs, WEIGHT: weight_ns},
            _drop_kinds(idle, BACKWARD) | {INPUT: min(idle[BACKWARD], inputs), WEIGHT: min(idle[BACKWARD], weight_ns)},
        )
    if not halves and INPUT in took:
        host_ns = idle[WEIGHT if first else INPUT]
        both = took[INPUT] + took[WEIGHT]
        whole = both if hidden else both - idle[INPUT] - idle[WEIGHT] + host_ns
        return _drop_kinds(took, INPUT, WEIGHT) | {BACKWARD: whole}, _drop_kinds(idle, INPUT, WEIGHT) | {
            BACKWARD: host_ns
        }
    return took, idle


def _drop_kinds(took: _Times, *kinds: str) -> dict[str, int]:
    return {kind: ns for kind, ns in took.items() if kind not in kinds}


def scaled_times(took: _Times, idle: _Times, scale: float) -> dict[str, int]:
    """Without the optimizer's updates and what is idle, which are as before."""
    fixed = {kind: ns if kind == UPDATE else idle.get(kind, 0) for kind, ns in took.items()}
    return {kind: fixed[kind] + round((ns - fixed[kind]) * scale) for kind, ns in took.items()}


def actions_ns(took: _Times) -> int:
    """One action of each kind, without the optimizer's update."""
    return sum(ns for kind, ns in took.items() if kind != UPDATE)
