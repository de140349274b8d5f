"""Collectives with a purpose, written by hand: buckets and gathers, with the labels of their readiness. Times in µs."""

from __future__ import annotations

from typing import Any

from made.ranks import carried
from made.traces import event


def label(text: str, start: float, end: float) -> dict[str, Any]:
    return event(f"engine::{text}", start, end, cat="user_annotation")


def backward(start: float, end: float) -> dict[str, Any]:
    return label("backward microbatch=0 sync=1", start, end)


def bucket(seq: int, ready: float, launch: float, start: float, end: float, **more: Any) -> list[dict[str, Any]]:
    """A bucket of the collective's number: ready, launched and on the link at these times."""
    return [
        label(f"bucket_ready bucket={seq} bytes=8 parameters=a.{seq},b.{seq}", ready, ready + 0.001),
        label(f"bucket_launch bucket={seq}", launch - 0.001, launch + 0.6),
        *carried(seq, start, end, launch=launch, **more),
    ]


def gather(seq: int, launch: float, start: float, end: float, *, phase: str = "forward") -> list[dict[str, Any]]:
    """A gather of the unit `layers.SEQ`."""
    text = f"gather_launch unit=layers.{seq} phase={phase} microbatch=0 bytes=8"
    return [label(text, launch - 0.001, launch + 0.6), *carried(seq, start, end, launch=launch, kind="all_gather")]


def scatter(seq: int, launch: float, start: float, end: float) -> list[dict[str, Any]]:
    """A reduce-scatter of the unit `layers.SEQ`'s gradients."""
    text = f"scatter_launch unit=layers.{seq} microbatch=0 bytes=8"
    return [label(text, launch - 0.001, launch + 0.6), *carried(seq, start, end, launch=launch, kind="reduce_scatter")]
