"""Programs of zero1 and zero2: ranks own parts of buckets, and gather updated parameters during the next forward."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from overlaplab.simulate.programs.model import owned_elements, padded_elements
from overlaplab.simulate.programs.replicated import Buckets

IN_FLIGHT = 2
"""Buckets of zero2 that may wait for the network (engine/overlaplab_engine/strategies/zero2.py)."""


class Zero1(Buckets):
    """Buckets in reverse order of definition, all reduce-scattered after the backward pass."""

    kind, early, asks_usage = "reduce_scatter", False, True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._owned = owned_elements(self.model, self._buckets, self.rank, self.options.ranks)
        self._gathering: dict[int, Hashable] = {}
        self._expected: set[str] = set()

    def order(self) -> Sequence[str]:
        return [*self.model.parameters][::-1]

    def num_bytes(self, names: Sequence[str]) -> int:
        return self._elements(names) * self.model.gradient_item(names[0])

    def share(self, unit: str) -> float:
        return self.model.share(self._owned, unit)

    def before_forward(self, unit: str) -> None:
        """See `Strategy`: wait for the buckets that the unit's parameters lie in."""
        if unit in self._expected:
            self._expected.remove(unit)
            homes = {self._home[name] for name in self.model.units[unit]} & self._gathering.keys()
            self.wait(*(self._gathering.pop(number) for number in sorted(homes, reverse=True)))

    def after_update(self) -> None:
        """See `Strategy`: gather first what the next forward pass needs first."""
        self.settle()
        self._expected = set(self.model.units)
        for number, names in reversed([*enumerate(self._buckets)]):
            num_bytes = self._elements(names) * self.model.own_item(names[0])
            self._gathering[number] = self.launch("all_gather", num_bytes, "parameters", str(number))
        if not self.options.overlap_param_gather:
            self.settle()

    def settle(self) -> None:
        for unit in self.model.units:
            self.before_forward(unit)

    def _elements(self, names: Sequence[str]) -> int:
        return padded_elements(sum(map(self.model.elements, names)), self.options.ranks)


class Zero2(Zero1):
    """Each bucket is launched as soon as it is full, in order."""

    sends_every_microbatch, early, in_flight = True, True, IN_FLIGHT
