"""The CUDA streams that collectives run on, and what waits for what. The host never waits.

All-gathers have one stream and reductions another, so that incoming parameters do not queue behind outgoing gradients
(FSDPCommContext in torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py). A collective called with `async_op=False`
is launched on the current stream: since torch 2.8 NCCL's kernel runs on that stream itself, and any other backend makes
that stream wait for its own.

[Note: events]
A launch first makes its stream wait for everything queued on the computation's stream so far, so that the collective
reads what was computed. `wait` makes the current stream wait for the collective. Both use events on the device; the
host goes on, and may be milliseconds ahead.

[Note: buffers kept alive]
All memory is allocated while the computation's stream is current, and the caching allocator reuses freed memory in that
stream's order. So one rule suffices: **whoever frees a buffer has waited for every collective that touches it**. The
next use of the memory is queued behind that wait, on these streams too, since they first wait for the computation's. A
`Work` keeps its tensors until it is waited for. Code that resizes a storage to zero (zero3) waits first. A pass that
fails waits for the collectives it launched. So nothing needs `record_stream`, with which memory would be reusable only
when the host next checks.
"""

from collections.abc import Callable
from typing import Any

import torch

from overlaplab_engine.network.link import Kind


class StreamWork:
    """A collective on its stream; see [Note: events]."""

    def __init__(self, cuda: Any, event: Any) -> None:
        """`event` follows the collective on its stream."""
        self._cuda = cuda
        self._event = event

    def wait(self) -> None:
        """Make the current stream wait for the collective."""
        self._cuda.current_stream().wait_event(self._event)

    def is_completed(self) -> bool:
        """Always false: an answer that depends on when the host asks would make passes differ."""
        return False


class CommStreams:
    """The streams of one rank's collectives, which have priority over the computation's."""

    def __init__(self, cuda: Any = torch.cuda) -> None:
        """`cuda` is torch.cuda, or a stand-in for tests."""
        self.cuda = cuda
        self._gathers = cuda.Stream(priority=-1)
        self._reductions = cuda.Stream(priority=-1)

    def launch(self, kind: Kind, call: Callable[[], object]) -> StreamWork:
        """Run `call`, a collective with `async_op=False`, on its kind's stream, after all work queued so far."""
        stream = self._gathers if kind is Kind.ALL_GATHER else self._reductions
        stream.wait_stream(self.cuda.current_stream())
        with self.cuda.stream(stream):
            call()
        return StreamWork(self.cuda, stream.record_event())
