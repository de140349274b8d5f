"""Programs of strategies that send gradients in buckets, whose ranks have all parameters; and a parameter server's.

Ranks of zero1 and zero2 own parts of buckets, and gather updated parameters during the next forward pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from math import inf
from typing import Any

from overlaplab.costs.link import MESSAGE
from overlaplab.simulate.fill_buckets import assign
from overlaplab.simulate.player import Program, Work
from overlaplab.simulate.programs.model import owned_elements, padded_elements
from overlaplab.simulate.programs.profile import StepProfile
from overlaplab.simulate.programs.strategy import Strategy

_IN_FLIGHT = 2
"""Buckets of zero2 that may wait for the network (engine/overlaplab_engine/strategies/zero2.py)."""


class Buckets(Strategy):
    """Gradients in buckets, each sent by one collective, in order; all waited for after the backward pass."""

    kind = "all_reduce"
    alone = False
    """Whether each gradient is a bucket of its own; else buckets close at their caps."""
    early = True
    """Whether each is launched as soon as it is full; else after the backward pass."""
    in_flight = inf
    """How many may be on their way: of more the first is waited for."""
    asks_usage = False
    """Whether it asks after the last launch which parameters have gradients somewhere."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        sizes = {name: self.model.gradient_bytes(name) for name in self.order()}
        self._buckets = assign([*sizes], sizes, [0] if self.alone else self.options.caps)
        self._home = {name: number for number, names in enumerate(self._buckets) for name in names}
        self._flying: deque[Hashable] = deque()

    def order(self) -> Sequence[str]:
        """The gradients' names in the order that buckets follow."""
        return self.model.order

    def num_bytes(self, names: Sequence[str]) -> int:
        """The bytes of a bucket as it is sent."""
        return sum(map(self.model.gradient_bytes, names))

    def begin_backward(self) -> None:
        self._missing = [len(names) for names in self._buckets]
        self._sent = 0

    def after_gradient(self, gradient: str) -> None:
        self._missing[self._home[gradient]] -= 1
        while self.early and self._sent < len(self._buckets) and not self._missing[self._sent]:
            self._send()

    def finish(self) -> None:
        """See `Strategy`; a gradient that did not arrive is sent all the same."""
        while self._sent < len(self._buckets):
            self._send()
        used = [self.usage()] if self.asks_usage else []
        self.wait(*self._flying, *used)
        self._flying.clear()

    def _send(self) -> None:
        number, names = self._sent, self._buckets[self._sent]
        self._flying.append(self.launch(self.kind, self.num_bytes(names), "bucket", str(number), names))
        self._sent += 1
        while len(self._flying) > self.in_flight:
            self.wait(self._flying.popleft())


class Naive(Buckets):
    """After the backward pass one gradient after the other, each waited for, in order of definition."""

    alone, early, in_flight = True, False, 0

    def order(self) -> Sequence[str]:
        return [*self.model.parameters]

    def finish(self) -> None:
        self.wait(self.usage())
        super().finish()


class PerParam(Buckets):
    """Each gradient for itself."""

    alone = asks_usage = True


class Bucketed(Buckets):
    """Buckets with a flag for each gradient at their end."""

    def num_bytes(self, names: Sequence[str]) -> int:
        return super().num_bytes(names) + sum(map(self.model.gradient_item, names))


class Ring(Bucketed):
    """The same, with each bucket averaged hop by hop: beside the computation, one after another, as on the link."""

    hops = "ring"


class Tree(Bucketed):
    """The same as `Ring`, up and down a tree."""

    hops = "tree"


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

    sends_every_microbatch, early, in_flight = True, True, _IN_FLIGHT


class ParameterServer(Strategy):
    """Gradients, with a flag for each, go to rank 0, which waits for one rank after another, and sends parameters."""

    def program(self, steps: Sequence[StepProfile]) -> Program:
        """See `Strategy`; ranks begin as far apart as they get the parameters of the step before."""
        after = (self.rank or self.options.ranks - 1) - 1  # the server begins with the last worker
        self.moves.append(Work(max(after, 0) * self._transfer(MESSAGE, self._parameter_bytes)))
        return super().program(steps)

    def share(self, unit: str) -> float:
        return float(self.rank == 0)

    def finish(self) -> None:
        names = list(self.model.parameters)
        num_bytes = sum(self.model.gradient_bytes(name) + self.model.gradient_item(name) for name in names)
        self.wait(*[self.launch(MESSAGE, num_bytes, "bucket", "0", names, (worker, 0)) for worker in self._workers])

    def after_update(self) -> None:
        self.wait(*[self.launch(MESSAGE, self._parameter_bytes, on=(0, worker)) for worker in self._workers])

    @property
    def _parameter_bytes(self) -> int:
        return sum(self.model.elements(name) * self.model.own_item(name) for name in self.model.parameters)

    @property
    def _workers(self) -> Sequence[int]:
        """Those that this rank has messages of: all others on the server, else itself."""
        return range(1, self.options.ranks) if self.rank == 0 else [self.rank]
