"""Which strategies a test can try."""

from overlaplab_engine.strategy_names import StrategyName

from overlaplab.traits import TRAITS

ALONE = [StrategyName(name) for name, traits in TRAITS.items() if traits.is_played and traits.hops is None]
"""Those of which one rank can stand for a group, its peers phantoms; hops, cut layers and servers need neighbours."""
