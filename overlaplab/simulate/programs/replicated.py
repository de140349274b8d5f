"""Programs of strategies that replicate everything: naive, per-param, bucketed, ring, tree, torch-ddp, a server's."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from overlaplab.costs.link import MESSAGE
from overlaplab.simulate.assign import assign
from overlaplab.simulate.player import Program, Work
from overlaplab.simulate.programs.profile import StepProfile
from overlaplab.simulate.programs.strategy import Strategy


class Naive(Strategy):
    """After the backward pass one gradient after the other, each waited for, in order of definition."""

    def finish(self) -> None:
        self.wait(self.usage())
        for number, name in enumerate(self.model.parameters):
            self.wait(self.launch("all_reduce", self.model.gradient_bytes(name), "bucket", str(number), [name]))


class InOrder(Strategy):
    """Groups of gradients, launched in order, each as soon as it is full; all waited for after the backward pass."""

    def groups(self) -> Sequence[Sequence[str]]:
        """The gradients' names in order of arrival, cut into what is sent together."""
        raise NotImplementedError

    def num_bytes(self, names: Sequence[str]) -> int:
        """The bytes of a group as it is sent."""
        return sum(map(self.model.gradient_bytes, names))

    def begin_backward(self) -> None:
        self._groups = self.groups()
        self._home = {name: number for number, names in enumerate(self._groups) for name in names}
        self._missing = [len(names) for names in self._groups]
        self._keys: list[Hashable] = []

    def after_gradient(self, gradient: str) -> None:
        self._missing[self._home[gradient]] -= 1
        while len(self._keys) < len(self._groups) and not self._missing[len(self._keys)]:
            self._send()

    def finish(self) -> None:
        """See `Strategy`; a gradient that did not arrive is sent all the same."""
        while len(self._keys) < len(self._groups):
            self._send()
        self.wait_for(self._keys)

    def wait_for(self, keys: Sequence[Hashable]) -> None:
        """All are on their way."""
        self.wait(*keys)

    def _send(self) -> None:
        number = len(self._keys)
        names = self._groups[number]
        self._keys.append(self.launch("all_reduce", self.num_bytes(names), "bucket", str(number), names))


class PerParam(InOrder):
    """Each gradient for itself."""

    def groups(self) -> Sequence[Sequence[str]]:
        return [[name] for name in self.model.order]

    def wait_for(self, keys: Sequence[Hashable]) -> None:
        self.wait(*keys, self.usage())


class TorchDDP(InOrder):
    """Buckets that close at their caps."""

    def groups(self) -> Sequence[Sequence[str]]:
        sizes = {name: self.model.gradient_bytes(name) for name in self.model.order}
        return assign(self.model.order, sizes, self.options.caps)


class Bucketed(TorchDDP):
    """The same, with a flag for each gradient at the end of a bucket."""

    def num_bytes(self, names: Sequence[str]) -> int:
        return super().num_bytes(names) + sum(map(self.model.gradient_item, names))


class Ring(Bucketed):
    """The same, with each bucket averaged hop by hop: beside the computation, one after another, as on the link."""

    hops = "ring"


class Tree(Bucketed):
    """The same as `Ring`, up and down a tree."""

    hops = "tree"


class ParameterServer(Strategy):
    """Gradients, with a flag for each, go to rank 0, which waits for one rank after another, and sends parameters."""

    def program(self, steps: Sequence[StepProfile]) -> Program:
        """See `Strategy`; ranks begin as far apart as they get the parameters of the step before."""
        after = (self.rank or self.options.ranks - 1) - 1
        self.moves.append(Work(max(after, 0) * self._transfer(MESSAGE, self._values_bytes)))
        return super().program(steps)

    def share(self, unit: str) -> float:
        return float(self.rank == 0)

    def finish(self) -> None:
        names = list(self.model.parameters)
        num_bytes = sum(self.model.gradient_bytes(name) + self.model.gradient_item(name) for name in names)
        self.wait(*[self.launch(MESSAGE, num_bytes, "bucket", "0", names, (worker, 0)) for worker in self._workers])

    def after_update(self) -> None:
        self.wait(*[self.launch(MESSAGE, self._values_bytes, on=(0, worker)) for worker in self._workers])

    @property
    def _values_bytes(self) -> int:
        return sum(self.model.elements(name) * self.model.own_item(name) for name in self.model.parameters)

    @property
    def _workers(self) -> Sequence[int]:
        """Those that this rank has messages of: all others on the server, else itself."""
        return range(1, self.options.ranks) if self.rank == 0 else [self.rank]
