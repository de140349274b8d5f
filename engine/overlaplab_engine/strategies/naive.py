"""naive: compute all gradients, then average them one by one, waiting for each.

The baseline that Li et al. 2020 (arXiv 2006.15704, §2.2) start from: nothing overlaps.
"""

from collections.abc import Collection
from functools import partial

import torch
from torch import nn

from overlaplab_engine import labels
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.strategies.base import Options, Strategy, register
from overlaplab_engine.strategies.gradients.buckets import Marks
from overlaplab_engine.strategies.gradients.hooks import after_accumulation


@register
class Naive(Strategy):
    """One blocking all-reduce pass after the whole backward; each parameter is labelled as a bucket."""

    name = "naive"

    def __init__(self, model: nn.Module, comm: Communicator, options: Options) -> None:
        super().__init__(model, comm, options)
        self._marks = [Marks.for_bucket(i, nbytes, names) for i, (nbytes, names) in enumerate(self.buckets)]
        self._missing = set(range(len(self.parameters)))
        for i, parameter in enumerate(self.parameters):
            after_accumulation(parameter, partial(self._take_gradient, i))

    @property
    def buckets(self) -> list[tuple[int, list[str]]]:
        return [(self.gradients.nbytes(p), [name]) for p, name in zip(self.parameters, self.names, strict=True)]

    def _take_gradient(self, i: int, parameter: torch.Tensor) -> None:
        if self.gradients.main:
            self.gradients.place(parameter, None, 1.0)
        if self._sync:
            self._missing.discard(i)
            labels.instant(self._marks[i].ready)

    @torch.no_grad()
    def _finish(self) -> None:
        for i in sorted(self._missing):
            labels.instant(self._marks[i].ready)
        self._missing = set(range(len(self.parameters)))
        for i in self._used_somewhere([i for i, p in enumerate(self.parameters) if self.gradients.get(p) is None]):
            self._average(i)

    def _used_somewhere(self, unused_here: Collection[int]) -> list[int]:
        """The parameters that some rank has a gradient for."""
        answer = self._ask_usage(unused_here)
        with self._wait_label:
            nowhere = answer()
        return [i for i in range(len(self.parameters)) if i not in nowhere]

    def _average(self, i: int) -> None:
        parameter, marks = self.parameters[i], self._marks[i]
        grad = self.gradients.get(parameter)
        if grad is None:  # used by another rank only
            grad = torch.zeros_like(parameter, dtype=self.gradients.dtype(parameter))
        with marks.launch:
            grad = grad * self.comm.prescale  # its own tensor: autograd may have given several parameters one storage
            self.gradients.set(parameter, grad)
            work = self.comm.all_reduce_mean(grad)
        with self._wait_label:
            work.wait()
        labels.instant(marks.done)

    def _match_others(self) -> None:
        for i in self._used_somewhere(range(len(self.parameters))):
            p = self.parameters[i]
            self.comm.all_reduce_mean(torch.full_like(p, torch.nan, dtype=self.gradients.dtype(p))).wait()

    def _abandon(self) -> None:
        self._missing = set(range(len(self.parameters)))
