"""Programs of zero3 and torch-fsdp2: units are gathered before they are used, and their gradients scattered after."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

from overlaplab.simulate.programs.model import owned_elements, padded_elements
from overlaplab.simulate.programs.strategy import Strategy
from overlaplab.vocabulary import FSDP2_ROOT, layer_number

IN_FLIGHT = 1
"""Units of zero3 whose gradients may wait for the network (engine/overlaplab_engine/strategies/zero3.py)."""


class Units(Strategy):
    """What zero3 and torch-fsdp2 share: gathers and scatters of units, and which units are whole on the rank."""

    sends_every_microbatch = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._held: dict[str, Hashable | None] = {}  # by whole unit: its gather's key, until waited for
        self._owned = self.owned_elements()

    def owned_elements(self) -> dict[str, int]:
        return owned_elements(self.model, list(self.model.units.values()), self.rank, self.options.ranks)

    def members(self, unit: str) -> Sequence[str]:
        return self.model.units[unit]

    def elements(self, unit: str) -> int:
        """The elements of the whole unit as it is sent."""
        return padded_elements(sum(map(self.model.elements, self.members(unit))), self.options.ranks)

    def share(self, unit: str) -> float:
        return self.model.share(self._owned, unit)

    def gather(self, unit: str, phase: str) -> None:
        """Launch the gather of a unit that is not held; one without parameters needs none."""
        if unit not in self._held:
            self._held[unit] = None
            if names := self.members(unit):
                num_bytes = self.elements(unit) * self.model.gathered_item(names[0])
                self._held[unit] = self.launch("all_gather", num_bytes, "gather", f"{unit} {self.microbatch} {phase}")

    def wait_for_unit(self, unit: str) -> None:
        key, self._held[unit] = self._held[unit], None
        if key is not None:
            self.wait(key)

    def free(self, unit: str) -> None:
        self._held.pop(unit, None)

    def scatter(self, unit: str) -> Hashable:
        """Launch the reduce-scatter of a unit's gradients."""
        num_bytes = self.elements(unit) * self.model.scattered_item(self.members(unit)[0])
        return self.launch("reduce_scatter", num_bytes, "scatter", f"{unit} {self.microbatch}")


class Zero3(Units):
    """See [Note: the window] in engine/overlaplab_engine/strategies/zero3.py."""

    def begin_forward(self) -> None:
        self._used = 0
        self._scatters: deque[Hashable] = deque()
        self._unsent = dict.fromkeys(reversed(list(self.model.units)))
        reading = [place for place in range(len(self.model.uses)) if self.model.read_in_backward(place)]
        self._backward_uses = [self.model.uses[place] for place in reversed(reading)]
        self._pending = list(self.model.uses)  # uses whose backward pass has not ended

    def before_forward(self, unit: str) -> None:
        self._gather_window(self.model.uses[self._used :][: self.options.prefetch + 1], "forward")
        self._used += 1

    def after_forward(self, unit: str) -> None:
        if not self.model.stays_gathered(unit):
            self.free(unit)

    def before_backward(self, unit: str) -> None:
        """See `Strategy`; an embedding's backward pass reads no parameters."""
        if unit in self._backward_uses:
            place = self._backward_uses.index(unit)
            self._gather_window(self._backward_uses[place:][: self.options.prefetch + 1], "backward")
            del self._backward_uses[: place + 1]

    def after_backward(self, unit: str) -> None:
        """See `Strategy`: a unit's gradients go after its first use; those of an embedding when the pass is over."""
        place = len(self._pending) - 1 - self._pending[::-1].index(unit)
        if not self.model.read_in_backward(place):
            return
        del self._pending[place]
        self.free(unit)
        if unit not in self._pending:
            self._send(unit)

    def finish(self) -> None:
        self._held.clear()
        for unit in list(self._unsent):
            self._send(unit)
        flags = self.usage()
        self.wait(*self._scatters, flags)

    def _gather_window(self, window: Sequence[str], phase: str) -> None:
        for unit in window:
            self.gather(unit, phase)
        self.wait_for_unit(window[0])

    def _send(self, unit: str) -> None:
        del self._unsent[unit]
        self._scatters.append(self.scatter(unit))
        while len(self._scatters) > IN_FLIGHT:
            self.wait(self._scatters.popleft())


class TorchFSDP2(Units):
    """Layers, and the rest as the root; reductions block (engine/overlaplab_engine/strategies/torch_fsdp2.py)."""

    def owned_elements(self) -> dict[str, int]:
        """See `Units`: rows of each parameter."""
        elements = {}
        for name in self.model.parameters:
            rows, padded = self._padded_rows(name)
            chunk = padded // self.options.ranks
            owned_rows = max(min(rows - self.rank * chunk, chunk), 0)
            elements[name] = owned_rows * self.model.elements(name) // max(rows, 1)
        return elements

    def members(self, unit: str) -> Sequence[str]:
        if unit != FSDP2_ROOT:
            return self.model.units[unit]
        others = [names for each, names in self.model.units.items() if layer_number(each) is None]
        return [name for names in others for name in names]

    def elements(self, unit: str) -> int:
        """See `Units`: each parameter is padded to equal numbers of rows."""
        return sum(map(self._padded_elements, self.members(unit)))

    def begin_forward(self) -> None:
        """See `Strategy`: the root is gathered first."""
        self._order = [FSDP2_ROOT, *(unit for unit in self.model.uses if layer_number(unit) is not None)]
        self._use(FSDP2_ROOT, "forward")

    def before_forward(self, unit: str) -> None:
        if unit in self._order:
            self._use(unit, "forward")

    def after_forward(self, unit: str) -> None:
        stays = not self.options.reshard_after_forward or (self.options.keep_last and unit == self._order[-1])
        if unit in self._order and not stays:
            self.free(unit)

    def begin_backward(self) -> None:
        """See `Strategy`: from the root to the first layer."""
        self._order = [FSDP2_ROOT, *reversed(self._order[1:])]
        self._use(FSDP2_ROOT, "backward")

    def before_backward(self, unit: str) -> None:
        if unit in self._order:
            self._use(unit, "backward")

    def after_backward(self, unit: str) -> None:
        if unit in self._order:
            self._reduce(unit)

    def finish(self) -> None:
        """See `Strategy`: the root's gradients go last."""
        self._reduce(FSDP2_ROOT)

    def _use(self, unit: str, phase: str) -> None:
        """Wait for the unit, then gather those that follow."""
        self.gather(unit, phase)
        self.wait_for_unit(unit)
        place = self._order.index(unit) + 1
        for following in self._order[place : place + self.options.prefetch]:
            self.gather(following, phase)

    def _reduce(self, unit: str) -> None:
        self.free(unit)
        if self.members(unit):
            self.wait(self.scatter(unit))

    def _padded_elements(self, name: str) -> int:
        rows, padded = self._padded_rows(name)
        return padded * self.model.elements(name) // max(rows, 1)

    def _padded_rows(self, name: str) -> tuple[int, int]:
        """The rows of a parameter, without and with padding to as many on each rank."""
        rows, *_ = self.model.parameters[name].shape or (1,)
        return rows, padded_elements(rows, self.options.ranks)
