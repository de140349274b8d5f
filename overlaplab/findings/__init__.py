"""Every sentence that says what was measured, why, or what to do: plain text, neither Markdown nor HTML."""

from overlaplab.findings.gathers import GatherCost, gathers_seen, prefetch_gain
from overlaplab.findings.runs import late_sentences, link_note, note
from overlaplab.findings.sweeps import sweep_advice, sweep_finding, sweep_notes
from overlaplab.findings.verdict import verdict

__all__ = [
    "GatherCost",
    "gathers_seen",
    "late_sentences",
    "link_note",
    "note",
    "prefetch_gain",
    "sweep_advice",
    "sweep_finding",
    "sweep_notes",
    "verdict",
]
