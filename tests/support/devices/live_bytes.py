"""How much memory tensors take at most while something runs, read from their storages after every operator."""

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the storages on the CPU that operators of this thread have made within it, each once."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._known: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if not isinstance(tensor, torch.Tensor) or isinstance(tensor, DTensor):  # whose local tensor counts
                continue
            storage = tensor.untyped_storage()
            if storage.device.type == "cpu":  # that of a fake tensor is `meta`
                reference = StorageWeakRef(storage)
                self._known.setdefault(reference.cdata, reference)
        self.peak = max(self.peak, self.now())
        return result

    def now(self) -> int:
        """Bytes of those that are alive."""
        self._known = {key: reference for key, reference in self._known.items() if not reference.expired()}
        storages = [torch.UntypedStorage._new_with_weak_ptr(key) for key in self._known]
        return sum(storage.nbytes() for storage in storages if storage is not None)
