"""Record what `transformers.Trainer` trains."""

import os
from typing import Any

from transformers import TrainerCallback, TrainerControl

from overlaplab_engine.integrations.callback import InCallbacks


class TransformersRecorder(TrainerCallback):  # type: ignore[misc]
    """A callback: `Trainer(…, callbacks=[TransformersRecorder("runs/mine")])`.

    A step ends with the Trainer's `on_step_end`. Its logging, evaluation and checkpoints are in no step.
    """

    def __init__(self, out: str | os.PathLike[str] | None = None, *, then_stop: bool = False, **options: Any) -> None:
        """`out` and `options` are those of `Recorder`; with `then_stop` the training ends with the recording."""
        self._recorder, self._then_stop = InCallbacks(out, options), then_stop

    def on_train_begin(self, args: Any, state: Any, control: TrainerControl, *, model: Any, **others: Any) -> None:
        """`model` is the inner one; the recorder finds DDP around it."""
        self._recorder.start(model)

    def on_step_begin(self, args: Any, state: Any, control: TrainerControl, **others: Any) -> None:
        """The first microbatch of a step is there."""
        self._recorder.resume()

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **others: Any) -> None:
        """The optimizer has stepped."""
        self._recorder.step()
        if self._recorder.done and self._then_stop:
            control.should_training_stop = True
        self._pause_for(control)

    def on_epoch_end(self, args: Any, state: Any, control: TrainerControl, **others: Any) -> None:
        """Then, too, the Trainer may log, evaluate and save."""
        self._pause_for(control)

    def on_log(self, args: Any, state: Any, control: TrainerControl, **others: Any) -> None:
        """It has logged, evaluated or saved."""
        if not _has_more(control):
            self._recorder.resume()

    on_evaluate = on_save = on_log

    def on_train_end(self, args: Any, state: Any, control: TrainerControl, **others: Any) -> None:
        """Also where the training was shorter than the recording."""
        self._recorder.close()

    def _pause_for(self, control: TrainerControl) -> None:
        if _has_more(control):
            self._recorder.pause()


def _has_more(control: TrainerControl) -> bool:
    """Whether the Trainer has something to do before it trains on."""
    return bool(control.should_log or control.should_evaluate or control.should_save)
