"""Whether a predicted gain is certain: one rule for `advise`, `predict`, What if and every page's advice."""

from __future__ import annotations

from overlaplab.words import ms


def doubt_clause(gain_ns: int, doubt_ns: int | None) -> str:
    """What follows a predicted gain that may be none; empty where it is certain, or `doubt_ns` unknown.

    `doubt_ns`: see `simulate.predictions.error.gain_half_ns`.
    """
    if doubt_ns is None or abs(gain_ns) > doubt_ns:
        return ""
    return f", which is not certain: a predicted gain may be off by {ms(doubt_ns)}"
