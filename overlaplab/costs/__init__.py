"""Formulas of model, strategy, ranks and link, independent of any run."""

from overlaplab.costs.attained import ENOUGH_STEPS, Attained, attained_steps, link_attained
from overlaplab.costs.line import fit_line
from overlaplab.costs.link import ring_factor, transfer_ns
from overlaplab.costs.volume import Theory

__all__ = [
    "ENOUGH_STEPS",
    "Attained",
    "Theory",
    "attained_steps",
    "fit_line",
    "link_attained",
    "ring_factor",
    "transfer_ns",
]
