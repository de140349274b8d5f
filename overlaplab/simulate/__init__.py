"""A recorded step played once more: what it could have taken, and what the link model says it must have taken."""

from overlaplab.simulate.bound import bound
from overlaplab.simulate.replay import replay

__all__ = ["bound", "replay"]
