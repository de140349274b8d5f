"""Record a loop that trains with Hugging Face Accelerate."""

import os
from typing import Any

from accelerate import Accelerator
from torch import nn

from overlaplab_engine.recording.recorder import Recorder


class AccelerateRecorder(Recorder):
    """A Recorder whose `step()` may be called after each microbatch: it counts those that step the optimizer."""

    def __init__(
        self, out: str | os.PathLike[str] | None, accelerator: Accelerator, model: nn.Module, **options: Any
    ) -> None:
        """`model` is what `accelerator.prepare` returned; `out` and `options` are those of `Recorder`."""
        super().__init__(out, model, **options)
        self._accelerator = accelerator

    def step(self) -> None:
        """Mark the end of a microbatch, and of a step where the accelerator has synchronised gradients."""
        if self._accelerator.sync_gradients:
            super().step()
