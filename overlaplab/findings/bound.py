"""How short a step could have been, as a sentence: what hides communication, and what nothing hides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from overlaplab.findings.thresholds import LITTLE_GAIN
from overlaplab.words import ms


def bound_finding(bound: Mapping[str, Any], window: Mapping[str, Any]) -> str | None:
    """Of one rank and step: a row of `overlaplab.simulate.bound`, and that of `overlaplab.summary`.

    Recorded idle time stays in every figure, since it is not communication that causes it. None where nothing is
    exposed.
    """
    span, exposed = int(window["span_ns"]), int(window["exposed_comm_ns"])
    if exposed == 0:
        return None
    alone = span - exposed
    condition = "" if bound["waits_known"] else ", if none of it is waiting for ranks that are not here"
    gained = gains_by_buckets(bound, window)
    if gained is None:
        least = alone + int(bound["bound_ns"]) - int(bound["compute_ns"])
        if span - least <= LITTLE_GAIN * span:
            return f"That step takes {ms(span)}, and would take {ms(alone)} without any communication{condition}."
        return (
            f"That step takes {ms(span)}: at best {ms(least)} as its collectives were launched, without delays and late"
            f" ranks, and {ms(alone)} without any communication{condition}."
        )
    if no_buckets_help(bound, window):
        return (
            f"At least {ms(exposed - gained)} of it cannot be hidden by any bucketing{condition}: the step takes"
            f" {ms(span)}, at best {ms(span - gained)} with other buckets, and {ms(alone)} without any communication."
        )
    return (
        f"That step takes {ms(span)}: at best {ms(span - gained)} with other buckets, and {ms(alone)} without any"
        f" communication{condition}."
    )


def no_buckets_help(bound: Mapping[str, Any], window: Mapping[str, Any]) -> bool:
    """Whether it is known that other buckets would gain little. Rows as above."""
    gained = gains_by_buckets(bound, window)
    return gained is not None and gained <= LITTLE_GAIN * int(window["span_ns"])


def gains_by_buckets(bound: Mapping[str, Any], window: Mapping[str, Any]) -> int | None:
    """How much shorter the step could be with the best buckets of all, in ns; None where unknown. Rows as above."""
    if pd.isna(bound["any_cap_ns"]):
        return None
    unavoidable = int(bound["any_cap_ns"]) - int(bound["compute_ns"])
    return max(int(window["exposed_comm_ns"]) - unavoidable, 0)
