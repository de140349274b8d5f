"""A signal to one rank of a running job, which all ranks follow at the same step."""

import itertools
import signal
import threading
import warnings
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from overlaplab_engine.errors import EngineError

MARGIN = 10
"""A recording is due so many steps after the request: more than one rank may be ahead of another."""

_numbers = itertools.count()  # of the requests in this process: all ranks make as many


class RecordingRequest:
    """A request to record, by SIGUSR2 or by a watch.

    The rank that gets it writes the step at which it is due into the process group's store, where all ranks look once
    per step; that is no collective, and takes a tenth of a millisecond.
    """

    def __init__(self) -> None:
        self._got = self._listening = self._lost = False
        self._number = next(_numbers)
        self._rounds = 0  # of signals that were followed
        self._at: int | None = None  # the step at which the recording is due
        self._former: Any = None

    def listen(self) -> None:
        """Take signals from now on. EngineError outside the main thread, where Python sets no handlers."""
        if threading.current_thread() is not threading.main_thread():
            raise EngineError("Recorder's on_signal needs start() in the main thread")
        self._former = signal.signal(signal.SIGUSR2, self._note)
        self._listening = True

    def ask(self) -> None:
        """Do as if the signal had come."""
        self._got = True

    def stop(self) -> None:
        if self._listening and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGUSR2) == self._note:  # else somebody has set another one since
                signal.signal(signal.SIGUSR2, self._former or signal.SIG_DFL)
            self._listening = False

    def is_due(self, step: int) -> bool:
        """Whether the recording is due at this step; to be asked at every step."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            is_due, self._got = self._got, False
            return is_due
        if self._lost:
            return False
        try:
            return self._is_due_on_all(step)
        except (RuntimeError, ValueError) as error:  # the rank that holds the store may have ended before this one
            self._lost = True
            warnings.warn(f"signals to the ranks start no recording any more: {error}", stacklevel=4)
            return False

    def _is_due_on_all(self, step: int) -> bool:
        store, key = _get_default_store(), f"overlaplab/record/{self._number}/{self._rounds}"
        if self._got:
            self._got = False
            store.compare_set(key, "", str(step + MARGIN))  # the first rank's counts
        if self._at is None and store.check([key]):
            self._at = int(store.get(key))
        if self._at is None or step < self._at:
            return False
        self._at, self._rounds = None, self._rounds + 1
        return True

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._got = True
        if callable(self._former):
            self._former(number, frame)
