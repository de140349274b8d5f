"""The link between a GPU and its host's memory: copies of pinned memory, on a stream for each direction.

[Note: copies to the host]
A copy waits for everything queued on the computation's stream so far, and runs beside what is queued later. Who waits
for a copy to the device is the current stream. Who waits for one to the host is the host itself, which is about to read
what came: this is the only place where the host waits for the device in a pass. Sources are kept until then (see [Note:
buffers kept alive] in `overlaplab_engine.network.streams`).

What the host updates must no longer be on its way up. It is not: a part of the parameters is updated only where it got
a gradient; that came down after a pass that read these parameters, which had waited for their copy.
"""

from typing import Any

import torch

from overlaplab_engine import labels
from overlaplab_engine.labels import Word
from overlaplab_engine.network.host_link import Way


class StreamCopy:
    """A copy on its stream; keep the destination as it is until it is waited for."""

    def __init__(self, cuda: Any, way: Way, event: Any, source: torch.Tensor) -> None:
        """`event` follows the copy on its stream."""
        self._cuda, self._way, self._event = cuda, way, event
        self._source: torch.Tensor | None = source

    def wait(self) -> None:
        """Make the host wait for a copy to it, the current stream for one to the device."""
        if self._way is Way.DOWN:
            self._event.synchronize()
        else:
            self._cuda.current_stream().wait_event(self._event)
        self._source = None

    def is_completed(self) -> bool:
        """Whether the device is done. No launch of a collective may depend on it, since ranks get different answers."""
        return bool(self._event.query())


class HostStreams:
    """One rank's link to its host's memory; see [Note: copies to the host]."""

    def __init__(self, cuda: Any = torch.cuda) -> None:
        """`cuda` is torch.cuda, or a stand-in for tests."""
        self._cuda = cuda
        self._streams = {way: cuda.Stream(priority=-1) for way in Way}

    @torch.no_grad()
    def copy(self, way: Way, destination: torch.Tensor, source: torch.Tensor) -> StreamCopy:
        """Copy `source` to `destination`, of the same shape; returns at once if the host's memory is pinned."""
        stream = self._streams[way]
        with labels.span(Word.COPY, way=way, bytes=source.nbytes):
            stream.wait_stream(self._cuda.current_stream())
            with self._cuda.stream(stream):
                destination.copy_(source, non_blocking=True)
            return StreamCopy(self._cuda, way, stream.record_event(), source)
