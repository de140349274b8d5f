"""The copies of FSDP2's CPUOffloadPolicy, where the device is a CPU and torch's own do nothing.

See [Note: offloading on the CPU] in `overlaplab_engine.strategies.torch_fsdp2`.
"""

from collections.abc import Sequence

import torch
from torch.distributed.tensor import DTensor

from overlaplab_engine.network.host_link import Copy, HostLink, Way, host_memory
from overlaplab_engine.strategies.gradients.hooks import after_accumulation


class GradientCopies:
    """One unit's reduced gradients, which go down to the host."""

    def __init__(self, link: HostLink, parameters: Sequence[DTensor]) -> None:
        """`parameters` are this rank's parts of those that the unit trains, in FSDP2's order."""
        self._link = link
        self._last = parameters[-1]
        self._reduced: list[DTensor] = []
        """Gradients that are still on the device."""
        self._copies: list[Copy] = []
        for parameter in parameters:
            after_accumulation(parameter, self._take_gradient)

    def finish(self) -> None:
        """Wait until all are on the host."""
        self._begin()
        for copy in self._copies:
            copy.wait()
        self._copies = []

    def _take_gradient(self, parameter: torch.Tensor) -> None:
        assert isinstance(parameter.grad, DTensor)
        self._reduced.append(parameter.grad)
        if parameter is self._last:
            self._begin()

    @torch.no_grad()
    def _begin(self) -> None:
        """Begin to copy the storages that they share; from now on they lie in the host's memory."""
        host_storages: dict[int, torch.Tensor] = {}
        for gradient in self._reduced:
            part = gradient._local_tensor
            storage = part.untyped_storage()
            if storage.data_ptr() not in host_storages:
                whole = part.new_empty(0).set_(storage)
                host_storages[storage.data_ptr()] = host_memory(whole)
                self._copies.append(self._link.copy(Way.DOWN, host_storages[storage.data_ptr()], whole))
            gradient._local_tensor = host_storages[storage.data_ptr()].as_strided(
                part.size(), part.stride(), part.storage_offset()
            )
        self._reduced = []
