"""Recorded steps played again: how short they could have been, what remedies gain, what the link model predicts."""

from overlaplab.simulate.bound import best_buckets, bound
from overlaplab.simulate.remedies import REMEDIES, remedies
from overlaplab.simulate.replay import replay

__all__ = ["REMEDIES", "best_buckets", "bound", "remedies", "replay"]
