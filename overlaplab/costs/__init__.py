"""Formulas of model, strategy, ranks and link, independent of any run."""

from overlaplab.costs.link import ring_factor, transfer_ns
from overlaplab.costs.volume import Theory

__all__ = ["Theory", "ring_factor", "transfer_ns"]
