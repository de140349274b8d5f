"""Notes of which collective each process group was last given: of a rank that hangs or was killed, files say where.

[Note: looks]
The training's thread looks at the end of a step, once a second at most. Where no step ends for long, a thread of our
own looks, every few seconds: it runs also while the training's thread waits in a collective, sleeps, or reads a file,
but not in a process that is stopped, nor where C++ does not let go of Python's lock. A look waits for nothing and takes
some ten microseconds. Torch counts collectives per group, on every rank alike; gloo counts messages, too.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from overlaplab_engine.watching.log import Cell, CellKind, LookFlag

LOOK_INTERVAL_NS = 1_000_000_000
"""At the end of a step the training's thread looks only this long after it last did."""
STALLED_NS = 10_000_000_000
"""If no step ends for so long, the other thread looks."""
STALLED_INTERVAL_S = 5.0
"""The other thread wakes up this often."""


class Looks:
    """Reads how far each process group has come."""

    def __init__(self, number_group: Callable[[Any], int]) -> None:
        """`number_group` tells a group's place in the header. AttributeError where this torch does not tell."""
        self._number_group = number_group
        self._groups: Any = dist.distributed_c10d._world.pg_map
        if not hasattr(dist.ProcessGroup, "_get_sequence_number_for_group"):
            raise AttributeError("torch.distributed.ProcessGroup._get_sequence_number_for_group")
        self._dump: Any = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
        self._looked_ns = 0

    @property
    def is_due(self) -> bool:
        """Whether the last look is a second ago."""
        return time.perf_counter_ns() - self._looked_ns >= LOOK_INTERVAL_NS

    def cells(self, why: LookFlag, step: int, since_ns: int) -> Iterator[Cell]:
        """A look during `step`, `since_ns` after the one before it has ended.

        Of the groups that this rank is in, those whose backend counts collectives have cells.
        """
        self._looked_ns = time.perf_counter_ns()
        yield Cell(CellKind.LOOK, step, since_ns, flags=why)
        states = self._states()
        for number, group in enumerate(list(self._groups)):
            try:
                enqueued = int(group._get_sequence_number_for_group())
            except (RuntimeError, NotImplementedError):  # a backend of somebody's own
                continue
            place = self._number_group(group)
            yield Cell(CellKind.ENQUEUED, step, enqueued, group=place)
            # Torch numbers its backends as they are made; where that is no longer the groups' order, the counts differ.
            state = states.get(str(number), {})
            if int(state.get("last_enqueued_collective", -1)) == enqueued:
                yield Cell(CellKind.COMPLETED, step, max(0, int(state["last_completed_collective"])), group=place)

    def _states(self) -> dict[str, Any]:
        """What torch's Flight Recorder says of each group, without its entries, in 10 µs."""
        states: dict[str, Any] = json.loads(self._dump(False, False)).get("pg_status", {}) if self._dump else {}
        return states


class Lookout:
    """A thread that calls `look` every few seconds."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look, self._closed = look, threading.Event()
        threading.Thread(target=self._run, name="overlaplab-lookout", daemon=True).start()

    def close(self) -> None:
        """End the thread, without waiting for it."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(STALLED_INTERVAL_S):
            self._look()
