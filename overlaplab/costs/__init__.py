"""Formulas of model, strategy, ranks and link: no run and no table is read here."""

from overlaplab.costs.link import ring_factor, transfer_ns
from overlaplab.costs.traits import TRAITS, traits_of
from overlaplab.costs.volume import Theory

__all__ = ["TRAITS", "Theory", "ring_factor", "traits_of", "transfer_ns"]
