"""On CUDA, the streams that collectives run on, and who waits for whom. The host waits for nothing.

Gathers have a stream, whatever reduces has another, so that parameters on their way in do not queue behind gradients on
their way out (FSDPCommContext in torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py). A collective called with
`async_op=False` is launched on the stream that is current: since torch 2.8 NCCL's kernel runs there itself, and another
backend makes that stream wait for its own.

[Note: events]
A launch first makes its stream wait for all that the computation's stream was given until then, so that the collective
reads what was computed. `wait` makes the stream that is current wait for the collective. Both are events on the device:
the host goes on, and may be milliseconds ahead.

[Note: buffers kept alive]
All memory is allocated with the computation's stream current, and the caching allocator gives freed memory out again in
that stream's order. So one rule suffices: **whoever frees a buffer has waited for every collective that touches it**.
What the memory is used for next is queued behind that wait, on these streams too, as they first wait for the
computation's. A `Work` keeps its tensors until it is waited for; a storage that is resized to nothing (zero3's) belongs
to whoever resizes it, who waits first; a pass that fails waits for what it had launched. So nothing needs
`record_stream`, with which memory would come back only when the host happens to look.
"""

from collections.abc import Callable
from typing import Any

import torch

from overlaplab_engine.network.link import Kind

__all__ = ["CommStreams", "StreamWork"]


class StreamWork:
    """A collective on its stream; see [Note: events]."""

    def __init__(self, cuda: Any, event: Any) -> None:
        """`event` comes after it."""
        self._cuda = cuda
        self._event = event

    def wait(self) -> None:
        """Make the current stream wait for it."""
        self._cuda.current_stream().wait_event(self._event)

    def is_completed(self) -> bool:
        """Never: what depended on the moment that the host asks would differ from pass to pass."""
        return False


class CommStreams:
    """The streams of one rank's collectives."""

    def __init__(self, cuda: Any = torch.cuda) -> None:
        """`cuda` makes streams and knows the current one. Before the computation's work collectives have priority."""
        self._cuda = cuda
        self._gathers = cuda.Stream(priority=-1)
        self._reductions = cuda.Stream(priority=-1)

    def launch(self, kind: Kind, call: Callable[[], object]) -> StreamWork:
        """Let `call`, a collective with `async_op=False`, run on the stream of its kind, after what is queued now."""
        stream = self._gathers if kind is Kind.ALL_GATHER else self._reductions
        stream.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(stream):
            call()
        return StreamWork(self._cuda, stream.record_event())
