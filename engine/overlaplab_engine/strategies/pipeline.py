"""pipeline: each rank holds some layers, and microbatches pass through the ranks, forward and back.

torch.distributed.pipelining carries it out: its schedules, and its sends and receives. With one microbatch it is plain
model parallelism, in which one rank is busy at a time. Over the ranks that hold the same layers gradients are averaged
in buckets, after the last microbatch.

[Note: the loss is in the last stage]
Torch computes the loss beside the stage's forward pass. Here the last stage computes it, from targets that come as a
keyword, so that the label of its forward pass holds all of its computation.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn
from torch._C._profiler import _RecordFunctionFast as Span
from torch.distributed.pipelining import PipelineStage, schedules

from overlaplab_engine import labels
from overlaplab_engine.errors import EngineError
from overlaplab_engine.labels import Word
from overlaplab_engine.models.batches import Batches, place
from overlaplab_engine.models.sleeping import half_a_backward
from overlaplab_engine.models.transformer import Transformer
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.schedules import Schedule, cut, require_microbatches, stages_of_rank
from overlaplab_engine.strategies.base import Options, Strategy, Traits, register

_SCHEDULES: dict[Schedule, Any] = {
    Schedule.GPIPE: schedules.ScheduleGPipe,
    Schedule.ONE_F_ONE_B: schedules.Schedule1F1B,
    Schedule.INTERLEAVED: schedules.ScheduleInterleaved1F1B,
    Schedule.ZBV: schedules.ScheduleZBVZeroBubble,
}


class _Layers(nn.Module):
    """The modules of one stage; see `Transformer.part`."""

    def __init__(self, model: Transformer, layers: range) -> None:
        super().__init__()
        self.layers = nn.ModuleList(model.layers[number] for number in layers)
        self.embedding = model.embedding if layers.start == 0 else None
        self.head = model.head if layers.stop == len(model.layers) else None
        self._compute = partial(model.part, layers)

    def forward(self, x: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Activations, or tokens in the first stage → activations, or in the last stage the loss."""
        return self._compute(x, targets)


class _LabelledStage(PipelineStage):
    """A stage whose actions are labelled, each around its computation alone."""

    owner: "Pipeline"

    def _get_init_p2p_neighbors_ops(self) -> list[Any]:
        """What torch before 2.13 sends first, to connect NCCL; under ZB-V also to itself, at which gloo hangs."""
        first: Any = getattr(super(), "_get_init_p2p_neighbors_ops", list)
        return list(first()) if self.device.type == "cuda" else []

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self._begin_action(Word.STAGE_FORWARD, fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        # Sleeping layers take half the time for half a pass.
        halved: AbstractContextManager[None] = nullcontext() if full_backward else half_a_backward()
        word = Word.STAGE_BACKWARD if full_backward else Word.STAGE_BACKWARD_INPUT
        with self._begin_action(word, bwd_chunk_id), halved:
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        # The first stage's inputs need no gradient: its whole backward pass is here.
        halved: AbstractContextManager[None] = nullcontext() if self.is_first else half_a_backward()
        with self._begin_action(Word.STAGE_BACKWARD_WEIGHT, bwd_chunk_id), halved:
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)

    def _begin_action(self, word: Word, microbatch: int) -> Span:
        self.owner.microbatch = microbatch
        return labels.kept_span(word, stage=self.stage_index, microbatch=microbatch)


@register
class Pipeline(Strategy):
    """Stages of layers on the ranks of the mesh's `pp` axis; gradients are averaged along its `dp` axis."""

    name = "pipeline"
    traits = Traits(stages=True)
    refuses: ClassVar[Mapping[str, str]] = {
        "accumulate": "--accumulate is for data parallelism: a pipeline takes --microbatches",
        "main_grad": "--main-grad is not for pipelines, which add gradients up in the parameters' type; leave it out",
        "tied": "--tied is not for pipelines: the embedding and the output projection are in different stages",
        **dict.fromkeys(("save", "resume"), "--save and --resume are not for pipelines; leave them out"),
    }

    def __init__(self, model: nn.Module, comm: Communicator, options: Options) -> None:
        """See `Strategy`; `model` is a `Transformer`, and `comm` has an axis `pp` (see `Communicator.along`).

        EngineError for stages that do not fit the ranks or the layers.
        """
        self.require(options)
        if not isinstance(model, Transformer):
            raise EngineError("a pipeline takes the engine's Transformer, whose layers it can share out")
        pipeline = comm.axis("pp")
        if pipeline is None:
            raise EngineError("a pipeline needs two ranks or more along the mesh's pp axis")
        self._pipeline, self.schedule = pipeline, options.schedule
        self.layers = cut(len(model.layers), pipeline.world_size, options.schedule, options.stages)
        """The layers of each stage."""
        numbers = stages_of_rank(pipeline.rank, pipeline.world_size, len(self.layers), options.schedule)
        self._stage_modules = {number: _Layers(model, self.layers[number]) for number in numbers}
        super().__init__(model, comm, options)
        ids = {id(p) for stage in self._stage_modules.values() for p in stage.parameters()}
        named = [(name, p) for name, p in zip(self.names, self.parameters, strict=True) if id(p) in ids]
        self.names, self.parameters = [name for name, _ in named], [p for _, p in named]
        order, keys = reversed(range(len(self.parameters))), [(p.device, p.dtype) for p in self.parameters]
        self._buckets = self._form_buckets(order, keys, options.caps) if comm.world_size > 1 else []
        self._schedules: dict[tuple[int, ...], Any] = {}  # torch's, by the shape of a step's batch

    def _share(self, parameters: Sequence[nn.Parameter]) -> None:
        """Give this rank's stages their values: the same as its replicas'."""
        super()._share([p for stage in self._stage_modules.values() for p in stage.parameters()])

    @property
    def stages(self) -> list[dict[str, Any]]:
        ranks, last = self._pipeline.world_size, len(self.layers) - 1
        rank_of_stage = {s: r for r in range(ranks) for s in stages_of_rank(r, ranks, last + 1, self.schedule)}
        names = [[f"layers.{number}" for number in layers] for layers in self.layers]
        names[0].insert(0, "embedding")
        names[last].append("head")
        return [{"rank": rank_of_stage[stage], "units": units} for stage, units in enumerate(names)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """EngineError: microbatches are on their way at the same time, so that only `passes` can run them."""
        raise EngineError("a pipeline has no forward pass of its own; call passes()")

    def passes(self, batches: Batches, step: int, microbatches: int) -> torch.Tensor | None:
        """See `Strategy`; the rank of the last stage has the loss."""
        parts = [batches.rank_batch(step, microbatch, self.comm.rank) for microbatch in range(microbatches)]
        tokens, targets = place((torch.cat(tensors) for tensors in zip(*parts, strict=True)), self.comm.device)
        schedule = self._schedule_for(microbatches, batches.batch, batches.seq)
        has_first, has_last = 0 in self._stage_modules, len(self.layers) - 1 in self._stage_modules
        losses: list[torch.Tensor] = []
        try:
            schedule.step(
                *([tokens] if has_first else []),
                target=targets if has_last else None,
                losses=losses,
                return_outputs=False,
                **({"targets": targets} if has_last else {}),
            )
            self._average()
        except BaseException as error:
            self.on_error(error)
            raise
        return torch.stack(losses).detach().mean() if has_last else None

    def _schedule_for(self, microbatches: int, batch: int, seq: int) -> Any:
        key = (microbatches, batch, seq)
        if key not in self._schedules:
            require_microbatches(microbatches, self._pipeline.world_size, self.schedule)
            torch_stages = [self._torch_stage(number, batch, seq) for number in self._stage_modules]
            self._schedules[key] = _SCHEDULES[self.schedule](
                torch_stages if self.schedule.per_rank > 1 else torch_stages[0],
                n_microbatches=microbatches,
                loss_fn=_loss,
            )
        return self._schedules[key]

    def _torch_stage(self, number: int, batch: int, seq: int) -> PipelineStage:
        """A stage, with examples of what it takes and returns, without which torch would try it out."""
        assert isinstance(self.model, Transformer)
        shape, dtype, device = (batch, seq, self.model.width), self.model.dtype, self.comm.device
        activations = torch.empty(shape, dtype=dtype, device=device, requires_grad=True)
        tokens = torch.empty(batch, seq, dtype=torch.int64, device=device)
        is_last = number == len(self.layers) - 1
        stage = _LabelledStage(
            self._stage_modules[number],
            number,
            len(self.layers),
            device,
            input_args=tokens if number == 0 else activations,
            output_args=torch.empty((), dtype=dtype, device=device, requires_grad=True) if is_last else activations,
            group=self._pipeline.group,
        )
        stage.owner = self
        return stage

    # Data parallelism

    @torch.no_grad()
    def _average(self) -> None:
        """Average the gradients over the ranks that hold the same stages."""
        works = []
        for bucket in self._buckets:
            bucket.reset()
            for member, view in zip(bucket.members, bucket.views, strict=True):
                self.gradients.place(self.parameters[member], view, self.comm.prescale)
            labels.instant(bucket.marks.ready)
            with bucket.marks.launch:
                works.append(self.comm.all_reduce_mean(bucket.flat))
        for bucket, work in zip(self._buckets, works, strict=True):
            with self._wait_label:
                work.wait()
            labels.instant(bucket.marks.done)

    def _part_holders(self) -> Communicator | None:
        return self._pipeline

    def _holds_part(self, name: str) -> bool:
        return True

    def full_parameters(self) -> dict[str, torch.Tensor]:
        held = {name: p.detach().cpu() for name, p in zip(self.names, self.parameters, strict=True)}
        parts = self._pipeline.gather_objects(held)  # a pickled tensor would be on its sender's device
        return {name: p.to(self.comm.device) for part in parts for name, p in part.items()}

    def _finish(self) -> None:
        """Not called: `passes` does all."""

    def _abandon(self) -> None:
        """Not called: an exception in a step ends the job, as other ranks wait for what this one does not send."""


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """See [Note: the loss is in the last stage]."""
    return output
