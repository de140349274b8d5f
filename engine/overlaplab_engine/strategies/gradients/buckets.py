"""Buckets: which gradients travel together, where they lie, and the order in which they leave."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch._C._profiler import _RecordFunctionFast as Span

from overlaplab_engine import labels
from overlaplab_engine.labels import Word

Handle = TypeVar("Handle")


class Gradients:
    """Where gradients accumulate: in `.grad`, or in another type in `.main_grad` (Megatron-LM's name)."""

    def __init__(self, main: torch.dtype | None) -> None:
        """`main`: the type of `.main_grad`; None: `.grad`."""
        self.main = main
        self._name = "grad" if main is None else "main_grad"

    def dtype(self, parameter: torch.Tensor) -> torch.dtype:
        """The type in which a parameter's gradient is kept and sent."""
        return self.main or parameter.dtype

    def nbytes(self, parameter: torch.Tensor) -> int:
        """Bytes of a parameter's gradient as it is sent."""
        return parameter.numel() * self.dtype(parameter).itemsize

    def get(self, parameter: torch.Tensor) -> torch.Tensor | None:
        value: torch.Tensor | None = getattr(parameter, self._name, None)
        return value

    def set(self, parameter: torch.Tensor, value: torch.Tensor | None) -> None:
        setattr(parameter, self._name, value)

    def place(self, parameter: torch.Tensor, view: torch.Tensor | None, scale: float) -> torch.Tensor:
        """Put the gradient that autograd has just accumulated into `view`, times `scale`, and return it.

        What earlier microbatches accumulated is scaled with it: callers scale in the pass that sends it.
        Without a view the gradient gets a tensor of its own: autograd may have given several parameters one storage,
        which must not be scaled, sent or added to twice. A gradient that autograd put elsewhere (after
        `zero_grad(set_to_none=True)`) is copied and scaled in one pass.
        """
        if self.main is not None:
            new, parameter.grad = parameter.grad, None
            assert new is not None
            grad = self.get(parameter)
            if grad is None:
                grad = new.to(self.main, copy=True) if view is None else view.copy_(new)
            else:
                grad = self.move(parameter, view).add_(new)
            self.set(parameter, grad)
            return grad if scale == 1 else grad.mul_(scale)
        new = parameter.grad
        assert new is not None
        if new is view:
            return new if scale == 1 else new.mul_(scale)
        if view is None:
            parameter.grad = torch.mul(new, scale)
            return parameter.grad
        torch.mul(new, scale, out=view) if scale != 1 else view.copy_(new)
        parameter.grad = view
        return view

    def move(self, parameter: torch.Tensor, view: torch.Tensor | None) -> torch.Tensor:
        """Move a gradient that is there to `view`, if one is given, and return it."""
        grad = self.get(parameter)
        assert grad is not None
        if view is None or grad is view:
            return grad
        view.copy_(grad)
        self.set(parameter, view)
        return view


@dataclass(frozen=True, slots=True)
class Marks:
    """A bucket's labels, made once."""

    ready: Span
    launch: Span
    done: Span

    @classmethod
    def for_bucket(cls, index: int, nbytes: int, names: Sequence[str]) -> "Marks":
        """Make the labels of the bucket that is launched as number `index`."""
        return cls(
            labels.span(Word.BUCKET_READY, bucket=index, bytes=nbytes, parameters=names),
            labels.span(Word.BUCKET_LAUNCH, bucket=index),
            labels.span(Word.BUCKET_DONE, bucket=index),
        )


@dataclass(slots=True)
class Bucket:
    """Gradients in one flat buffer, followed by one flag per parameter: 1, this rank has a gradient; 0, it has none.

    The flags ride in the gradients' all-reduce. What comes back above 0 was used by some rank.
    """

    members: list[int]
    """Positions of the parameters in the strategy's list, in the order of the buffer."""
    flat: torch.Tensor
    """(elements + parameters,)"""
    views: list[torch.Tensor]
    """Each parameter's gradient, in its shape, in `flat`."""
    flags: torch.Tensor
    """(parameters,), the end of `flat`."""
    marks: Marks
    missing: set[int] = field(default_factory=set)
    """Members whose gradient has not arrived in this backward pass."""

    @classmethod
    def make(
        cls,
        index: int,
        members: list[int],
        parameters: Sequence[torch.Tensor],
        names: Sequence[str],
        dtype: torch.dtype,
    ) -> "Bucket":
        """Make a bucket for these members, zeroed."""
        sizes = [parameters[m].numel() for m in members]
        flat = torch.zeros(sum(sizes) + len(members), dtype=dtype, device=parameters[members[0]].device)
        *parts, flags = torch.split(flat, [*sizes, len(members)])
        views = [part.view(parameters[m].shape) for part, m in zip(parts, members, strict=True)]
        marks = Marks.for_bucket(index, sum(sizes) * dtype.itemsize, [names[m] for m in members])
        bucket = cls(members, flat, views, flags, marks)
        bucket.reset()
        return bucket

    @property
    def nbytes(self) -> int:
        """Bytes of the gradients, without the flags."""
        return sum(view.nbytes for view in self.views)

    def reset(self) -> None:
        """Expect all gradients again; whoever finds one absent sets its flag to 0."""
        self.missing = set(self.members)
        self.flags.fill_(1)


def assign(order: Iterable[int], nbytes: Sequence[int], keys: Sequence[object], caps: Sequence[int]) -> list[list[int]]:
    """Cut a sequence of parameters into buckets; each list is a bucket, in the order in which they fill.

    A bucket closes once it holds its cap or more; the last of `caps` serves for all further ones. Parameters of unequal
    `keys` (dtype and device) do not share a bucket. Source: compute_bucket_assignment_by_size,
    torch/csrc/distributed/c10d/reducer.cpp.
    """
    done: list[list[int]] = []
    filling: dict[object, tuple[list[int], int]] = {}
    later_caps = {key: iter(caps) for key in set(keys)}
    cap = {key: next(later_caps[key]) for key in later_caps}
    for member in order:
        key = keys[member]
        members, size = filling.pop(key, ([], 0))
        members, size = [*members, member], size + nbytes[member]
        if size >= cap[key]:
            done.append(members)
            cap[key] = next(later_caps[key], cap[key])
        else:
            filling[key] = members, size
    return done + [members for members, _ in filling.values()]


class OrderedLauncher(Generic[Handle]):
    """Launches things by number, none before those with smaller numbers, whatever the order in which they get ready.

    So every rank launches its collectives in the same order, as torch.distributed demands (Li et al. 2020, §3.2.3).
    """

    def __init__(self, count: int, launch: Callable[[int], Handle]) -> None:
        """`launch(number)` starts number 0 to count − 1 and returns a handle."""
        self._launch = launch
        self._ready = [False] * count
        self.handles: list[Handle] = []
        """What `launch` returned so far, in order."""

    def mark_ready(self, number: int) -> None:
        """Number `number` may go; launch it and what it held up, if all before it have gone."""
        self._ready[number] = True
        while len(self.handles) < len(self._ready) and self._ready[len(self.handles)]:
            self.handles.append(self._launch(len(self.handles)))

    def is_ready(self, number: int) -> bool:
        return self._ready[number]

    @property
    def not_ready(self) -> list[int]:
        """Numbers that have not got ready."""
        return [number for number, ready in enumerate(self._ready) if not ready]

    def reset(self) -> None:
        self._ready = [False] * len(self._ready)
        self.handles = []
