"""Programs of strategies that replicate everything: naive, per-param, bucketed, torch-ddp."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from overlaplab.simulate.changes import assign
from overlaplab.simulate.programs.strategy import Strategy

__all__ = ["Bucketed", "Naive", "PerParam", "TorchDDP"]


class Naive(Strategy):
    """After the backward pass one gradient after the other, each waited for, in order of definition."""

    def finish(self) -> None:
        """See `Strategy`."""
        self.wait(self.usage())
        for number, name in enumerate(self.model.parameters):
            self.wait(self.launch_bucket("all_reduce", self.model.gradient_bytes(name), number, [name]))


class InOrder(Strategy):
    """Groups of gradients, launched in order, each as soon as it is full; all waited for after the backward pass."""

    def groups(self) -> Sequence[Sequence[str]]:
        """The gradients' names in order of arrival, cut into what is sent together."""
        raise NotImplementedError

    def num_bytes(self, names: Sequence[str]) -> int:
        """Of a group as it is sent."""
        return sum(map(self.model.gradient_bytes, names))

    def begin_backward(self) -> None:
        """See `Strategy`."""
        self._groups = self.groups()
        self._home = {name: number for number, names in enumerate(self._groups) for name in names}
        self._missing = [len(names) for names in self._groups]
        self._keys: list[Hashable] = []

    def arrived(self, gradient: str) -> None:
        """See `Strategy`."""
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
        self._keys.append(self.launch_bucket("all_reduce", self.num_bytes(names), number, names))


class PerParam(InOrder):
    """Each gradient for itself."""

    def groups(self) -> Sequence[Sequence[str]]:
        """See `InOrder`."""
        return [[name] for name in self.model.order]

    def wait_for(self, keys: Sequence[Hashable]) -> None:
        """See `InOrder`."""
        self.wait(*keys, self.usage())


class TorchDDP(InOrder):
    """Buckets that close at their caps."""

    def groups(self) -> Sequence[Sequence[str]]:
        """See `InOrder`."""
        sizes = {name: self.model.gradient_bytes(name) for name in self.model.order}
        return assign(self.model.order, sizes, self.options.caps)


class Bucketed(TorchDDP):
    """The same, with a flag for each gradient at the end of a bucket."""

    def num_bytes(self, names: Sequence[str]) -> int:
        """See `InOrder`."""
        return super().num_bytes(names) + sum(map(self.model.gradient_item, names))
