"""Why communication was exposed: the one table of causes."""

from __future__ import annotations

from enum import StrEnum

SHORT_PAUSE_NS = 100_000
"""Compute gaps that are shorter come between any two operators: the host did not pause."""
OVERHEAD = "short pauses between operators (framework overhead)"
"""What gaps so short are called, in place of the cause's label."""
OVERHEAD_CLAUSE = "for {} of it, the host was between two operators (framework overhead)"
"""What is said of such gaps, in place of the cause's clause."""


class Cause(StrEnum):
    """Why a moment of communication was exposed: its rule is in `analyses/exposed.py`, and in docs/exposed.md."""

    label: str
    """In words that need no glossary."""
    meaning: str
    """In a few words."""
    clause: str
    """The cause of some exposed time, whose length comes in place of the braces."""
    colour: str
    """The colour in `charts.theme.Palette` that it is drawn in."""
    origin: str
    """What takes the time: the `transfer` itself (or it may), the `host`, other `ranks`, or the `schedule`."""

    BUBBLE = (
        "pipeline bubble",
        "idle by the pipeline's schedule",
        "the schedule leaves the stage nothing to do",
        "for {} of it, the schedule left the stage idle",
        "bubble",
        "schedule",
    )
    IMBALANCE = (
        "stage imbalance",
        "waited for a slower stage (stage imbalance)",
        "a slower stage is not done",
        "for {} of it, the stage waited for a slower one",
        "uneven",
        "ranks",
    )
    SEND = (
        "waiting for send",
        "waited for messages (waiting for send)",
        "activations or gradients have not arrived yet",
        "for {} of it, messages had not arrived yet",
        "sending",
        "transfer",
    )
    STRAGGLER = (
        "straggler wait",
        "waited for other ranks",
        "its last rank had not arrived",
        "for {} of it, the rank waited for other ranks",
        "waiting",
        "ranks",
    )
    LATE = (
        "late launch",
        "launched late (late launch)",
        "ready, and the link free, but not launched yet",
        "for {} of it, the link was free and the host had not launched yet",
        "held",
        "host",
    )
    QUEUED = (
        "queued",
        "link busy (queued)",
        "launched, but the link was busy with another collective",
        "for {} of it, what was sent had waited for a busy link",
        "queued",
        "transfer",
    )
    TAIL = (
        "tail",
        "nothing left to overlap (tail)",
        "nothing left to hide it behind",
        "for {} of it, no computation was left to overlap with",
        "exposed",
        "transfer",
    )
    BLOCKING = (
        "blocking",
        "waited for at once (blocking)",
        "waited for at once, or launched after the backward",
        "for {} of it, the rank waited at once instead of computing",
        "blocking",
        "transfer",
    )
    LINK = (
        "link-bound",
        "longer than compute (link-bound)",
        "takes longer than the compute there is to hide it behind",
        "for {} of it, the transfer outlasted the computation that could hide it",
        "bound",
        "transfer",
    )
    GAP = (
        "compute gap",
        "host paused (compute gap)",
        "compute paused, but not to wait for it",
        "for {} of it, the host paused",
        "gap",
        "host",
    )
    UNKNOWN = (
        "unknown",
        "waiting or transfer (unknown)",
        "waiting for other ranks, or transfer",
        "for {} of it, whether the rank waited or data moved is unknown",
        "starting",
        "transfer",
    )
    UNHIDEABLE = (
        "cannot be hidden",
        "cannot be hidden by any bucketing",
        "takes longer than any schedule can hide",
        "no bucket size can hide {} of it",
        "bound",
        "transfer",
    )
    """No row of `exposed` has it: `findings.diagnose` takes it from others, by the bound."""

    def __new__(
        cls, value: str, label: str = "", meaning: str = "", clause: str = "", colour: str = "", origin: str = ""
    ) -> Cause:
        """One row of the table."""
        cause = str.__new__(cls, value)
        cause._value_ = value
        cause.label, cause.meaning, cause.clause = label, meaning, clause
        cause.colour, cause.origin = colour, origin
        return cause
