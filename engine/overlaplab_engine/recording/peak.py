"""The most memory that a rank's tensors take at one time, and the largest batch whose peak is within a limit.

On a GPU the allocator counts. On a CPU there is none that does: each operator's outputs are seen as it is
dispatched, and each storage counts from then until it is freed, or as it is resized. What an operator uses inside, and
frees before it returns, is not seen. (As in torch/distributed/_tools/mem_tracker.py.)
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from overlaplab_engine.config import Bytes
from overlaplab_engine.errors import EngineError
from overlaplab_engine.network.host_link import allocates_on_host

_LARGEST_TRIED = 1 << 20
"""The largest batch that is tried."""


@dataclass(slots=True)
class _Seen:
    """A storage that is counted, or left out."""

    nbytes: int
    left_out: bool
    finalizer: object
    """Kept alive: calls back when the storage is freed."""


class Peak(TorchDispatchMode):
    """Counts the storages of CPU tensors that are allocated within it, but for the host's."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        """Bytes that are allocated now."""
        self.most = 0
        """The most that there were, since `reset_most`."""
        self._seen: dict[int, _Seen] = {}
        self._freed: deque[int] = deque()  # by any thread
        self._resize: Any = torch.UntypedStorage.resize_

    def __enter__(self) -> "Peak":
        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = self._resize(storage, size)
            self._forget_freed()
            if storage._cdata in self._seen:
                self._count(storage)
                self.most = max(self.most, self.now)
            return result

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def reset_most(self) -> None:
        self._forget_freed()
        self.most = self.now

    def leave_out(self, tensors: Iterable[torch.Tensor]) -> None:
        """Do not count the storages of these tensors, which are the host's."""
        for tensor in tensors:
            seen = self._seen.get(tensor.untyped_storage()._cdata)
            if seen is not None and not seen.left_out:
                seen.left_out = True
                self.now -= seen.nbytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor | AsyncCollectiveTensor) for kind in types):
            return NotImplemented  # its own dispatch calls operators on the tensors in it
        out = func(*args, **(kwargs or {}))
        self._forget_freed()
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" and not _is_wrapper(type(tensor)):
                self._count(tensor.untyped_storage())
        self.most = max(self.most, self.now)
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        seen = self._seen.get(key)
        if seen is None:
            finalizer = weakref.ref(storage, lambda _: self._freed.append(key))
            seen = self._seen[key] = _Seen(0, allocates_on_host(), finalizer)
        if not seen.left_out:
            self.now += storage.nbytes() - seen.nbytes
        seen.nbytes = storage.nbytes()

    def _forget_freed(self) -> None:
        while self._freed:
            seen = self._seen.pop(self._freed.popleft(), None)
            if seen is not None and not seen.left_out:
                self.now -= seen.nbytes


def _is_wrapper(kind: type[torch.Tensor]) -> bool:
    """Whether this subclass has no storage of its own."""
    dispatch: Any = kind.__torch_dispatch__
    return dispatch is not torch.Tensor.__torch_dispatch__


def largest_batch(measure_peak: Callable[[int], int], limit: int) -> tuple[int, int]:
    """The largest batch with a peak of at most `limit` bytes, and its peak, by doubling, then by bisection.

    `measure_peak` returns the peak of a batch in bytes; larger batches take no less. Peaks grow as the batch does, so
    doubling goes no further than to what should just fit: a GPU may have little more memory than the limit. EngineError
    if not even one sample fits, or more than any batch that is tried.
    """
    low, peak, high = 1, measure_peak(1), 2
    one_peak = peak
    if peak > limit:
        raise EngineError(f"--memory-limit {Bytes(limit)}: one sample per rank already takes {Bytes(peak)} at its peak")
    while (more := measure_peak(high)) <= limit:
        per_sample = max((more - one_peak) // (high - 1), 1)
        room = max((limit - more) // per_sample, 1)
        low, peak, high = high, more, high + min(room, high)
        if high > _LARGEST_TRIED:
            raise EngineError(f"--memory-limit {Bytes(limit)} is more than {low} samples take; name a lower one")
    while high - low > 1:
        middle = (low + high) // 2
        if (more := measure_peak(middle)) <= limit:
            low, peak = middle, more
        else:
            high = middle
    return low, peak
