"""Recorded steps replayed: how short they could have been, and what the link model predicts for them."""

from overlaplab.simulate.bound import bound
from overlaplab.simulate.replay import replay

__all__ = ["bound", "replay"]
