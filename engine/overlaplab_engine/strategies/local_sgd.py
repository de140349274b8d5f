"""local-sgd: each rank trains alone, and every so many steps the ranks average their parameters.

Stich 2019, "Local SGD Converges Fast and Communicates Little" (arXiv 1805.09767). Of n ranks, rank i goes from its
parameters x_i to y_i by the optimizer's update with its own gradient. After every `every`-th update

- blocking, x_i becomes m, the mean of all y, before the next step begins;
- in the `background`, the next step computes its gradient at y_i while m is on its way, and x_i becomes m before the
  update by that gradient (as in Zhou et al. 2020, "DaSGD", local SGD with delayed averaging). Nothing is updated
  meanwhile: so to add m − y_i is to put m in the place of y_i, and no update is lost.

The optimizer's states and buffers are each rank's own, and so are gradients, which `clip` scales by their own norm.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from overlaplab_engine import labels
from overlaplab_engine.errors import EngineError
from overlaplab_engine.labels import Word
from overlaplab_engine.network.communicator import Communicator, Work
from overlaplab_engine.strategies.base import Options, Strategy, Traits, register

_KEEPS_NO_STATE = "local-sgd: each rank has a state of its own, and none is kept; leave --save and --resume out"


@register
class LocalSGD(Strategy):
    """`updated` averages the trained parameters, those of one type in one all-reduce."""

    name = "local-sgd"
    traits = Traits(gradients=None, averages_parameters=True)
    refuses: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("save", "resume"), _KEEPS_NO_STATE),
        "main_grad": "local-sgd sends no gradients: leave --main-grad out",
    }

    def __init__(self, model: nn.Module, comm: Communicator, options: Options) -> None:
        """See `Strategy`. EngineError for parameters of 16 bits: AdamW goes on with its copies, whatever the mean."""
        super().__init__(model, comm, options)
        if any(p.element_size() < 4 for p in self.parameters):
            raise EngineError("local-sgd averages parameters, and of 16 bits AdamW keeps others: add --dtype float32")
        of_type: dict[torch.dtype, list[nn.Parameter]] = {}
        for parameter in self.parameters:
            of_type.setdefault(parameter.dtype, []).append(parameter)
        self._groups = list(of_type.values())
        self._means = [torch.cat([p.detach().flatten() for p in group]) for group in self._groups]
        self._launches = [
            labels.span(Word.PARAM_GATHER_LAUNCH, bucket=i, bytes=mean.nbytes) for i, mean in enumerate(self._means)
        ]
        self._waits = [labels.span(Word.PARAM_GATHER_WAIT, bucket=i) for i in range(len(self._means))]
        self._works: list[Work] = []
        self._updates = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward pass, with this rank's buffers."""
        return self.model(*args, **kwargs)

    def updated(self) -> None:
        """Every `every`-th time: average the parameters, or begin to."""
        self._updates += 1
        if self._updates % self.options.every == 0:
            self._launch()
            if not self.options.background:
                self.settle()

    @torch.no_grad()
    def settle(self) -> None:
        """Go on with the mean, if one is on its way."""
        for parameter, values in self._wait_for_means():
            parameter.copy_(values)

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """The means over the ranks, each of which goes on with its own; see `Strategy`."""
        self.settle()
        self._launch()
        means = {id(parameter): values.clone() for parameter, values in self._wait_for_means()}
        return {name: means.get(id(p), p.detach()) for name, p in self.model.named_parameters()}

    @torch.no_grad()
    def _launch(self) -> None:
        for group, mean, launch in zip(self._groups, self._means, self._launches, strict=True):
            with launch:
                torch.cat([p.flatten() for p in group], out=mean)
                self._works.append(self.comm.all_reduce_mean(mean.mul_(self.comm.prescale)))

    def _wait_for_means(self) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Each parameter and its mean, if these are on their way."""
        works, self._works = self._works, []
        for work, wait, group, mean in zip(works, self._waits, self._groups, self._means, strict=False):
            with wait:
                work.wait()
            for parameter, values in zip(group, torch.split(mean, [p.numel() for p in group]), strict=True):
                yield parameter, values.view_as(parameter)

    def _finish(self) -> None:
        self.settle()

    def _abandon(self) -> None:
        self.settle()
