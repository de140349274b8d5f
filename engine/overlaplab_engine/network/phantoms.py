"""Phantoms: the peers of a rank that stands for a whole group alone.

[Note: what one rank moves]
A phantom neither sends nor receives, but the rank's own memory is read and written as a ring would do it (NVIDIA's
NCCL, and Thakur et al. 2005): data sent is copied to staging memory, and data received is written to its destination.
The parts that a gather receives come from scratch memory, which always holds the same small random values. A reduction
is computed as if all `size` ranks had this rank's values. Since nobody trains the other parts of a gather, a run among
phantoms is recorded for its times, and its losses are meaningless. Tests replace `_receive` to give the peers the
values that they would have.

Scratch and staging memory hold one block, and larger tensors are moved block by block. On a CPU a block is so small
that torch moves it on the calling thread alone: its pool's threads would inherit the real-time priority of the link's
thread.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed

from overlaplab_engine.errors import EngineError

dist: Any = torch.distributed  # its type stubs lack most of the names that a process group needs

BLOCK_ELEMENTS = {"cpu": 1 << 15, "cuda": 1 << 24}
"""Elements moved at once; on a CPU at::internal::GRAIN_SIZE (ATen/Parallel.h)."""
SCALE = 0.02
"""Standard deviation of the values that phantoms send, equal to that of the model's initial weights."""


class Phantoms:
    """The methods of ProcessGroupGloo that a process group needs, for rank `rank` of `size`.

    They return when the data is moved or, on CUDA, when that is queued on the current stream.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._scratch: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}
        self._staging: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}

    @property
    def scratch_bytes(self) -> int:
        return sum(t.nbytes for t in (*self._scratch.values(), *self._staging.values()))

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> "_Done":
        """Each tensor becomes the reduction of `size` tensors equal to it."""
        for tensor in tensors:
            self._reduce(tensor, tensor, opts.reduceOp)
        return _Done()

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: list[torch.Tensor], *_: Any) -> "_Done":
        """Tensors are sent, and keep their values, as all ranks have the same."""
        for tensor in tensors:
            self._send(tensor)
        return _Done()

    send = broadcast

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> "_Done":
        """Every rank's tensor equals this one's. Nothing is staged: what is gathered is only compared and counted."""
        for output, tensor in zip(outputs, inputs, strict=True):
            for part in output:
                part.data.copy_(tensor.data)
        return _Done()

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> "_Done":
        """Fill `output` (size × elements,) with this rank's `input` (elements,) and the phantoms' parts."""
        full, part = output.data.view(-1), input.data.reshape(-1)
        begin, end = self._rank * part.numel(), (self._rank + 1) * part.numel()
        if full[begin:end].data_ptr() != part.data_ptr():
            full[begin:end].copy_(part)
        self._receive(output, 0, begin)
        self._receive(output, end, full.numel())
        return _Done()

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> "_Done":
        """This rank's part of the reduction of `size` equal lists."""
        for output, parts in zip(outputs, inputs, strict=True):
            for part in parts:
                self._send(part)
            self._reduce(output, parts[self._rank], opts.reduceOp)
        return _Done()

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> "_Done":
        """`output` (elements,) is this rank's part of the reduction of `size` tensors equal to `input`."""
        self._send(input)
        part = input.data.view(self._size, -1)[self._rank]
        self._reduce(output, part, opts.reduceOp)
        return _Done()

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> "_Done":
        """On the root as `allreduce`; elsewhere tensors are sent and keep their values."""
        for tensor in tensors:
            self._reduce(tensor, tensor, opts.reduceOp) if opts.rootRank == self._rank else self._send(tensor)
        return _Done()

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> "_Done":
        """On the root as `allgather`; elsewhere the input is sent."""
        if opts.rootRank == self._rank:
            return self.allgather(outputs, inputs, opts)
        for tensor in inputs:
            self._send(tensor)
        return _Done()

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> "_Done":
        """On the root the list is sent, and its own part copied; elsewhere the part comes from a phantom."""
        if opts.rootRank != self._rank:
            return self.recv(outputs, opts.rootRank, 0)
        for output, parts in zip(outputs, inputs, strict=True):
            for part in parts:
                self._send(part)
            output.data.copy_(parts[self._rank].data)
        return _Done()

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> "_Done":
        for tensor in tensors:
            self._receive(tensor, 0, tensor.numel())
        return _Done()

    def alltoall_base(
        self, output: torch.Tensor, input: torch.Tensor, output_splits: list[int], input_splits: list[int], opts: Any
    ) -> "_Done":
        """`output` has this rank's part of `input` at this rank's place, and the phantoms' parts at theirs.

        Splits count rows; empty ones mean equal parts.
        """
        into = torch.split(output.data, output_splits or output.shape[0] // self._size)
        out_of = torch.split(input.data, input_splits or input.shape[0] // self._size)
        self._send(input)
        for rank, part in enumerate(into):
            if rank == self._rank:
                part.copy_(out_of[rank])
            else:
                self._receive(part, 0, part.numel())
        return _Done()

    def barrier(self, opts: Any) -> "_Done":
        """Return at once: phantoms are always there."""
        return _Done()

    def abort(self) -> None:
        """Do nothing: nobody waits."""

    def _receive(self, output: torch.Tensor, begin: int, end: int) -> None:
        """Fill elements `begin` to `end` of a gather's output, which are other ranks' parts."""
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
        """The factor by which reducing `size` equal numbers multiplies them."""
        if op == dist.ReduceOp.SUM:
            return self._size
        # Not `in`, which has the enum on the left: an enum never equals a ReduceOp object.
        if any(op == same for same in (dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.MIN)):
            return 1
        raise EngineError("phantoms do not support this reduction, only SUM, AVG, MAX and MIN")

    def _blocks(self, flat: torch.Tensor) -> Iterator[torch.Tensor]:
        return iter(torch.split(flat, BLOCK_ELEMENTS[flat.device.type]))

    def _stage(self, block: torch.Tensor) -> torch.Tensor:
        return _lend(self._staging, block, torch.empty).copy_(block)

    def _peers(self, block: torch.Tensor) -> torch.Tensor:
        return _lend(self._scratch, block, _small_values)


def _lend(memory: dict[tuple[torch.device, torch.dtype], torch.Tensor], block: torch.Tensor, make: Any) -> torch.Tensor:
    """Memory with `block`'s size, dtype and device; it is reused and grows with the largest block."""
    key = block.device, block.dtype
    if key not in memory or memory[key].numel() < block.numel():
        memory.pop(key, None)
        memory[key] = make(block.numel(), device=block.device, dtype=block.dtype)
    return memory[key][: block.numel()]


def _small_values(numel: int, *, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Small random values, always the same; zeros for integers."""
    values = torch.zeros(numel, device=device, dtype=dtype)
    if values.is_floating_point():
        values.normal_(0, SCALE, generator=torch.Generator(device).manual_seed(0))
    return values


class _Done:
    """A completed work."""

    def wait(self) -> None:
        """Return at once."""
