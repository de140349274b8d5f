"""Record what Lightning's Trainer fits."""

import os
import sys
from contextlib import ExitStack
from functools import wraps
from typing import TYPE_CHECKING, Any

from overlaplab_engine.integrations.callback import InCallbacks

if TYPE_CHECKING or "pytorch_lightning" not in sys.modules:
    from lightning.pytorch import Callback
else:  # the same library under its older name, with classes of its own
    from pytorch_lightning import Callback


class LightningRecorder(Callback):  # type: ignore[misc]
    """A callback: `Trainer(…, callbacks=[LightningRecorder("runs/mine")])`.

    A step ends with the batch at whose end the optimizer has stepped. Validation and checkpoints are in no step.
    """

    def __init__(self, out: str | os.PathLike[str] | None = None, *, then_stop: bool = False, **options: Any) -> None:
        """`out` and `options` are those of `Recorder`; with `then_stop` the fit ends with the recording."""
        self._recorder, self._then_stop = InCallbacks(out, options), then_stop
        self._steps = 0
        self._unwrap = ExitStack()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Lightning's strategy has the model as DDP wraps it, or the sharded one."""
        self._steps = trainer.global_step
        self._recorder.start(trainer.strategy.model)
        save = trainer.save_checkpoint

        @wraps(save)
        def save_in_no_step(*args: Any, **options: Any) -> None:
            """`on_save_checkpoint` is not called where weights alone are saved."""
            self._recorder.pause()
            save(*args, **options)

        trainer.save_checkpoint = save_in_no_step
        self._unwrap.callback(setattr, trainer, "save_checkpoint", save)

    def on_train_batch_start(self, *_: Any) -> None:
        """Training goes on with a batch."""
        self._recorder.resume()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Where gradients are accumulated, the optimizer steps after some batches only."""
        if trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        self._recorder.step()
        if self._recorder.done and self._then_stop:
            trainer.should_stop = True

    def on_validation_start(self, *_: Any) -> None:
        """Validation begins; the check before the fit comes before the recording."""
        self._recorder.pause()

    on_validation_end = on_train_batch_start

    def on_train_end(self, *_: Any) -> None:
        """Keep the steps so far, also where the fit was shorter than the recording."""
        self._unwrap.close()
        self._recorder.close()

    on_exception = on_train_end
