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

OUT_OF_PLACE = {Kind.ALL_GATHER: 1, Kind.REDUCE_SCATTER: 1}
"""Where the source is among a collective's tensors; the destination is the first. Others work in place."""


@dataclass
class Flight:
    """A collective that was launched."""

    carry: Callable[..., None]
    """Carries it out on tensors of the same shapes."""
    tensors: tuple[torch.Tensor, ...]
    due: float = float("inf")
    """The number of launches at which it is carried out, if nobody waits before."""
    kept: torch.Tensor | None = None
    """What an operation in place began with."""
    result: torch.Tensor | None = None
    carried: bool = field(default=False)


class Arriving(Work):
    """What a launch returns; `wait` is the communicator's."""

    def __init__(self, comm: "Late", flight: Flight) -> None:
        self._comm, self._flight = comm, flight

    def wait(self) -> None:
        caller = sys._getframe(1)
        site = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
        self._comm.sites[site] += 1
        if site == self._comm.removed:
            return
        with torch.no_grad():
            self._comm.arrive(self._flight)

    def is_completed(self) -> bool:
        return self._comm.arrives_early and self._flight.carried


class Received(Work):
    """What an exchange of messages returns."""

    def __init__(self, work: Work, tensors: list[torch.Tensor], arrived: list[torch.Tensor]) -> None:
        self._inner, self._tensors, self._arrived = work, tensors, arrived

    def wait(self) -> None:
        self._inner.wait()
        with torch.no_grad():
            for tensor, values in zip(self._tensors, self._arrived, strict=True):
                tensor.copy_(values)


class Late(Communicator):
    """Nothing arrives until it is waited for: until then the destination holds NaN, and then the source is read."""

    arrives_early = False
    removed = ""
    """The line of code whose waits do nothing, as FILE:LINE: a mutant."""

    def __init__(self, comm: Communicator) -> None:
        self.__dict__.update(vars(comm))
        self.new_store_key = comm.new_store_key  # type: ignore[method-assign]
        self.queue: deque[Flight] = deque()
        self.launches = 0
        self.sites: Counter[str] = Counter()
        """How often each line of code has waited."""

    def _launch(self, kind: Kind, tensor: torch.Tensor, call: Any, *args: Any, **more: Any) -> Work:
        def carry(*tensors: torch.Tensor) -> None:
            Communicator._launch(self, kind, tensors[0], call, *tensors, **more).wait()

        flight = Flight(carry, args, due=self.launches + self.delay())
        with torch.no_grad():
            self.prepare(flight)
            self.queue.append(flight)
            self.launches += 1
            while self.queue and any(flight.due < self.launches for flight in self.queue):
                self.carry_one()
        return Arriving(self, flight)

    def exchange(self, sends: Any, receives: Any) -> Work:
        """Messages arrive when they are waited for, and what was launched before them has been carried out."""
        self.flush()
        arrived = [(torch.empty_like(tensor), peer) for tensor, peer in receives]
        for tensor, _ in receives:
            poison(tensor)
        return Received(super().exchange(sends, arrived), [t for t, _ in receives], [t for t, _ in arrived])

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
        flight = self.queue.popleft()
        require_memory(flight)
        destination, *source = flight.tensors
        if flight.kept is not None:
            assert is_poison(destination), "off by what was written to it in flight"
            destination.copy_(flight.kept)
        flight.result = torch.empty_like(destination) if source else destination.clone()
        flight.carry(flight.result, *(s.clone() for s in source))
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
            while self.queue:
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

    It reads its source and fills its destination then, whoever uses them meanwhile.
    """

    arrives_early = True

    def __init__(self, comm: Communicator, seed: int = 0) -> None:
        super().__init__(comm)
        self.chance = random.Random(f"{seed} {comm.rank}")

    def delay(self) -> float:
        return self.chance.randrange(5)

    def prepare(self, flight: Flight) -> None:
        """The destination is left as it is."""

    def carry_one(self) -> None:
        flight = self.queue.popleft()
        require_memory(flight)
        flight.carry(*flight.tensors)
        flight.carried = True


ARRIVALS: dict[str, Callable[[Communicator], Communicator]] = {"late": Late, "delayed": Delayed}
"""By the names that tests give them."""


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
