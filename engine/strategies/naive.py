"""naive: compute all gradients, then average them one by one, waiting for each.

The baseline that Li et al. 2020 (arXiv 2006.15704, §2.2) start from: nothing overlaps.
"""

from functools import partial

import torch
from torch import nn

from engine import labels
from engine.buckets import Marks
from engine.comm import Communicator
from engine.hooks import after_accumulation
from engine.labels import Word
from engine.strategies.base import Options, Strategy

__all__ = ["Naive"]


class Naive(Strategy):
    """One blocking all-reduce pass after the whole backward; each parameter is labelled as a bucket."""

    def __init__(self, model: nn.Module, comm: Communicator, options: Options) -> None:
        """See `Strategy`."""
        super().__init__(model, comm, options)
        self._marks = [
            Marks.of(i, p.numel() * self.gradients.dtype(p).itemsize, [name])
            for i, (p, name) in enumerate(zip(self.parameters, self.names, strict=True))
        ]
        self._missing = set(range(len(self.parameters)))
        self._wait = labels.span(Word.WAIT)
        for i, parameter in enumerate(self.parameters):
            after_accumulation(parameter, partial(self._arrived, i))

    @property
    def buckets(self) -> list[tuple[int, list[str]]]:
        """Each parameter for itself."""
        return [
            (p.numel() * self.gradients.dtype(p).itemsize, [name])
            for p, name in zip(self.parameters, self.names, strict=True)
        ]

    def _arrived(self, i: int, parameter: torch.Tensor) -> None:
        self.gradients.take(parameter, None, 1.0)
        if self._sync:
            self._missing.discard(i)
            labels.instant(self._marks[i].ready)

    @torch.no_grad()
    def _finish(self) -> None:
        for i in sorted(self._missing):
            labels.instant(self._marks[i].ready)
        self._missing = set(range(len(self.parameters)))
        used = torch.tensor(
            [self.gradients.get(p) is not None for p in self.parameters], dtype=torch.int32, device=self.comm.device
        )
        with self._wait:
            self.comm.all_reduce_max(used).wait()
        for i, used_somewhere in enumerate(used.tolist()):
            if used_somewhere:
                self._average(i)

    def _average(self, i: int) -> None:
        parameter, marks = self.parameters[i], self._marks[i]
        grad = self.gradients.get(parameter)
        if grad is None:  # used by another rank only
            grad = torch.zeros_like(parameter, dtype=self.gradients.dtype(parameter))
            self.gradients.set(parameter, grad)
        with marks.launch:
            if self.comm.prescale != 1:
                grad.mul_(self.comm.prescale)
            work = self.comm.all_reduce_mean(grad)
        with self._wait:
            work.wait()
        labels.instant(marks.done)

    def _abandon(self) -> None:
        self._missing = set(range(len(self.parameters)))
