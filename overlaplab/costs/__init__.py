"""Formulas of model, strategy, ranks and link, independent of any run."""

from overlaplab.costs.line import fit_line
from overlaplab.costs.link import ring_factor, transfer_ns
from overlaplab.costs.volume import Theory

__all__ = ["Theory", "fit_line", "ring_factor", "transfer_ns"]
