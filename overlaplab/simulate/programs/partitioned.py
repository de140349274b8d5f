"""Programs of zero1 and zero2: ranks own parts of buckets, and gather updated parameters during the next forward."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

from overlaplab.simulate.assign import assign
from overlaplab.simulate.programs.model import owned_elements, padded_elements
from overlaplab.simulate.programs.strategy import Strategy

IN_FLIGHT = 2
"""Buckets of zero2 that may wait for the network (engine/overlaplab_engine/strategies/zero2.py)."""


class Zero1(Strategy):
    """Buckets in reverse order of definition, all reduce-scattered after the backward pass."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        order = list(self.model.parameters)[::-1]
        self.buckets = assign(order, {name: self.model.gradient_bytes(name) for name in order}, self.options.caps)
        self._home = {name: number for number, names in enumerate(self.buckets) for name in names}
        self._owned = owned_elements(self.model, self.buckets, self.rank, self.options.ranks)
        self._gathering: dict[int, Hashable] = {}
        self._expected: set[str] = set()
        self._flying: deque[Hashable] = deque()

    def share(self, unit: str) -> float:
        return self.model.share(self._owned, unit)

    def before_forward(self, unit: str) -> None:
        """See `Strategy`: wait for the buckets that the unit's parameters lie in."""
        if unit in self._expected:
            self._expected.remove(unit)
            homes = {self._home[name] for name in self.model.units[unit]} & self._gathering.keys()
            self.wait(*(self._gathering.pop(number) for number in sorted(homes, reverse=True)))

    def finish(self) -> None:
        for number in range(len(self.buckets)):
            self.scatter(number)
        self.end_pass()

    def end_pass(self) -> None:
        """Ask for the gradients' use, and wait for everything."""
        used = self.usage()
        self.wait(*self._flying, used)
        self._flying.clear()

    def after_update(self) -> None:
        """See `Strategy`: gather first what the next forward pass needs first."""
        self.settle()
        self._expected = set(self.model.units)
        for number in reversed(range(len(self.buckets))):
            num_bytes = self._elements(number) * self.model.own_item(self.buckets[number][0])
            self._gathering[number] = self.launch("all_gather", num_bytes, "parameters", str(number))
        if not self.options.overlap_param_gather:
            self.settle()

    def settle(self) -> None:
        for unit in self.model.units:
            self.before_forward(unit)

    def scatter(self, number: int) -> None:
        """Launch a bucket's reduce-scatter."""
        num_bytes = self._elements(number) * self.model.gradient_item(self.buckets[number][0])
        self._flying.append(self.launch("reduce_scatter", num_bytes, "bucket", str(number), self.buckets[number]))

    def _elements(self, number: int) -> int:
        return padded_elements(sum(map(self.model.elements, self.buckets[number])), self.options.ranks)


class Zero2(Zero1):
    """Each bucket is launched as soon as it is full, in order."""

    sends_every_microbatch = True

    def begin_backward(self) -> None:
        self._missing = [len(names) for names in self.buckets]
        self._sent = 0

    def after_gradient(self, gradient: str) -> None:
        self._missing[self._home[gradient]] -= 1
        while self._sent < len(self.buckets) and not self._missing[self._sent]:
            self._send()

    def finish(self) -> None:
        while self._sent < len(self.buckets):
            self._send()
        self.end_pass()

    def _send(self) -> None:
        self.scatter(self._sent)
        self._sent += 1
        while len(self._flying) > IN_FLIGHT:
            self.wait(self._flying.popleft())
