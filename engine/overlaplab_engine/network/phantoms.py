"""Phantoms: the peers of a rank that stands for a whole group alone.

[Note: what one rank moves]
A phantom sends nothing and gets nothing, but the rank's own memory is read and written as a ring would (NVIDIA's NCCL,
and Thakur et al. 2005): what it sends is copied to staging memory, and what it receives is written to where it
belongs. Received parts of a gather come from scratch memory, which holds small random values once and for all. A
reduction is that of `size` equal ranks, so its result is right if all ranks do the same, and has the right size if they
do not. All other parts of a gather would have to be trained, too: a run among phantoms is for its times, and its
numerics are not meant. `_receive` is what a test replaces to give peers the values that they would have.

Scratch and staging hold a block, and larger tensors are moved block by block. On a CPU a block is so small that torch
moves it with the calling thread alone: threads of its own pool would inherit [Note: one thread is the link]'s priority.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed

from overlaplab_engine.errors import EngineError

__all__ = ["Phantoms"]

dist: Any = torch.distributed  # whose stubs know few of the names that a process group needs

BLOCK_ELEMENTS = {"cpu": 1 << 15, "cuda": 1 << 24}
"""What is moved at once; on a CPU at::internal::GRAIN_SIZE (ATen/Parallel.h)."""
SCALE = 0.02
"""Standard deviation of what phantoms send: that of the model's initial weights."""


class Phantoms:
    """Has the methods of ProcessGroupGloo that a process group needs, for rank `rank` of `size`.

    They return when everything is moved, or, on CUDA, queued on the current stream.
    """

    def __init__(self, rank: int, size: int) -> None:
        """All ranks but `rank` are phantoms."""
        self._rank, self._size = rank, size
        self._scratch: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}
        self._staging: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}

    @property
    def scratch_bytes(self) -> int:
        """Memory that is lent to phantoms."""
        return sum(t.nbytes for t in (*self._scratch.values(), *self._staging.values()))

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> "_Done":
        """Each tensor becomes the reduction of `size` tensors like it."""
        for tensor in tensors:
            self._reduce(tensor, tensor, opts.reduceOp)
        return _Done()

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> "_Done":
        """Each tensor stays: all ranks have the same."""
        for tensor in tensors:
            self._send(tensor)
        return _Done()

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> "_Done":
        """Every rank's tensor is this one's, as whoever gathers lists wants to compare or count."""
        for output, tensor in zip(outputs, inputs, strict=True):
            for part in output:
                part.data.copy_(tensor.data)
        return _Done()

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> "_Done":
        """(size × elements,) from (elements,): this rank's part, and the phantoms'."""
        full, own = output.data.view(-1), input.data.reshape(-1)
        begin, end = self._rank * own.numel(), (self._rank + 1) * own.numel()
        if full[begin:end].data_ptr() != own.data_ptr():
            full[begin:end].copy_(own)
        self._receive(output, 0, begin)
        self._receive(output, end, full.numel())
        return _Done()

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> "_Done":
        """This rank's part of the reduction of `size` such lists."""
        for output, parts in zip(outputs, inputs, strict=True):
            for part in parts:
                self._send(part)
            self._reduce(output, parts[self._rank], opts.reduceOp)
        return _Done()

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> "_Done":
        """(elements,) from (size × elements,): this rank's part of the reduction of `size` such tensors."""
        self._send(input)
        own = input.data.view(self._size, -1)[self._rank]
        self._reduce(output, own, opts.reduceOp)
        return _Done()

    def alltoall_base(self, *args: Any) -> "_Done":
        """EngineError: no strategy needs it."""
        raise EngineError("an all-to-all needs real peers: use --nproc, and leave WORLD out of --link")

    def barrier(self, opts: Any) -> "_Done":
        """Phantoms are always there."""
        return _Done()

    def abort(self) -> None:
        """Nobody waits for anybody."""

    def _receive(self, output: torch.Tensor, begin: int, end: int) -> None:
        """Elements `begin` to `end` of a gather's output: other ranks' parts."""
        for block in self._blocks(output.data.view(-1)[begin:end]):
            block.copy_(self._peers(block))

    def _send(self, tensor: torch.Tensor) -> None:
        for block in self._blocks(tensor.data.reshape(-1)):
            self._stage(block)

    def _reduce(self, output: torch.Tensor, tensor: torch.Tensor, op: Any) -> None:
        factor = self._factor(op)
        pairs = zip(self._blocks(output.data.view(-1)), self._blocks(tensor.data.reshape(-1)), strict=True)
        for target, block in pairs:
            staged = self._stage(block)
            target.copy_(staged) if factor == 1 else torch.mul(staged, factor, out=target)

    def _factor(self, op: Any) -> int:
        """What `size` equal numbers become, divided by one of them."""
        if op == dist.ReduceOp.SUM:
            return self._size
        if any(op == same for same in (dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.MIN)):  # `in` would not do
            return 1
        raise EngineError("phantoms do not know this reduction: only SUM, AVG, MAX and MIN")

    def _blocks(self, flat: torch.Tensor) -> Iterator[torch.Tensor]:
        return iter(torch.split(flat, BLOCK_ELEMENTS[flat.device.type]))

    def _stage(self, block: torch.Tensor) -> torch.Tensor:
        """The block's copy."""
        return _lend(self._staging, block, torch.empty).copy_(block)

    def _peers(self, block: torch.Tensor) -> torch.Tensor:
        """Values for a block that phantoms send."""
        return _lend(self._scratch, block, _small)


def _lend(held: dict[tuple[torch.device, torch.dtype], torch.Tensor], block: torch.Tensor, make: Any) -> torch.Tensor:
    """As many elements as `block` has, of its type and where it is: the same memory for all, which grows."""
    key = block.device, block.dtype
    if key not in held or held[key].numel() < block.numel():
        held.pop(key, None)
        held[key] = make(block.numel(), device=block.device, dtype=block.dtype)
    return held[key][: block.numel()]


def _small(numel: int, *, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Small random values, the same ones always; zeros for integers."""
    made = torch.zeros(numel, device=device, dtype=dtype)
    if made.is_floating_point():
        made.normal_(0, SCALE, generator=torch.Generator(device).manual_seed(0))
    return made


class _Done:
    """A work that is done."""

    def wait(self) -> None:
        """Nothing is left to wait for."""
