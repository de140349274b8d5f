"""tensor: each layer's matrices are cut among the ranks of a tensor-parallel group, by hand.

Shoeybi et al. 2019, "Megatron-LM" (arXiv 1909.08053, §3); Korthikanti et al. 2022 (arXiv 2205.05198, §4.2.2) for
sequence parallelism.

[Note: one layer]
The first matrix of attention and of the perceptron is cut by columns (of the weight transposed, as in the papers), so
that each rank has some heads and some hidden features; the second by rows, so that what each rank computes is one term
of a sum. So a layer needs two all-reduces: the sum after attention and that after the perceptron. In the backward pass
it needs two more, for the gradients of what the cut matrices read. Megatron's paper calls the two conjugate operators f
and g. All else is computed by every rank, from the same batch, with the same gradients.

With sequence parallelism each rank holds a part of the sequence between these matrices, so that norms and residuals are
not computed, nor their activations kept, by all. An all-gather before and a reduce-scatter after stand for the
all-reduce, and send as much; the gradients of norms and of the second matrices' biases are then summed over the group.

Nothing hides this communication: the next operation of the layer needs its result.

[Note: gradients]
Ranks at the same place of their tensor-parallel groups hold the same part, and average its gradients as `bucketed`
does.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn
from torch._C._profiler import _RecordFunctionFast as Span
from torch.nn import functional

from overlaplab_engine import labels
from overlaplab_engine.labels import Word
from overlaplab_engine.models.transformer import Transformer
from overlaplab_engine.network.communicator import Communicator, Work
from overlaplab_engine.strategies.averaging import InBuckets
from overlaplab_engine.strategies.base import Options, Traits, register
from overlaplab_engine.strategies.sharding.optimizers import mark_part
from overlaplab_engine.strategies.tensor_parallel import layers

Operator = Callable[[torch.Tensor], torch.Tensor]


class _Conjugate(torch.autograd.Function):
    """One operator in the forward pass, another in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, there: Operator, back: Operator) -> torch.Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return ctx.back(grads[0]), None, None


class _Operators:
    """What a tensor-parallel group does with activations, (batch, seq, width); each waits for its result."""

    def __init__(self, comm: Communicator, label: Callable[[], Span], shape: tuple[int, int, int] | None) -> None:
        """`label` gives the label of a launch. Sleeping layers pass a stub; collectives then send zeros of `shape`."""
        self._comm, self._label, self._shape = comm, label, shape
        self._wait_label = labels.span(Word.WAIT)

    def identity(self, x: torch.Tensor) -> torch.Tensor:
        """A view, as autograd takes no input for an output."""
        return x.view_as(x)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        total = self._full_size(x).clone(memory_format=torch.contiguous_format)
        self._run(self._comm.all_reduce_sum, total)
        return self._result(x, total)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """The whole sequence, of which each rank has a part."""
        part = self._full_size(x, of_part=True).transpose(0, 1).contiguous()
        whole = part.new_empty(self._comm.world_size * len(part), *part.shape[1:])
        self._run(self._comm.all_gather, whole, part)
        return self._result(x, whole.transpose(0, 1))

    def scatter(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's part of the sequence, summed over the ranks."""
        whole = self._full_size(x).transpose(0, 1).contiguous()
        part = whole.new_empty(len(whole) // self._comm.world_size, *whole.shape[1:])
        self._run(self._comm.reduce_scatter_sum, part, whole)
        return self._result(x, part.transpose(0, 1))

    def own_slice(self, x: torch.Tensor) -> torch.Tensor:
        if self._shape is not None:
            return x.view_as(x)
        return x.chunk(self._comm.world_size, dim=1)[self._comm.rank].contiguous()

    def _run(self, launch: Callable[..., Work], *tensors: torch.Tensor) -> None:
        with self._label():
            work = launch(*tensors)
        with self._wait_label:
            work.wait()

    def _full_size(self, x: torch.Tensor, of_part: bool = False) -> torch.Tensor:
        """`x` itself, or in place of a stub zeros of the size of the whole sequence, or of this rank's part."""
        if self._shape is None:
            return x
        batch, seq, width = self._shape
        return x.new_zeros(batch, seq // self._comm.world_size if of_part else seq, width)

    def _result(self, x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        """What the next layer gets: where layers sleep, the stub again."""
        return result if self._shape is None else x.view_as(x)


@register
class TensorParallel(layers.CutsLayers, InBuckets):
    """Megatron's layers over one axis of the mesh, `bucketed` over the other. `cut` comes first.

    It takes this package's `Transformer`, whose heads and sequence the group's size divides.
    """

    name = "tensor"
    traits = Traits(buckets=True, cuts_layers=True)
    refuses: ClassVar[Mapping[str, str]] = {"main_grad": "tensor has no fp32 main_grad; leave --main-grad out"}

    @classmethod
    def cut(cls, model: nn.Module, comm: Communicator, options: Options) -> None:
        """Keep this rank's columns and rows; the group's rank 0 gives the values. EngineError for another model."""
        tensor = layers.tensor_group(cls.name, comm)
        layers.shared_layers(cls.name, model, tensor)
        for name, axis in layers.cut_parameters(model).items():
            parameter = model.get_parameter(name)
            parameter.data = parameter.detach().chunk(tensor.world_size, axis)[tensor.rank].clone()
            mark_part(parameter)

    def __init__(self, model: nn.Module, comm: Communicator, options: Options) -> None:
        super().__init__(model, comm, options)
        self._summed: list[nn.Parameter] = []
        """With sequence parallelism, parameters whose gradient on a rank is that of its part of the sequence alone."""
        self._holds_sums = False
        """Whether these gradients are sums over the group, to which no pass has added yet."""
        assert isinstance(model, Transformer)
        for number, layer in enumerate(model.layers):
            self._hook_layer(f"layers.{number}", layer)
        if options.sequence_parallel:
            self._hook_ends(model)

    def _hook_layer(self, name: str, layer: nn.Module) -> None:
        parallel = self.options.sequence_parallel
        for column in layers.COLUMNS:
            do = self._operators(f"{name}.{column}")
            enter = (do.gather, do.scatter) if parallel else (do.identity, do.sum)  # (forward, backward)
            layer.get_submodule(column).register_forward_pre_hook(partial(_transform_input, enter))
        for row in layers.ROWS:
            do, module = self._operators(f"{name}.{row}"), layer.get_submodule(row)
            leave = (do.scatter, do.gather) if parallel else (do.sum, do.identity)  # (forward, backward)
            module.register_forward_hook(partial(_transform_output, leave))
            if self.options.activation_shape is None:
                module.forward = partial(_product, module)  # the bias is added once, to the sum
                module.register_forward_hook(_add_bias)
            self._summed += [module.get_parameter("bias")] if parallel else []
        if parallel:
            self._summed += [p for norm in layers.NORMS for p in layer.get_submodule(norm).parameters()]

    def _hook_ends(self, model: Transformer) -> None:
        """Before the first layer each rank takes its part of the sequence, and after the last it gets all of it."""
        do = self._operators("embedding")
        model.embedding.register_forward_hook(partial(_transform_output, (do.own_slice, do.gather)))
        do = self._operators("head")
        model.head.register_forward_pre_hook(partial(_transform_input, (do.gather, do.own_slice)))

    def _operators(self, module: str) -> _Operators:
        def label() -> Span:
            autograd_runs = torch._C._current_graph_task_id() != -1
            phase = "backward" if autograd_runs else "forward"
            return labels.kept_span(Word.ACTIVATION_LAUNCH, module=module, phase=phase, microbatch=self.microbatch)

        return _Operators(self._tensor, label, self.options.activation_shape)

    # Gradients: as `bucketed`, unless no other rank has this part

    @property
    def buckets(self) -> list[tuple[int, list[str]]]:
        """See `InBuckets`; none if each part is on one rank only."""
        return super().buckets if self._has_replicas else []

    def _take_gradient(self, i: int, parameter: torch.Tensor) -> None:
        if self._has_replicas:
            super()._take_gradient(i, parameter)

    @torch.no_grad()
    def _finish(self) -> None:
        if self._has_replicas:
            super()._finish()
        if grads := [p.grad for p in self._summed if p.grad is not None]:
            layers.reduce_together(grads, self._tensor.all_reduce_sum)
        self._holds_sums = True

    def backward(self, loss: torch.Tensor, microbatch: int = 0) -> None:
        """See `Strategy`; of a sum that the pass adds to, each rank goes on with an equal part."""
        for parameter in self._summed if self._holds_sums else ():
            if parameter.grad is not None:
                parameter.grad.div_(self._tensor.world_size)
        self._holds_sums = False
        super().backward(loss, microbatch)

    def _match_others(self) -> None:
        if self._has_replicas:
            super()._match_others()

    def gather_whole(self, name: str, part: torch.Tensor) -> torch.Tensor:
        if name not in self._cut:
            return part
        flat = part.new_empty(self._tensor.world_size * part.numel())
        self._tensor.all_gather(flat, part.flatten()).wait()
        return torch.cat([piece.view(part.shape) for piece in flat.chunk(self._tensor.world_size)], self._cut[name])


def _transform_input(
    operators: tuple[Operator, Operator], module: nn.Module, inputs: tuple[torch.Tensor]
) -> torch.Tensor:
    x: torch.Tensor = _Conjugate.apply(inputs[0], *operators)  # type: ignore[no-untyped-call]
    return x


def _transform_output(
    operators: tuple[Operator, Operator], module: nn.Module, inputs: Any, y: torch.Tensor
) -> torch.Tensor:
    out: torch.Tensor = _Conjugate.apply(y, *operators)  # type: ignore[no-untyped-call]
    return out


def _product(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, module.get_parameter("weight"))


def _add_bias(module: nn.Module, inputs: Any, y: torch.Tensor) -> torch.Tensor:
    return y + module.get_parameter("bias")
