"""A training run before there is one: model, batch, precision and GPUs together."""

from __future__ import annotations

from dataclasses import dataclass, field

from overlaplab.costs.batch import Batch
from overlaplab.costs.states import PRECISIONS, HeldBytes, Precision, fits_from, held_bytes
from overlaplab.costs.transformer import Attention, Transformer
from overlaplab.errors import OverlaplabError


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be trained, and on what. Raises `OverlaplabError` for what cannot be."""

    parameters: int
    batch: Batch
    model: Transformer | None = None
    """None where only the number of parameters is known: no activations then, and operations are an estimate."""
    precision_name: str = "bf16"
    """One of `PRECISIONS`."""
    attention: Attention = field(default_factory=Attention)
    checkpointing: bool = False
    gpu_bytes: int | None = None
    """Memory of a GPU."""

    def __post_init__(self) -> None:
        if self.precision_name not in PRECISIONS:
            raise OverlaplabError(
                f"--precision {self.precision_name}: not known", remedy=f"There are {', '.join(PRECISIONS)}."
            )
        if self.parameters < 1:
            raise OverlaplabError(f"--params {self.parameters}: not a positive number")

    @property
    def precision(self) -> Precision:
        """Bytes per parameter and activation."""
        return PRECISIONS[self.precision_name]

    @property
    def activations(self) -> int:
        """Bytes that a rank keeps of a microbatch; 0 where the model's sizes are unknown."""
        if self.model is None:
            return 0
        return self.model.activations(
            self.batch.microbatch, self.precision.activation, self.attention, checkpointing=self.checkpointing
        )

    @property
    def step_flops(self) -> int:
        """Operations of one step on all ranks; 6 per parameter and token where the model's sizes are unknown.

        The estimate is that of Kaplan et al. 2020 (arXiv 2001.08361, §2.1); with checkpointing it is 8.
        """
        if self.model is None:
            return (8 if self.checkpointing else 6) * self.parameters * self.batch.tokens
        return self.model.step_flops(self.batch.samples, checkpointing=self.checkpointing)

    def held_bytes(self, stage: int, ranks: int) -> HeldBytes:
        """Bytes on each of so many ranks in a stage of ZeRO."""
        return held_bytes(self.parameters, self.precision, stage, ranks, self.activations)

    def fits_from(self, stage: int) -> int | None:
        """The smallest number of GPUs whose memory suffices; None where none does, or their memory is unknown."""
        if self.gpu_bytes is None:
            return None
        return fits_from(self.parameters, self.precision, stage, self.gpu_bytes, self.activations)
