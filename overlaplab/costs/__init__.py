"""Formulas of model, strategy, ranks and link: no run and no table is read here."""

from overlaplab.costs.link import transfer_ns

__all__ = ["transfer_ns"]
