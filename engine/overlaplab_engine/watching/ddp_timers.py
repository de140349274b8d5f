"""DDP's own timers, on CPUs: how long its communication took, and how much of that the backward pass did not hide.

DDP measures a backward pass if its forward pass was one of each n, and gives the figures out at the next forward pass
that sends gradients. So a burst sets n to 1 and ends one step later. On a GPU the timers make the host wait.
"""

import time
from typing import Any

from torch.nn.parallel import DistributedDataParallel

DEFAULT_RATE = 100
"""DDP measures its first ten steps, and then one of so many, unless a watch has it measure others."""


class DDPTimers:
    """The timers of one model."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        """AttributeError where this torch has no such timers."""
        self._ddp: Any = ddp
        self.group = ddp.process_group
        self._set_rate: Any = self._ddp._set_ddp_runtime_logging_sample_rate
        self._ended_unix_ns: int | None = None
        self._figures()

    def start(self) -> None:
        """Measure every backward pass from the next forward pass on."""
        self._ended_unix_ns = self._figures().get("backward_comm_time_end")  # a row that is there already is stale
        self._set_rate(1)

    def stop(self) -> None:
        """Measure as seldom as DDP does by itself."""
        self._set_rate(DEFAULT_RATE)

    def read(self) -> tuple[int, int, int] | None:
        """What of the communication of the last backward pass that sent gradients was exposed, how long it took, and
        how long ago it ended, in ns; None where that is unknown, or was read before.
        """
        figures = self._figures()
        ended = figures.get("backward_comm_time_end")
        if not ended or ended == self._ended_unix_ns:
            return None
        self._ended_unix_ns = ended
        communication, overlap = (
            figures.get(key) for key in ("backward_comm_time", "backward_compute_comm_overlap_time")
        )
        if not communication or overlap is None or not figures.get("backward_compute_time"):
            return None
        return max(0, communication - overlap), communication, max(0, time.time_ns() - ended)

    def _figures(self) -> dict[str, int]:
        figures: dict[str, int] = self._ddp.logger._get_ddp_logging_data().ints_map
        return figures
