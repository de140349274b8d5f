"""Names for the buckets of torch's DistributedDataParallel, which DDP itself does not name in traces.

[Note: one hook per reducer]
DDP's reducer takes one comm hook and keeps it. To put another in its place, the reducer is built anew, as DDP's own
`__setstate__` does (torch/nn/parallel/distributed.py). That takes no communication, but the new reducer begins with
buckets by order of definition and, after its first backward pass, broadcasts those by order of arrival. So all ranks
must do it between the same two backward passes: one that does so alone waits for the others for good. The recorder's
own hook, a `_Relay`, stays in the reducer, and later recorders take it over without building anything.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from overlaplab_engine import labels
from overlaplab_engine.strategies.gradients.buckets import Marks

__all__ = ["BucketLabels", "Hook", "NamedBuckets", "uncompiled", "unnamed_because"]

Hook: TypeAlias = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]
"""A comm hook, as `DistributedDataParallel.register_comm_hook` takes it."""


class BucketLabels:
    """The labels of one model's buckets, for a comm hook to write."""

    def __init__(self, module: nn.Module) -> None:
        """`module` is the one inside DDP, whose names its parameters go by."""
        self._name_of: dict[torch.Tensor, str] = {p: name for name, p in module.named_parameters()}
        self._known: dict[tuple[int, ...], tuple[list[str], Marks]] = {}
        self._seen: dict[int, tuple[int, list[str]]] = {}

    @property
    def buckets(self) -> list[tuple[int, list[str]]]:
        """Bytes and parameter names of each bucket, as DDP launched them last."""
        return [self._seen[index] for index in sorted(self._seen)]

    @contextmanager
    def launching(self, bucket: GradBucket) -> Iterator[Marks]:
        """Around the launch of a bucket, which is ready by now; DDP launches them in the order of their indices."""
        if bucket.index() == 0:
            self._seen = {}
        names, marks = self._marks_of(bucket)
        self._seen[bucket.index()] = (_nbytes(bucket), names)
        labels.instant(marks.ready)
        with marks.launch:
            yield marks

    def _marks_of(self, bucket: GradBucket) -> tuple[list[str], Marks]:
        parameters = bucket.parameters()
        key = (bucket.index(), *map(id, parameters))
        if key not in self._known:
            names = [self._name_of[p] for p in parameters]
            self._known[key] = names, Marks.of(bucket.index(), _nbytes(bucket), names)
        return self._known[key]


class NamedBuckets:
    """Labels a DDP model's buckets, whatever comm hook sends them: none, one registered before, or one that will be."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        """`unnamed_because(ddp)` must be None, and every rank do so at once; see [Note: one hook per reducer]."""
        self._ddp: DistributedDataParallel | None = ddp
        self._group = ddp.process_group
        self._labels = BucketLabels(uncompiled(ddp.module))
        self._users: tuple[Hook, Any] | None = None
        if ddp._comm_hooks:
            self._users = ddp._comm_hooks[-1]
        if ddp not in _relays:
            if self._users is not None:
                _rebuild(ddp)
            _relays[ddp] = _Relay()
            ddp.register_comm_hook(None, _relays[ddp].send)
        _relays[ddp].to = self._hook
        ddp._comm_hooks = [] if self._users is None else [self._users]
        ddp.register_comm_hook = self._register  # type: ignore[method-assign]

    @property
    def buckets(self) -> list[tuple[int, list[str]]]:
        """See `BucketLabels`."""
        return self._labels.buckets

    def restore(self) -> None:
        """Write no more labels, and only pass buckets on: to the user's hook, or as DDP does without one.

        The reducer stays, so that one rank may have recorded alone.
        """
        ddp, self._ddp = self._ddp, None
        if ddp is None:
            return
        del ddp.register_comm_hook
        if self._users is None:
            self._users = (allreduce_hook, self._group)
            ddp._comm_hooks = [self._users]

    def _register(self, state: object, hook: Hook) -> None:
        """In place of the model's `register_comm_hook`, in whose reducer there is a hook already."""
        assert self._ddp is not None
        if self._users is not None:
            raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
        self._ddp._check_comm_hook(hook)  # type: ignore[no-untyped-call]
        self._users = (hook, state)
        self._ddp._comm_hooks = [self._users]

    def _hook(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if self._ddp is None:
            return self._send(bucket)
        with self._labels.launching(bucket):
            return self._send(bucket)

    def _send(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if self._users is None:
            return allreduce_hook(self._group, bucket)
        hook, state = self._users
        return hook(state, bucket)


class _Relay:
    """The hook in a reducer, for one recorder after another; see [Note: one hook per reducer]."""

    to: Callable[[GradBucket], torch.futures.Future[torch.Tensor]]

    def send(self, state: None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return self.to(bucket)


_relays: WeakKeyDictionary[DistributedDataParallel, _Relay] = WeakKeyDictionary()


def uncompiled(module: nn.Module) -> nn.Module:
    """What `torch.compile` wrapped, if it did: there parameters and layers have their own names."""
    found: nn.Module = getattr(module, "_orig_mod", module)
    return found


def unnamed_because(ddp: DistributedDataParallel) -> str | None:
    """Why a model's buckets cannot be named, for a user to read; None if they can."""
    if ddp.mixed_precision is not None:
        return "DDP's own mixed_precision brings a comm hook along"
    if any(hasattr(p, "_in_backward_optimizers") for p in ddp.parameters()):
        return "optimizers that run inside the backward pass bring a comm hook along"
    name = ddp._get_ddp_logging_data().get("comm_hook")  # type: ignore[no-untyped-call]
    if name and not ddp._comm_hooks:
        return f"the built-in comm hook {name} cannot be wrapped; a Python one can (torch.distributed.algorithms)"
    return None


def _rebuild(ddp: DistributedDataParallel) -> None:
    """A reducer without a hook; see [Note: one hook per reducer]."""
    inner: Any = ddp
    device = next(ddp.parameters()).device
    if device.type == "cuda":  # after a pass that failed, collectives may still write into the old one's buckets
        torch.cuda.synchronize(device)
    del inner.reducer, inner.logger  # the old one takes its gradient hooks along
    parameters, sparse = inner._build_params_for_reducer()
    inner._ddp_init_helper(parameters, sparse, inner._build_debug_param_to_name_mapping(parameters), inner.static_graph)
    inner._comm_hooks = []
    if inner.static_graph:
        inner.reducer._set_static_graph()
        inner.logger._set_static_graph()
        inner._static_graph_delay_allreduce_enqueued = False


def _nbytes(bucket: GradBucket) -> int:
    """Of its gradients before a hook compresses them; sparse ones as if they were dense."""
    buffer = bucket.buffer()
    return buffer.numel() * buffer.element_size()
