"""Communicators that make a missing wait, or a buffer that is used too early, fail at once and not on a busy day.

Both move the data through the ranks' real group, but at moments of their own choice: a collective is carried out
together with all that were launched before it, and on every rank at another moment if need be.
"""

import random
import sys
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from overlaplab_engine.network.communicator import Communicator, Work
from overlaplab_engine.network.link import Kind
from overlaplab_engine.network.mesh import Mesh


@dataclass
class Flight:
    """A collective that was launched."""

    carry: Callable[..., Work]
    """Begins to carry it out, on tensors of the same shapes."""
    tensors: tuple[torch.Tensor, ...]
    due: float = float("inf")
    """The number of launches at which it is carried out, if nobody waits before."""
    kept: torch.Tensor | None = None
    """What an operation in place began with."""
    result: torch.Tensor | None = None
    under_way: Work | None = None
    """What was begun and not waited for."""
    carried: bool = field(default=False)


@dataclass
class Flights:
    """What was launched on a communicator and on the groups made of it, in one order."""

    queue: deque[Flight] = field(default_factory=deque)
    launches: int = 0
    of_groups: bool = False
    """Whether there are such groups."""
    removed: str = ""
    """The line of code whose waits do nothing, as FILE:LINE: a mutant."""
    sites: Counter[str] = field(default_factory=Counter)
    """How often each line of code has waited."""

    def waits(self, caller: Any) -> bool:
        """Whether the line of code of this frame really waits; it is counted."""
        site = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
        self.sites[site] += 1
        return site != self.removed


class Arriving(Work):
    """What a launch returns; `wait` is the communicator's."""

    def __init__(self, comm: "Late", flight: Flight) -> None:
        self._comm, self._flight = comm, flight

    def wait(self) -> None:
        if self._comm.flights.waits(sys._getframe(1)):
            with torch.no_grad():
                self._comm.arrive(self._flight)

    def is_completed(self) -> bool:
        under_way = self._flight.under_way
        return self._comm.arrives_early and under_way is not None and under_way.is_completed()


class Received(Work):
    """What an exchange of messages returns."""

    def __init__(self, work: Work, tensors: list[torch.Tensor], arrived: list[torch.Tensor]) -> None:
        self._inner, self._tensors, self._arrived = work, tensors, arrived

    def wait(self) -> None:
        self._inner.wait()
        with torch.no_grad():
            for tensor, values in zip(self._tensors, self._arrived, strict=True):
                tensor.copy_(values)


class Postponed(Work):
    """A collective by hand that has not begun."""

    def __init__(self, comm: "Late", flight: Flight) -> None:
        self._comm, self._flight = comm, flight

    def wait(self) -> None:
        if self._comm.flights.waits(sys._getframe(1)):
            while not self._flight.carried:
                first = self._comm.postponed.popleft()
                first.carry().wait()
                first.carried = True


class Late(Communicator):
    """Nothing arrives until it is waited for: until then the destination holds NaN, and then the source is read."""

    arrives_early = False

    def __init__(self, comm: Communicator) -> None:
        self.__dict__.update(vars(comm))
        self._groups_along = {}
        self.new_store_key = comm.new_store_key  # type: ignore[method-assign]
        self.flights = Flights()
        self.postponed: deque[Flight] = deque()

    def _make_group(self, mesh: Mesh, axis: str, timeout_s: float) -> Communicator:
        group = type(self)(super()._make_group(mesh, axis, timeout_s))
        group.flights = self.flights
        self.flights.of_groups = True
        self.groups[-1] = group
        return group

    def _launch(self, kind: Kind, tensor: torch.Tensor, call: Any, *args: Any, **more: Any) -> Work:
        def carry(*tensors: torch.Tensor) -> Work:
            return Communicator._launch(self, kind, tensors[0], call, *tensors, **more)

        flights = self.flights
        flight = Flight(carry, args, due=flights.launches + self.delay())
        with torch.no_grad():
            self.prepare(flight)
            flights.queue.append(flight)
            flights.launches += 1
            while any(flight.due < flights.launches for flight in flights.queue):
                self.carry_one()
        return Arriving(self, flight)

    def exchange(self, sends: Any, receives: Any) -> Work:
        """Messages arrive when they are waited for, and what was launched before them has been carried out."""
        self.flush()
        arrived = [(torch.empty_like(tensor), peer) for tensor, peer in receives]
        for tensor, _ in receives:
            poison(tensor)
        return Received(super().exchange(sends, arrived), [t for t, _ in receives], [t for t, _ in arrived])

    def aside(self, call: Callable[[], None]) -> Work:
        """A call begins when it is waited for, after those before it."""
        flight = Flight(lambda: Communicator.aside(self, call), ())
        self.postponed.append(flight)
        return Postponed(self, flight)

    def delay(self) -> float:
        return float("inf")

    def prepare(self, flight: Flight) -> None:
        destination, *source = flight.tensors
        if not source:
            flight.kept = destination.clone()
            poison(destination)
        elif destination.untyped_storage().data_ptr() != source[0].untyped_storage().data_ptr():
            poison(destination)
        elif destination.numel() > source[0].numel():  # the source lies in it
            begin = source[0].storage_offset() - destination.storage_offset()
            poison(destination[:begin])
            poison(destination[begin + source[0].numel() :])
        else:  # it lies in the source
            flight.kept = destination.clone()
            poison(destination)

    def carry_one(self) -> None:
        """Carry out what was launched first."""
        flight = self.flights.queue.popleft()
        require_memory(flight)
        destination, *source = flight.tensors
        if flight.kept is not None:
            assert is_poison(destination), "off by what was written to it in flight"
            destination.copy_(flight.kept)
        flight.result = torch.empty_like(destination) if source else destination.clone()
        flight.carry(flight.result, *(s.clone() for s in source)).wait()
        if flight.kept is not None:
            poison(destination)
        flight.carried = True

    def arrive(self, flight: Flight) -> None:
        while not flight.carried:
            self.carry_one()
        if flight.result is not None:
            require_memory(flight)
            flight.tensors[0].copy_(flight.result)
            flight.result = None

    def flush(self) -> None:
        """Before the ranks meet in another way: one may wait in it for another that waits in a collective."""
        with torch.no_grad():
            while self.flights.queue:
                self.carry_one()

    def gather_objects(self, value: Any) -> list[Any]:
        self.flush()
        return super().gather_objects(value)

    def broadcast_object(self, value: Any) -> Any:
        self.flush()
        return super().broadcast_object(value)

    def exchange_through_store(self, key: str, value: str, timeout_s: float) -> list[str] | None:
        self.flush()
        return super().exchange_through_store(key, value, timeout_s)

    def barrier(self) -> None:
        self.flush()
        super().barrier()


class Delayed(Late):
    """Each collective is carried out up to four launches late, by chance, and on other ranks at other moments.

    It reads its source and fills its destination then, whoever uses them meanwhile. Among several groups it only begins
    then: ranks that find different collectives done launch the next in different orders, and would wait in a circle.
    """

    arrives_early = True

    def __init__(self, comm: Communicator, seed: int = 0) -> None:
        super().__init__(comm)
        self.chance = random.Random(f"{seed} {comm.rank}")

    def delay(self) -> float:
        return self.chance.randrange(5)

    def prepare(self, flight: Flight) -> None:
        """The destination is left as it is."""

    def aside(self, call: Callable[[], None]) -> Work:
        """Calls run on a thread of their own, which is late by itself."""
        return Communicator.aside(self, call)

    def carry_one(self) -> None:
        flight = self.flights.queue.popleft()
        require_memory(flight)
        flight.under_way = flight.carry(*flight.tensors)
        if not self.flights.of_groups:
            flight.under_way.wait()
        flight.carried = True

    def arrive(self, flight: Flight) -> None:
        super().arrive(flight)
        assert flight.under_way is not None
        flight.under_way.wait()


ARRIVALS: dict[str, Callable[[Communicator], Communicator]] = {"late": Late, "delayed": Delayed}
"""By the names that tests give them."""


def require_each_wait(comm: Communicator, train: Callable[[Communicator], Any]) -> None:
    """`train` waits, and fails on every rank without any one of the lines of code that wait."""

    def sites(removed: str = "") -> list[str]:
        late = Late(comm)
        late.flights.removed = removed
        try:
            train(late)
        finally:
            late.flights.queue.clear()  # the same on all ranks
        return list(late.flights.sites)

    found = sites()
    assert any(not site.startswith("communicator.py") for site in found)
    for site in found:
        noticed = ""
        try:
            sites(removed=site)
        except Exception as error:
            noticed = repr(error)
        assert all(comm.gather_objects(noticed)), f"nobody notices without the wait in {site}"


def require_memory(flight: Flight) -> None:
    for tensor in flight.tensors:
        end = tensor.storage_offset() * tensor.itemsize + tensor.nbytes
        assert tensor.untyped_storage().nbytes() >= end, "off by what was freed in flight"


def poison(tensor: torch.Tensor) -> None:
    """NaN, or the least of integers."""
    tensor.fill_(torch.nan if tensor.is_floating_point() else least(tensor))


def is_poison(tensor: torch.Tensor) -> bool:
    return bool(tensor.isnan().all() if tensor.is_floating_point() else (tensor == least(tensor)).all())


def least(tensor: torch.Tensor) -> int:
    return True if tensor.dtype is torch.bool else torch.iinfo(tensor.dtype).min
