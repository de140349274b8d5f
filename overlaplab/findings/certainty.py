"""Whether a predicted gain is certain: one rule for `advise`, `predict`, What if and every page's advice."""

from __future__ import annotations

from overlaplab.words import ms


def doubt_clause(gain_ns: int, doubt_ns: int | None) -> str:
    """The error of a predicted gain, which it follows, and whether it may be none; empty where `doubt_ns` is unknown.

    `doubt_ns`: see `simulate.predictions.error.gain_half_ns`.
    """
    if doubt_ns is None:
        return ""
    return f" ± {ms(doubt_ns)}{'' if abs(gain_ns) > doubt_ns else ', so perhaps none'}"
