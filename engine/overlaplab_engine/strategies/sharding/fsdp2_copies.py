"""The copies of FSDP2's CPUOffloadPolicy, where the device is a CPU and torch's own do nothing.

See [Note: offloading on the CPU] in `overlaplab_engine.strategies.torch_fsdp2`.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from overlaplab_engine.network.host_link import Copy, HostLink, Way, on_host
from overlaplab_engine.network.process_group import EmulatedLinkGroup
from overlaplab_engine.strategies.gradients.hooks import after_accumulation

__all__ = ["Landing", "Rising"]

_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Rising:
    """FSDP2's all-gather (its interface `AllGather`): the shard first comes up from the host."""

    def __init__(self, link: HostLink) -> None:
        """`link` is the one to the host."""
        self._link = link

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory for what is gathered."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> Any:
        """Launch the copy, then the gather, and return its work.

        Behind an emulated link the gather waits for the copy, and not who calls, as on a GPU's stream. gloo would start
        at once, so that here is waited for the copy.
        """
        shard = torch.empty_like(input_tensor)
        copy = self._link.copy(Way.UP, shard, input_tensor)
        if not isinstance(group, EmulatedLinkGroup):
            copy.wait()
            return _all_gather(output_tensor, shard, group=group, async_op=async_op)
        with group.after(copy.wait):
            return _all_gather(output_tensor, shard, group=group, async_op=async_op)


class Landing:
    """One unit's reduced gradients, which go down to the host."""

    def __init__(self, link: HostLink, parameters: Sequence[DTensor]) -> None:
        """`parameters` are this rank's parts of those that the unit trains, in FSDP2's order."""
        self._link = link
        self._last = parameters[-1]
        self._reduced: list[DTensor] = []
        """Gradients that are still on the device."""
        self._copies: list[Copy] = []
        for parameter in parameters:
            after_accumulation(parameter, self._arrived)

    def finish(self) -> None:
        """Wait until all are on the host."""
        self._begin()
        for copy in self._copies:
            copy.wait()
        self._copies = []

    def _arrived(self, parameter: torch.Tensor) -> None:
        assert isinstance(parameter.grad, DTensor)
        self._reduced.append(parameter.grad)
        if parameter is self._last:
            self._begin()

    @torch.no_grad()
    def _begin(self) -> None:
        """Begin to copy the storages that they share; from now on they lie in the host's memory."""
        landed: dict[int, torch.Tensor] = {}
        for gradient in self._reduced:
            part = gradient._local_tensor
            storage = part.untyped_storage()
            if storage.data_ptr() not in landed:
                whole = part.new_empty(0).set_(storage)
                with on_host():
                    landed[storage.data_ptr()] = torch.empty_like(whole)
                self._copies.append(self._link.copy(Way.DOWN, landed[storage.data_ptr()], whole))
            gradient._local_tensor = landed[storage.data_ptr()].as_strided(
                part.size(), part.stride(), part.storage_offset()
            )
        self._reduced = []
