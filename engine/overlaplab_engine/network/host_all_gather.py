"""FSDP2's all-gather of shards that lie in the host's memory.

See [Note: offloading on the CPU] in `overlaplab_engine.strategies.torch_fsdp2`.
"""

from collections.abc import Sequence
from typing import Any

import torch

from overlaplab_engine.network.communicator import all_gather_single
from overlaplab_engine.network.host_link import HostLink, Way
from overlaplab_engine.network.process_group import EmulatedLinkGroup


class HostAllGather:
    """FSDP2's all-gather (its interface `AllGather`): the shard first comes up from the host."""

    def __init__(self, link: HostLink) -> None:
        self._link = link

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> Any:
        """Launch the copy, then the gather, and return its work.

        Behind an emulated link the gather waits for the copy, and not the caller, as on a GPU's stream. gloo would
        start at once, so that here the caller waits.
        """
        shard = torch.empty_like(input_tensor)
        copy = self._link.copy(Way.UP, shard, input_tensor)
        if not isinstance(group, EmulatedLinkGroup):
            copy.wait()
            return all_gather_single(output_tensor, shard, group=group, async_op=async_op)
        with group.begin_after(copy.wait):
            return all_gather_single(output_tensor, shard, group=group, async_op=async_op)
