"""What the callbacks of frameworks share."""

import os
from contextlib import ExitStack
from typing import Any

from torch import nn

from overlaplab_engine.recording.recorder import Recorder


class InCallbacks:
    """A Recorder that callbacks start, step, pause and close."""

    def __init__(self, out: str | os.PathLike[str] | None, options: dict[str, Any]) -> None:
        """`out` and `options` are those of the Recorder."""
        self._out, self._options = out, options
        self._recorder: Recorder | None = None
        self._pause = ExitStack()

    @property
    def done(self) -> bool:
        """Whether all steps are recorded."""
        return self._recorder is not None and self._recorder.done

    def start(self, model: object) -> None:
        """Start a recorder of its own for this training; what is no module is recorded without labels."""
        self.close()
        self._recorder = Recorder(self._out, model if isinstance(model, nn.Module) else None, **self._options).start()

    def step(self) -> None:
        """After the optimizer's step."""
        self.resume()
        if self._recorder is not None:
            self._recorder.step()

    def pause(self) -> None:
        """What follows is no part of a step."""
        self.resume()
        if self._recorder is not None:
            self._pause.enter_context(self._recorder.paused())

    def resume(self) -> None:
        """Training goes on."""
        self._pause.close()

    def close(self) -> None:
        """Training ends."""
        self.resume()
        if self._recorder is not None:
            self._recorder.close()
