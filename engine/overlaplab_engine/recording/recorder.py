"""A recorder for any training loop: one trace per rank, run.json, and labels that suit the model.

It calls no collectives of its own. If DDP has a comm hook, every rank needs a recorder, started before the same step:
see [Note: one hook per reducer].
"""

import atexit
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from math import inf
from numbers import Integral
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn

from overlaplab_engine.errors import EngineError
from overlaplab_engine.recording.on_signal import RecordingRequest
from overlaplab_engine.recording.recording import Recording, error_line
from overlaplab_engine.recording.subject import Subject
from overlaplab_engine.strategies.gradients.ddp_buckets import CommHook, Hook, unnamed_because
from overlaplab_engine.watching.trigger import Trigger
from overlaplab_engine.watching.watch import OUT as WATCH_OUT
from overlaplab_engine.watching.watch import Watch

OUT = "OVERLAPLAB_RECORD"
"""The environment variable that names the run's directory, whatever the script says."""

_open: "WeakSet[Recorder]" = WeakSet()


class Recorder:
    """Records some steps of a training loop into a run directory, which `overlaplab` opens.

    Use it as a context manager around the loop, or call `start()` before and `close()` after the loop. After
    `warmup + steps` calls of `step()` its files are written, and it writes no more labels.
    """

    def __init__(
        self,
        out: str | os.PathLike[str] | None = None,
        model: nn.Module | None = None,
        *,
        warmup: int = 2,
        steps: int = 3,
        start_at: int | None = None,
        every: int | None = None,
        on_signal: bool = False,
        ranks: Sequence[int] | None = None,
        max_mb: float = 2000,
        comm_hook: tuple[Any, Hook] | None = None,
        watch: bool = False,
        record_when: str | None = None,
        times: int = 3,
    ) -> None:
        """`out` is the run's directory, the same on all ranks; the environment variable OVERLAPLAB_RECORD goes before
        it, and with neither nothing is recorded. After `warmup` (1 or more) steps, `steps` are recorded.

        `model` is the module that the loop calls, or the one inside DDP. Labels name DDP's buckets, FSDP2's units, or
        else the gradients. `comm_hook`, as (state, hook), is registered with DDP, recorded or not; a hook registered
        earlier or later works too. Only `ranks` leave a trace, by default all. A trace with more than `max_mb` of text,
        before it is compressed, is shortened to its first steps, at least one, with a warning.

        The warm-up begins before step `start_at`, counted from 0, and again every `every` steps. With `on_signal` it
        begins a few steps after one of the ranks got SIGUSR2, and else only with `start_at`. Where there may be
        several recordings, each goes to a directory `step-N` in `out`.

        With `watch`, or where the environment variable OVERLAPLAB_WATCH names a folder, all steps are watched, too,
        recorded or not (`overlaplab.watch`); the files go to `watch` in `out`, or to that folder. With `record_when`,
        `exposed > 1.5 * median` or `step > 1.3 * median`, they are watched, too. When two bursts (of steps measured in
        detail) in a row have exceeded the usual ones on any rank, the warm-up begins a few steps later on all ranks, at
        most `times` times. Every rank's recorder must be given it.

        Raises EngineError for wrong arguments. A model never makes it fail, here or later: what cannot be recorded is
        named by a warning.
        """
        if not all(isinstance(count, Integral) and count >= 1 for count in (warmup, steps)):
            raise EngineError(f"Recorder takes 1 or more warmup steps and 1 or more steps, not {warmup} and {steps}")
        if ranks is not None and not all(isinstance(rank, Integral) and rank >= 0 for rank in ranks):
            raise EngineError(f"Recorder's ranks are numbers of ranks, not {ranks!r}")
        if not max_mb >= 0:
            raise EngineError(f"Recorder's max_mb is 0 or more, not {max_mb}")
        if model is not None and not isinstance(model, nn.Module):
            raise EngineError(f"Recorder's model must be a torch.nn.Module, not a {type(model).__name__}")
        if start_at is not None and start_at < 0:
            raise EngineError(f"Recorder's start_at is a number of steps, 0 or more, not {start_at}")
        if every is not None and every < warmup + steps:
            raise EngineError(f"Recorder cannot record {warmup} + {steps} steps every {every} steps")
        self._model, self._subject = model, Subject()
        if comm_hook is not None and len(_inspect(model).ddps) != 1:
            raise EngineError("Recorder's comm_hook is for a model in DistributedDataParallel")
        named = os.environ.get(OUT) or out
        # The loop may change its working directory.
        self._out = None if named is None else Path(named).expanduser().absolute()
        self._warmup, self._steps, self._comm_hook = warmup, steps, comm_hook
        by_itself = not on_signal and record_when is None
        self._start_at = (start_at or 0) if by_itself else start_at
        self._every, self._ranks, self._max_mb = every, ranks, max_mb
        self._request = None if by_itself else RecordingRequest()
        self._on_signal = on_signal
        if times < 1:
            raise EngineError(f"Recorder's times is 1 or more, not {times}")
        self._trigger = None if record_when is None else Trigger(record_when)
        self._times_left = times
        self._reason: str | None = None  # why this rank asks for a recording
        is_watched = watch or record_when is not None
        self._watch_out = os.environ.get(WATCH_OUT) or (self._out / "watch" if self._out and is_watched else None)
        self._watch: Watch | None = None
        self._recording: Recording | None = None
        self._started, self._closed, self._steps_done, self._pauses = False, False, 0, 0
        self.done = False
        """Whether all steps are recorded; never with `every`, `on_signal` or `record_when`: more may follow."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def start(self) -> Self:
        """Start, before a step. An older run in the directory is deleted when the warm-up begins."""
        if self._started:
            raise EngineError("this Recorder was started before; make a new one for each recording")
        self._started, self._pid = True, os.getpid()
        self._subject = _inspect(self._model)
        if self._comm_hook is not None:  # it is part of the training, recorded or not
            for ddp in self._subject.ddps:
                ddp.register_comm_hook(*self._comm_hook)
        if self._watch_out is not None:
            after_burst = None if self._trigger is None else self._observe
            self._watch = Watch(self._called_model(), self._watch_out, after_burst=after_burst)
        if self._out is None:
            self._closed = True
            with suppress(EngineError):
                self._listen()
        else:
            self._start()
        if self._watch is not None:  # after comm hooks have taken their places
            self._watch.start()
        return self

    def _start(self) -> None:
        try:
            self._listen()
            _require_no_other()
            self._install_comm_hooks()
            if self._is_due():
                self._begin_recording()
        except BaseException as error:
            self._shut()
            if isinstance(error, Warning) or not isinstance(error, Exception):
                raise
            warnings.warn(f"nothing is recorded: {error_line(error)}", stacklevel=4)
            return
        _open.add(self)
        atexit.register(self.close)

    def _listen(self) -> None:
        """Take signals until the end, even if nothing is recorded: SIGUSR2 that nobody takes ends the process."""
        if self._request is not None and self._on_signal:
            self._request.listen()

    def step(self) -> None:
        """Mark the end of a step: call it after every optimizer step. Does nothing once all steps are recorded."""
        if not self._started:
            raise EngineError("this Recorder was not started: call step() inside its `with` block, or after start()")
        if self._watch is not None:
            self._watch.step()
        if self._closed:
            return
        self._steps_done += 1
        if self._recording is not None:
            try:
                self._recording.step()
            finally:  # its warnings may be errors
                if self._recording.is_over:
                    self._end_recording()
        if self._recording is None and not self._closed and self._is_due():
            try:
                self._begin_recording()
            except Warning:
                raise
            except Exception as error:
                warnings.warn(f"nothing is recorded at step {self._steps_done}: {error_line(error)}", stacklevel=2)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What runs inside, such as evaluation, checkpoints and logging, is no part of a step.

        Best between two steps: a step with passes of the model before and after the pause is not recorded, and another
        one takes its place.
        """
        self._pauses += 1
        if self._recording is not None and self._pauses == 1:
            self._recording.pause()
        try:
            with nullcontext() if self._watch is None or self._pauses > 1 else self._watch.paused():
                yield
        finally:
            self._pauses -= 1
            if self._recording is not None and self._pauses == 0:
                self._recording.resume()

    def close(self) -> None:
        """Stop recording and watching. The steps so far are kept; after the last one `step` has stopped recording."""
        if self._watch is not None:
            self._watch.close()
        if self._request is not None:
            self._request.stop()
        if not self._started or self._closed or self._pid != os.getpid():
            return  # a child that was forked has the parent's profiler and files
        recording, self._recording = self._recording, None
        self._shut()
        if recording is not None:
            recording.close(warn_if_empty=self._every is None)
        elif self._start_at is not None and self._steps_done <= self._start_at:
            warnings.warn(
                f"no run in {self._out}: the loop made {self._steps_done} steps, and the recording begins at step "
                f"{self._start_at}",
                stacklevel=2,
            )

    def _end_recording(self) -> None:
        assert self._recording is not None
        self.done = self._recording.done and not self._records_repeatedly
        self._recording = None
        if not self._records_repeatedly:
            self._shut()

    def _shut(self) -> None:
        self._closed = True
        _open.discard(self)
        atexit.unregister(self.close)

    @property
    def _records_repeatedly(self) -> bool:
        """Whether there may be several recordings."""
        return self._every is not None or self._request is not None

    def _is_due(self) -> bool:
        """Whether a recording begins before the next step. Ask once per step: it takes the request and counts."""
        requested = self._request is not None and self._request.is_due(self._steps_done)
        if requested and self._trigger is not None:
            self._count_request()
        if self._start_at is None or self._steps_done < self._start_at:
            return requested
        since = self._steps_done - self._start_at
        return requested or since == 0 or (self._every is not None and since % self._every == 0)

    def _observe(self, step_ns: Sequence[int], exposed_ns: Sequence[int]) -> None:
        """Ask all ranks to record, if a burst of this one says so."""
        if self._trigger is None or self._request is None or self._recording is not None or self._times_left <= 0:
            return
        self._reason = self._trigger.observe(step_ns, exposed_ns) or self._reason
        if self._reason is not None:
            self._request.ask()

    def _count_request(self) -> None:
        """Count a recording that begins on request; a rank that has asked for it notes it in its watch."""
        self._times_left -= 1
        if self._trigger is not None and self._reason is None:  # else it has restarted with what it triggered on
            self._trigger.restart()
        if self._reason is not None and self._watch is not None and self._out is not None:
            self._watch.note_recording(self._steps_done, self._out / f"step-{self._steps_done}", self._reason)
        self._reason = None

    def _begin_recording(self) -> None:
        assert self._out is not None
        if self._steps_done:
            _require_no_profiler()
            self._subject = _inspect(self._model)  # it may have been wrapped meanwhile
        world_size = dist.get_world_size() if dist.is_initialized() else 1
        if self._ranks is not None and not all(rank < world_size for rank in self._ranks):
            raise EngineError(f"Recorder's ranks must be among 0 to {world_size - 1}, not {list(self._ranks)}")
        if world_size > 1 and self._subject.roots and not self._subject.is_held:
            warnings.warn(
                "the model is in neither DDP nor FSDP2, as far as the recorder sees: its gradients are labelled, and "
                "the strategy stays unknown; give the recorder the module that the loop calls",
                stacklevel=4,
            )
        self._recording = Recording(
            self._out / f"step-{self._steps_done}" if self._records_repeatedly else self._out,
            self._subject,
            first=self._steps_done,
            warmup=self._warmup,
            steps=self._steps,
            ranks=self._ranks,
            most_bytes=None if self._max_mb == inf else round(self._max_mb * 1e6),
        )
        if self._pauses:
            self._recording.pause()

    def _called_model(self) -> nn.Module | None:
        """The module that the loop calls: callbacks of frameworks are given the one inside DDP."""
        inside = [ddp for ddp in self._subject.ddps if self._model is not None and self._model is ddp.module]
        return inside[0] if inside else self._model

    def _install_comm_hooks(self) -> None:
        """Take the place of comm hooks while ranks are in step: recordings may begin at different steps."""
        for ddp in self._subject.ddps:
            if ddp._comm_hooks and unnamed_because(ddp) is None:
                CommHook.install(ddp)


def _inspect(model: nn.Module | None) -> Subject:
    try:
        return Subject() if model is None else Subject.inspect(model)
    except Exception as error:
        warnings.warn(f"nothing is labelled, as the model cannot be inspected: {error_line(error)}", stacklevel=4)
        return Subject()


def _require_no_other() -> None:
    """torch has one profiler per process: a second one would lose the first one's events, or crash the process."""
    for other in _open:
        raise EngineError(f"another Recorder is open, on {other._out}; close it first")
    _require_no_profiler()


def _require_no_profiler() -> None:
    if torch._C._autograd._profiler_enabled():
        raise EngineError("a profiler is running, and torch allows only one; stop it before starting a Recorder")
