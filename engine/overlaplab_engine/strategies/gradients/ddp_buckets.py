"""Names for the buckets of torch's DistributedDataParallel, which DDP itself does not name in traces.

[Note: one hook per reducer]
DDP's reducer takes one comm hook and keeps it. To put another in its place, the reducer is built anew, as DDP's own
`__setstate__` does (torch/nn/parallel/distributed.py). That takes no communication, but the new reducer begins with
buckets by order of definition and, after its first backward pass, broadcasts those by order of arrival. So all ranks
must do it between the same two backward passes: one that does so alone waits for the others for good. The recorder's
own hook, a `CommHook`, stays in the reducer, and later recorders take it over without building anything.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Self, TypeAlias, cast
from weakref import ref

import torch
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from overlaplab_engine import labels
from overlaplab_engine.errors import EngineError
from overlaplab_engine.network import joined
from overlaplab_engine.strategies.gradients.buckets import Marks

Hook: TypeAlias = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]
"""A comm hook, as `DistributedDataParallel.register_comm_hook` takes it."""


class BucketLabels:
    """The labels of one model's buckets, for a comm hook to write."""

    def __init__(
        self, parameters: Mapping[str, torch.Tensor], numbers: dict[tuple[int, int], int] | None = None
    ) -> None:
        """`parameters` are the model's, by name.

        `numbers` is shared by the models whose buckets are numbered together, in the order of their first launch.
        """
        self._name_of = {parameter: name for name, parameter in parameters.items()}
        self._numbers = {} if numbers is None else numbers
        self._marks: dict[tuple[int, ...], tuple[list[str], Marks]] = {}
        self._launched: dict[int, tuple[int, list[str]]] = {}

    @property
    def buckets(self) -> dict[int, tuple[int, list[str]]]:
        """Bytes and parameter names of each bucket by its number, as DDP launched them last."""
        return dict(sorted(self._launched.items()))

    def restart(self) -> None:
        """Forget the buckets and their numbers, those of all models that share them."""
        self._numbers.clear()
        self._launched = {}

    @contextmanager
    def label_launch(self, bucket: GradBucket) -> Iterator[Marks]:
        """Label the launch of a bucket, which is ready by now; DDP launches them in the order of their indices.

        EngineError, before anything is labelled, if the bucket has a parameter that the model does not have.
        """
        if bucket.index() == 0:
            self._launched = {}
        number = self._numbers.setdefault((id(self), bucket.index()), len(self._numbers))
        names, marks = self._bucket_marks(bucket, number)
        self._launched[number] = (_nbytes(bucket), names)
        labels.instant(marks.ready)
        with marks.launch:
            yield marks

    def _bucket_marks(self, bucket: GradBucket, number: int) -> tuple[list[str], Marks]:
        parameters = bucket.parameters()
        key = (number, *map(id, parameters))
        if key not in self._marks:
            if any(p not in self._name_of for p in parameters):
                raise EngineError("a bucket of DDP's has a parameter that the model no longer has")
            names = [self._name_of[p] for p in parameters]
            self._marks[key] = names, Marks.for_bucket(number, _nbytes(bucket), names)
        return self._marks[key]


class CommHook:
    """The hook in a model's reducer, for one recorder after another; see [Note: one hook per reducer].

    It passes buckets on to the user's hook, or does as DDP does without one, and labels them in between. Afterwards it
    stays, so that one rank may have recorded alone. It also stands in place of the model's `register_comm_hook`,
    because the reducer takes no second hook.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        """Use `install`, which puts it into the reducer."""
        self._ddp = ref(ddp)  # which has the reducer, which has this
        self._group = ddp.process_group
        self._users: tuple[Hook, Any] | None = ddp._comm_hooks[-1] if ddp._comm_hooks else None
        self._labels: BucketLabels | None = None
        self._note_failure: Callable[[Exception], None]

    @classmethod
    def install(cls, ddp: DistributedDataParallel) -> Self:
        """Return the hook in this model's reducer; put it there if it is not there yet.

        `unnamed_because(ddp)` must be None, and every rank do so at once; see [Note: one hook per reducer].
        """
        if _is_hooked(ddp):
            return cast(Self, ddp.register_comm_hook)
        joined.note_counts()
        hook = cls(ddp)
        if hook._users is not None:
            _rebuild(ddp)
        ddp.register_comm_hook(None, hook._send)
        ddp._comm_hooks = [] if hook._users is None else [hook._users]
        ddp.register_comm_hook = hook  # type: ignore[method-assign]
        return hook

    def label(self, labels: BucketLabels, note_failure: Callable[[Exception], None]) -> Callable[[], None]:
        """Label each bucket until the function that this returns is called.

        `note_failure` gets the error where a label cannot be written; the bucket is sent all the same.
        """
        self._labels, self._note_failure = labels, note_failure
        return self._stop

    def __call__(self, state: object, hook: Hook) -> None:
        """Register a user's hook."""
        ddp = self._ddp()
        assert ddp is not None
        if self._users is not None:
            raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
        ddp._check_comm_hook(hook)  # type: ignore[no-untyped-call]
        self._users = (hook, state)
        ddp._comm_hooks = [self._users]

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of the model has a reducer of its own, without this hook in it."""
        return partial, (DistributedDataParallel.register_comm_hook, self._ddp())

    def _stop(self) -> None:
        self._labels = None

    def _send(self, state: None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        with ExitStack() as labelled:
            if self._labels is not None:
                try:
                    labelled.enter_context(self._labels.label_launch(bucket))
                except Exception as error:
                    self._note_failure(error)
            if self._users is not None:
                hook, state = self._users
                return hook(state, bucket)
            if _divides_by_ranks_left(ddp := self._ddp()):
                return joined.average(ddp, bucket, self._group)
            return allreduce_hook(self._group, bucket)


def _is_hooked(ddp: DistributedDataParallel) -> bool:
    return isinstance(vars(ddp).get("register_comm_hook"), CommHook)


def _divides_by_ranks_left(ddp: DistributedDataParallel | None) -> bool:
    return ddp is not None and ddp._join_config.enable and not ddp._divide_by_initial_world_size


def unwrap_compiled(module: nn.Module) -> nn.Module:
    """What `torch.compile` wrapped, if it did: there parameters and layers have their own names."""
    inner = getattr(module, "_orig_mod", module)
    return inner if isinstance(inner, nn.Module) else module


def unnamed_because(ddp: DistributedDataParallel) -> str | None:
    """Why a model's buckets cannot be named, for a user to read; None if they can."""
    if ddp.mixed_precision is not None:
        return "DDP's own mixed_precision brings a comm hook along"
    if any(hasattr(p, "_in_backward_optimizers") for p in ddp.parameters()):
        return "optimizers that run inside the backward pass bring a comm hook along"
    if _is_hooked(ddp):
        return None
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
    """Bytes of its gradients before a hook compresses them; sparse ones as if they were dense."""
    buffer = bucket.buffer()
    return buffer.numel() * buffer.element_size()
