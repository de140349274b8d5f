"""How ranks make sure that they launch the same collectives in the same order.

[Note: what is agreed, and how]
A collective that some rank does not join blocks all the others, and two collectives of equal size that ranks launch in
different orders exchange the wrong data without any error. In zero3 the order is that in which the model uses its
units, so it may change whenever the model takes another path. What is agreed is therefore the order itself: each
collective has a description, such as `the gather of layers.5`, and all ranks must come to the same descriptions in the
same order.

A rank that repeats the order of its pass before asks nobody. As soon as it leaves that order (in the first pass it has
none) it exchanges the description with the other ranks before it launches the collective. This goes through the store
of the rendezvous, not through a collective: a rank that comes to something else, or to nothing, then costs a timeout
with a clear error and no deadlock, and on a GPU the host waits for no device.
"""

from overlaplab_engine.errors import EngineError
from overlaplab_engine.network.communicator import Communicator

TIMEOUT_S = 60.0
"""How long a rank that leaves the order of the pass before waits for the others to do the same."""


class OrderAgreement:
    """The order of one strategy's collectives, pass by pass; see [Note: what is agreed, and how]."""

    def __init__(self, comm: Communicator, strategy: str) -> None:
        """All ranks must make theirs at the same point of the program; `strategy` is named in errors."""
        self._comm = comm
        self._requirement = f"{strategy} needs all ranks to run the same units in the same order"
        self._key = comm.new_store_key()
        self._agreed: list[str] = []  # the order of the pass before, which was the same on all ranks
        self._order: list[str] = []  # the order of this pass so far
        self._passes = 0
        self._exchanges = 0  # in this pass

    def __len__(self) -> int:
        """How many collectives this pass has had so far."""
        return len(self._order)

    def require(self, description: str) -> None:
        """Call it before each collective. EngineError if the ranks do not all come to the same one."""
        position = len(self._order)
        self._order.append(description)
        if self._agreed[position : position + 1] != [description]:
            self.exchange(description)

    def exchange(self, description: str) -> None:
        """Compare where the ranks are, whatever was agreed. EngineError if they are not at the same point."""
        if self._comm.world_size == 1:
            return
        self._exchanges += 1
        key = f"{self._key}/{self._passes}/{self._exchanges}"
        descriptions = self._comm.exchange_through_store(key, description, TIMEOUT_S)
        if descriptions is None:
            raise EngineError(
                f"{self._requirement}: here came {description}, other than in the pass before, and not on all ranks"
            )
        for rank, other in enumerate(descriptions):
            if other != descriptions[0]:
                raise EngineError(f"{self._requirement}: rank 0 has come to {descriptions[0]}, rank {rank} to {other}")

    def forget_after(self, count: int) -> None:
        """Keep this pass's first `count` collectives only, because what followed has no backward pass."""
        del self._order[count:]

    def end_pass(self) -> None:
        """This pass's order was the same on all ranks, and the next pass may repeat it without asking."""
        self._agreed = self._order
        self.begin_pass()

    def begin_pass(self) -> None:
        """Begin a new pass; after an exception what was agreed before stays agreed."""
        self._order = []
        self._passes += 1
        self._exchanges = 0
