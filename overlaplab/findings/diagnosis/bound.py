"""How short a step could have been, as a sentence: what hides communication, and what nothing hides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from overlaplab.findings.thresholds import LITTLE_GAIN
from overlaplab.words import ms


def bound_finding(
    bound: Mapping[str, Any], span: int, exposed: int, ahead: tuple[int, int] | None = None
) -> str | None:
    """Say how short one rank's step could have been.

    Takes a row of `overlaplab.simulate.bound`, the step's length and its exposed communication in ns.

    `ahead`: a prefetch that was replayed, and how long the step then takes.

    Recorded idle time stays in every figure, since it is not communication that causes it. None where nothing is
    exposed.
    """
    if exposed == 0:
        return None
    alone = span - exposed
    if pd.notna(bound.get("found_ns")):
        return _played_finding(bound, span, alone)
    condition = "" if bound["waits_known"] else ", if none of it is waiting for other ranks"
    gained = gains_by_buckets(bound, exposed)
    if gained is None and ahead is not None:
        return (
            f"That step takes {ms(span)}: at best {ms(ahead[1])} with prefetch {ahead[0]}, and {ms(alone)} without any"
            f" communication{condition}."
        )
    if gained is None:
        least = alone + int(bound["bound_ns"]) - int(bound["compute_ns"])
        if span - least <= LITTLE_GAIN * span:
            return f"That step takes {ms(span)}, and would take {ms(alone)} without any communication{condition}."
        return (
            f"That step takes {ms(span)}: at best {ms(least)} as its collectives were launched, without delays and late"
            f" ranks, and {ms(alone)} without any communication{condition}."
        )
    if gained <= LITTLE_GAIN * span:
        return (
            f"No bucket size can hide {ms(exposed - gained)} of it{condition}: the step takes {ms(span)}, at best"
            f" {ms(span - gained)} with other buckets, and {ms(alone)} without any communication."
        )
    return (
        f"That step takes {ms(span)}: at best {ms(span - gained)} with other buckets, and {ms(alone)} without any"
        f" communication{condition}."
    )


def _played_finding(bound: Mapping[str, Any], span: int, alone: int) -> str:
    """Where buckets were played with all ranks."""
    best, least = int(bound["found_ns"]), int(bound["least_ns"])
    gap = f", no less than about {ms(least)} with any" if best - least > LITTLE_GAIN * span else ""
    if span - best <= LITTLE_GAIN * span:
        return (
            f"That step takes {ms(span)}, and would take {ms(alone)} without any communication: the best buckets found"
            f" gain {ms(max(span - best, 0))}{gap}."
        )
    return (
        f"That step takes {ms(span)}: {ms(best)} with the best buckets found{gap}, and {ms(alone)} without any"
        " communication."
    )


def gains_by_buckets(bound: Mapping[str, Any], exposed: int) -> int | None:
    """How much shorter the step is with the best buckets found, in ns, or could be with any; None where unknown."""
    if pd.notna(bound.get("found_ns")):
        return max(int(bound["span_ns"]) - int(bound["found_ns"]), 0)
    if pd.isna(bound["any_cap_ns"]):
        return None
    unavoidable = int(bound["any_cap_ns"]) - int(bound["compute_ns"])
    return max(exposed - unavoidable, 0)


def unavoidable_ns(bound: Mapping[str, Any], exposed_ns: int) -> int:
    """How much of so much exposed time no buckets hide, in ns, or, where their best are unknown, no schedule at all.

    Where buckets were played, what no buckets make the step shorter; else what the best buckets of all leave exposed,
    or by how much all transfers take longer than all computation.
    """
    if pd.notna(bound.get("least_ns")):
        return max(exposed_ns - max(int(bound["span_ns"]) - int(bound["least_ns"]), 0), 0)
    least = bound["any_cap_ns"] if pd.notna(bound["any_cap_ns"]) else bound["transfer_ns"]
    return max(int(least) - int(bound["compute_ns"]), 0)
