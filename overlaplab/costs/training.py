"""What training on so many tokens takes and costs, from how long a step takes."""

from __future__ import annotations

from msgspec import Struct

from overlaplab.costs.batch import Batch

_NS_PER_S, _S_PER_HOUR = 10**9, 3600


class Training(Struct, frozen=True, kw_only=True):
    """A planned training run whose step is known."""

    step_ns: int
    """The mean."""
    batch: Batch
    tokens: int | None = None
    """To train on, over all steps; None: unknown."""
    price: float | None = None
    """Price of a GPU per hour, in any currency."""

    @property
    def tokens_per_s(self) -> float | None:
        """On all GPUs; None where a step takes no time."""
        return self.batch.tokens * _NS_PER_S / self.step_ns if self.step_ns > 0 else None

    @property
    def hours(self) -> float | None:
        """Until the tokens are done; None where they, or how long a step takes, are unknown."""
        speed = self.tokens_per_s
        return None if self.tokens is None or speed is None else self.tokens / speed / _S_PER_HOUR

    @property
    def gpu_hours(self) -> float | None:
        """Hours of all GPUs together."""
        return None if self.hours is None else self.hours * self.batch.ranks

    @property
    def cost(self) -> float | None:
        """In the currency of the price; None where one or the hours are unknown."""
        return None if self.gpu_hours is None or self.price is None else self.gpu_hours * self.price
