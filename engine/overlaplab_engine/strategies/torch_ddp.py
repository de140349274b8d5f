"""torch-ddp: torch's DistributedDataParallel in the same harness, as the reference.

A comm hook labels its buckets, which DDP itself does not name in traces, and launches them through the communicator.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

import torch
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from overlaplab_engine import labels
from overlaplab_engine.errors import EngineError
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.strategies.base import Options, Strategy, Traits, register
from overlaplab_engine.strategies.gradients.buckets import Marks
from overlaplab_engine.strategies.gradients.ddp_buckets import BucketLabels


@register
class TorchDDP(Strategy):
    """DDP with gradients as bucket views."""

    name = "torch-ddp"
    traits = Traits(buckets=True)
    waits_within_torch = True
    refuses: ClassVar[Mapping[str, str]] = {
        "main_grad": "torch-ddp has no fp32 main_grad; leave --main-grad out",
        "first_bucket_mb": "torch-ddp has no --first-bucket-mb; leave it out",
    }

    def __init__(self, model: nn.Module, comm: Communicator, options: Options, *, find_unused: bool = False) -> None:
        """See `Strategy`; `find_unused` is DDP's `find_unused_parameters`, with which it never rebuilds its buckets."""
        super().__init__(model, comm, options)
        self._find_unused = find_unused
        self._labels = BucketLabels(dict(model.named_parameters()))
        self._launched: list[Marks] = []
        self._flying: list[torch.futures.Future[list[torch.Tensor]]] = []
        self._ddp: DistributedDataParallel | None = None
        self._wrap()

    @classmethod
    def require(cls, config: Any) -> None:
        super().require(config)
        if getattr(config, "warmup", 2) < 2:
            raise EngineError("torch-ddp rebuilds its buckets in the second step: --warmup must be 2 or more")

    def _wrap(self) -> None:
        self._ddp = None  # the old reducer takes its hooks along
        self._broken = False
        if not self.parameters:
            return
        self._ddp = DistributedDataParallel(
            self.model,
            process_group=self.comm.group,
            bucket_cap_mb=self.options.bucket_cap_mb,  # fractions work
            gradient_as_bucket_view=True,
            find_unused_parameters=self._find_unused,
        )
        self._ddp.register_comm_hook(None, self._hook)

    @property
    def buckets(self) -> list[tuple[int, list[str]]]:
        """Bytes and parameter names of each bucket, as DDP launched them last."""
        return list(self._labels.buckets.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._broken:  # only now: if this rank is to end, it must not call collectives that nobody joins
            self._wrap()
        if self._ddp is not None:  # what DDP's own no_sync does, which would not outlive a new wrapping inside it
            self._ddp.require_backward_grad_sync = self._sync
        return (self._ddp or self.model)(*args, **kwargs)

    def _hook(self, state: None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average one bucket; DDP calls this in bucket order, as soon as the bucket is full."""
        with self._labels.label_launch(bucket) as marks:
            buffer = bucket.buffer()
            if self.comm.prescale != 1:
                buffer.mul_(self.comm.prescale)
            future = self.comm.all_reduce_future(buffer)
        self._launched.append(marks)
        self._flying.append(future)
        return future.then(lambda done: done.value()[0])

    def _finish(self) -> None:
        """DDP has waited inside backward; only now does the main thread know."""
        for marks in self._launched:
            labels.instant(marks.done)
        self._launched, self._flying = [], []

    def _abandon(self) -> None:
        """A reducer stopped midway cannot go on: drain, and wrap the model anew for the next step."""
        with suppress(Exception):
            torch.futures.wait_all(self._flying)
        self._launched, self._flying = [], []
        self._broken = True
