"""per-param: all-reduce each gradient as soon as autograd has it.

Everything that can overlap does, at one message per parameter: Li et al. 2020 (arXiv 2006.15704, §3.2.1, Fig. 2) on why
small messages are slow.
"""

from functools import partial

import torch
from torch import nn

from overlaplab_engine import labels
from overlaplab_engine.network.communicator import Communicator, Work
from overlaplab_engine.strategies.base import Options, Strategy, register
from overlaplab_engine.strategies.gradients.buckets import Marks, OrderedLauncher
from overlaplab_engine.strategies.gradients.hooks import after_accumulation


@register
class PerParam(Strategy):
    """A hook on each parameter launches its all-reduce; one wait after the backward pass.

    The launches are in the same order on every rank: at first the reverse of the model's, and after the first
    synchronised backward pass the order in which rank 0's gradients arrived.
    """

    name = "per-param"

    def __init__(self, model: nn.Module, comm: Communicator, options: Options) -> None:
        super().__init__(model, comm, options)
        self._arrivals: list[int] | None = []  # None once the order is learnt
        self._zeros: dict[int, torch.Tensor] = {}  # what is sent for a parameter without a gradient
        self._arrange(list(reversed(range(len(self.parameters)))))
        for i, parameter in enumerate(self.parameters):
            after_accumulation(parameter, partial(self._take_gradient, i))

    @property
    def buckets(self) -> list[tuple[int, list[str]]]:
        """Each parameter for itself, in launch order."""
        return [(self.gradients.nbytes(self.parameters[i]), [self.names[i]]) for i in self._order]

    def _arrange(self, order: list[int]) -> None:
        self._order = order
        self._number = {i: number for number, i in enumerate(order)}
        self._marks = [Marks.for_bucket(number, nbytes, names) for number, (nbytes, names) in enumerate(self.buckets)]
        self._launcher: OrderedLauncher[Work] = OrderedLauncher(len(order), self._launch)

    def _take_gradient(self, i: int, parameter: torch.Tensor) -> None:
        if self._sync and self._launcher.is_ready(self._number[i]):
            raise self._second_gradient_error(i)
        self.gradients.place(parameter, None, self.comm.prescale if self._sync else 1.0)
        if self._sync:
            if self._arrivals is not None:
                self._arrivals.append(i)
            self._mark_ready(i)

    def _mark_ready(self, i: int) -> None:
        number = self._number[i]
        labels.instant(self._marks[number].ready)
        self._launcher.mark_ready(number)

    def _launch(self, number: int) -> Work:
        i = self._order[number]
        grad = self.gradients.get(self.parameters[i])
        with self._marks[number].launch:
            return self.comm.all_reduce_mean(self._zeros[i] if grad is None else grad)

    @torch.no_grad()
    def _finish(self) -> None:
        self._count_missing_ready()
        answer = self._ask_usage(self._zeros)
        with self._wait_label:
            for marks, work in zip(self._marks, self._launcher.handles, strict=True):
                work.wait()
                labels.instant(marks.done)
            nowhere = answer()
        for i, zeros in self._zeros.items():
            if i not in nowhere:  # else the gradient stays untouched
                self.gradients.set(self.parameters[i], zeros)
        self._abandon()
        self._learn_order()

    def _learn_order(self) -> None:
        """Once: launch in rank 0's order of arrival, what did not arrive last."""
        if self._arrivals is None:
            return
        self._arrange(self._agree_on_order(self._arrivals))
        self._arrivals = None

    def _count_missing_ready(self) -> None:
        for number in self._launcher.not_ready:
            i = self._order[number]
            parameter = self.parameters[i]
            grad = self.gradients.get(parameter)
            if grad is None:
                self._zeros[i] = torch.zeros_like(parameter, dtype=self.gradients.dtype(parameter))
            else:  # from an earlier microbatch
                grad.mul_(self.comm.prescale)
            self._mark_ready(i)

    def _match_others(self) -> None:
        for number in self._launcher.not_ready:
            i = self._order[number]
            parameter = self.parameters[i]
            self._zeros[i] = torch.full_like(parameter, torch.nan, dtype=self.gradients.dtype(parameter))
            self.gradients.set(parameter, None)
            self._launcher.mark_ready(number)
        self._ask_usage(())()
        for work in self._launcher.handles:
            work.wait()
        self._learn_order()  # other ranks may have come through

    def _abandon(self) -> None:
        self._zeros = {}
        self._launcher.reset()
