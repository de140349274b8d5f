"""Watch a whole training: the time of every step and, in bursts, what communication it did not hide.

It runs no profiler, calls no collectives and waits for no device. All ranks measure the same steps, because they count
them alike. Nothing that goes wrong in here reaches the training.
"""

import atexit
import os
import sys
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from overlaplab_engine.errors import EngineError
from overlaplab_engine.watching.bursts import Bursts
from overlaplab_engine.watching.clock import EventClock, WatchHostClock
from overlaplab_engine.watching.ddp_timers import DDPTimers
from overlaplab_engine.watching.log import Cell, CellKind, Flag, LookFlag, WatchLog
from overlaplab_engine.watching.looks import STALLED_NS, Lookout, Looks
from overlaplab_engine.watching.passes import Passes
from overlaplab_engine.watching.waits import Waits

OUT = "OVERLAPLAB_WATCH"
"""The environment variable that names the folder, whatever the script says."""

_watching: "Watch | None" = None


def watch(
    model: nn.Module | None = None, out: str | os.PathLike[str] = "runs/live", *, every: int = 100, burst: int = 3
) -> "Watch":
    """Watch a training; a context manager around the loop, whose `step()` the loop calls at the end of each step.

    `model` is the module that the loop calls; without one, passes and DDP's waits stay unknown. `out` is a folder, the
    same on all ranks, in which the files of an earlier training are replaced; the environment variable OVERLAPLAB_WATCH
    goes before it. Of each `every` steps `burst` are measured in detail, now these and now those, so that nothing that
    returns every hundred steps is always among them. Raises EngineError for wrong arguments, and later nothing.
    """
    return Watch(model, out, every=every, burst=burst)


class Watch:
    """The watch over one training; `watch` makes it, or a Recorder."""

    def __init__(
        self,
        model: nn.Module | None,
        out: str | os.PathLike[str],
        *,
        every: int = 100,
        burst: int = 3,
        after_burst: Callable[[Sequence[int], Sequence[int]], None] | None = None,
    ) -> None:
        """See `watch`. After a burst `after_burst` gets its steps' times, and the exposed times that are known, in ns.

        Steps in which a profiler ran are left out.
        """
        if model is not None and not isinstance(model, nn.Module):
            raise EngineError(f"watch's model must be a torch.nn.Module, not a {type(model).__name__}")
        self._bursts, self._after_burst = Bursts(every, burst), after_burst
        self._model = model
        # The loop may change its working directory.
        self._out = Path(os.environ.get(OUT) or out).expanduser().absolute()
        self._has_ddp = False
        self._step = 0
        self._notes: set[str] = set()
        self._started = self._broken = False
        self._log: WatchLog | None = None
        self._waits: Waits | None = None
        self._passes: Passes | None = None
        self._timers: list[DDPTimers] = []
        self._groups: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # destroyed ones are let go
        self._group_count = 0
        self._groups_lock = threading.Lock()
        self._looks: Looks | None = None
        self._lookout: Lookout | None = None
        self._sums: dict[tuple[CellKind, int, int], int] = defaultdict(int)  # by kind, step and group
        self._data_ns: int | None = None
        self._saw_pass = False  # whether a forward pass of this step was seen
        self._profiled = False  # whether a profiler ran when this step began
        self._step_start_ns = 0
        self._is_paused = False
        self._paused_at_ns = 0
        self._timers_stop_at: int | None = None  # before this step, once a burst is over
        self._measured = False  # whether this step is one of a burst
        self._clock: WatchHostClock | EventClock = WatchHostClock()
        self._pid = os.getpid()
        self._earlier_errors = set[int]()  # before the start

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def start(self) -> Self:
        """Start, before a step."""
        global _watching
        if self._started:
            raise EngineError("this watch was started before; make a new one for each training")
        self._started = True
        self._earlier_errors = _errors()
        try:
            if _watching is not None:
                raise EngineError(f"another watch is open, on {_watching._out}; close it first")
            self._open()
            _watching = self
            atexit.register(self.close)
            self._begin_step()
        except Exception as error:
            self._fail(error)
        return self

    def step(self) -> None:
        """Mark the end of a step: call it after every optimizer step."""
        if not self._started:
            raise EngineError("this watch was not started: call step() inside its `with` block, or after start()")
        if self._log is None:
            return
        try:
            self._end_step()
            self._step += 1
            self._begin_step()
        except Exception as error:
            self._fail(error)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What runs inside, such as evaluation, is no part of a step."""
        if self._is_paused:  # within another one
            yield
            return
        self._is_paused, self._paused_at_ns = True, time.perf_counter_ns()
        self._measure(False)
        try:
            yield
        finally:
            self._step_start_ns += time.perf_counter_ns() - self._paused_at_ns
            self._is_paused = False
            self._measure(self._measured and self._log is not None)

    def _measure(self, measuring: bool) -> None:
        """Measure passes and waits from now on, or do not."""
        if self._passes is not None:
            self._passes.timing = measuring
        if self._waits is not None:
            self._waits.measuring = measuring

    def close(self) -> None:
        """Stop. What was written stays; a step that has not ended is left out."""
        if self._log is not None and not self._is_ours():
            return  # a child that was forked has the parent's file
        try:
            if self._log is not None:
                self._clock.begin_step()
            failed = not _errors() <= self._earlier_errors
            since_ns = max(0, time.perf_counter_ns() - self._step_start_ns)
            self._write(self._look(LookFlag.FAILED, self._step, since_ns) if failed else ())
            self._shut()
        except Exception as error:
            self._fail(error)

    def _open(self) -> None:
        distributed = dist.is_initialized()
        rank = dist.get_rank() if distributed else int(os.environ.get("RANK", 0))
        world_size = dist.get_world_size() if distributed else int(os.environ.get("WORLD_SIZE", 1))
        parameter = None if self._model is None else next(self._model.parameters(), None)
        device = "cpu" if parameter is None else parameter.device.type
        if (mesh := getattr(parameter, "device_mesh", None)) is not None:  # FSDP2 may offload to the host
            device = mesh.device_type
        self._clock = EventClock() if device == "cuda" else WatchHostClock()
        modules = () if self._model is None else self._model.modules()
        ddps = [module for module in modules if isinstance(module, DistributedDataParallel)]
        self._has_ddp = bool(ddps)
        self._log = WatchLog(
            self._out,
            rank,
            world_size,
            {
                "started_unix_ns": time.time_ns(),
                "every": self._bursts.every,
                "burst": self._bursts.burst,
                "device": device,
                "ddp": len(ddps),
                "torch": torch.__version__,
            },
        )
        self._pid = os.getpid()
        if self._model is not None:
            with self._note_missing("forward and backward passes"):
                self._passes = Passes(
                    self._model,
                    self._clock,
                    self._receiver,
                    began=self._forward_began,
                    ended=self._read_timers,
                    failed=self._fail,
                )
        for ddp in ddps if device == "cpu" else ():
            with self._note_missing("DDP's waits"):
                self._timers.append(DDPTimers(ddp))
        if distributed:
            with self._note_missing("places where ranks stop"):
                self._looks = Looks(self._number_group)
                self._lookout = Lookout(self._look_if_stalled)
        self._waits = Waits(self._clock, self._receiver, self._fail)
        if any(ddp._comm_hooks for ddp in ddps):
            self._waits.future_kind = CellKind.EXPOSED_GRADIENTS

    @contextmanager
    def _note_missing(self, what: str) -> Iterator[None]:
        """Inside it a name that this torch does not have costs one note, and nothing else."""
        try:
            yield
        except AttributeError as error:
            self.note(f"{what} are not seen: this torch lacks what tells of them ({error})")

    def _begin_step(self) -> None:
        self._data_ns, self._saw_pass = None, False
        self._clock.begin_step()
        measured = self._bursts.holds(self._step)
        assert self._waits is not None
        if self._passes is not None:
            self._passes.next_step()
        wanted = measured or self._bursts.holds(self._step + 1)
        if wanted and not self._waits.active:
            with self._note_missing("waits"):
                self._waits.replace()
        elif not wanted and self._waits.active:
            self._waits.restore()
        self._waits.next_step(measuring=measured)
        self._measure(measured and not self._is_paused)
        self._set_timers(measured)
        self._profiled = _profiler_runs()
        self._step_start_ns = self._paused_at_ns = time.perf_counter_ns()

    def _set_timers(self, measured: bool) -> None:
        """DDP's timers run one step longer than a burst, as they are read during the next step."""
        if measured != self._measured:
            for timers in self._timers if measured and self._timers_stop_at is None else ():
                timers.start()
            self._timers_stop_at = None if measured else self._step + 1
        if self._timers_stop_at == self._step:
            for timers in self._timers:
                timers.stop()
            self._timers_stop_at = None
            self._end_burst()
        self._measured = measured

    def _end_burst(self) -> None:
        """Hand the burst's times to `after_burst`, now that DDP's timers are complete."""
        step_ns, exposed_ns = self._bursts.take(ddp=self._has_ddp)
        if self._after_burst is not None and step_ns:
            self._after_burst(step_ns, exposed_ns)

    def _end_step(self) -> None:
        end_ns = self._paused_at_ns if self._is_paused else time.perf_counter_ns()
        step_ns = end_ns - self._step_start_ns
        assert self._waits is not None
        flags = Flag.PROFILED * (self._profiled or _profiler_runs()) + Flag.IN_BURST * self._measured
        if self._measured and not flags & Flag.PROFILED:
            self._bursts.add_step(self._step, step_ns)
        cells = [Cell(CellKind.STEP, self._step, step_ns, flags=flags)]
        if self._data_ns is not None:
            cells.append(Cell(CellKind.DATA, self._step, self._data_ns))
        for group, number, duration_ns in self._waits.all_reduces:
            with suppress(KeyError):  # the group was destroyed within the step
                cells.append(Cell(CellKind.ALL_REDUCE, number, duration_ns, group=self._number_group(group)))
        if self._looks is not None and self._looks.is_due:
            cells += self._look(LookFlag.STEP_ENDED, self._step + 1, 0)
        self._write(cells)

    def _look(self, why: LookFlag, step: int, since_ns: int) -> list[Cell]:
        """How far each process group has come; see [Note: looks]. Two threads look."""
        try:
            return [] if self._looks is None else list(self._looks.cells(why, step, since_ns))
        except Exception as error:
            self._looks = None
            if self._log is not None:  # else the other thread has come too late
                self.note(f"places where ranks stop are not seen: {type(error).__name__}: {error}")
            return []

    def _look_if_stalled(self) -> None:
        log, since_ns = self._log, time.perf_counter_ns() - self._step_start_ns
        if log is not None and since_ns >= STALLED_NS and not self._is_paused:
            with suppress(OSError):  # the training's thread meets the error, too
                log.append(self._look(LookFlag.STALLED, self._step, since_ns))

    def _write(self, cells: Sequence[Cell]) -> None:
        """Append cells and what was summed up since."""
        if self._log is None:
            return
        sums = [Cell(kind, step, value, group=group) for (kind, step, group), value in self._sums.items()]
        self._sums.clear()
        if cells or sums:
            self._log.append([*cells, *sums])

    def _receiver(self, kind: CellKind) -> Callable[[int], None]:
        """Return what adds a duration to this step's sum of the kind, even if it is called steps later."""
        return partial(self._add, kind, self._step)

    def _add(self, kind: CellKind, step: int, duration_ns: int) -> None:
        self._sums[kind, step, 0] += duration_ns
        self._bursts.add(kind, step, duration_ns)

    def _forward_began(self, trains: bool) -> None:
        """What lies before a step's first pass is data loading, unless that pass is one of an evaluation."""
        if not self._saw_pass and not self._is_paused:
            self._saw_pass = True
            if trains:
                self._data_ns = time.perf_counter_ns() - self._step_start_ns

    def _read_timers(self) -> None:
        """After a forward pass, at which DDP gives out what it measured of the backward pass before."""
        if not self._timers or not (self._measured or self._timers_stop_at is not None):
            return
        in_step_ns = time.perf_counter_ns() - self._step_start_ns
        for timers in self._timers:
            if (times := timers.read()) is None:
                continue
            exposed_ns, communication_ns, ended_before_ns = times
            step = self._step if ended_before_ns < in_step_ns else self._step - 1
            if self._bursts.holds(step):  # not of a pass before the first step
                self._add(CellKind.EXPOSED_DDP, step, exposed_ns)
                group = self._number_group(timers.group)
                self._sums[CellKind.DDP_COMMUNICATION, step, group] += communication_ns

    def _number_group(self, group: Any) -> int:
        """The group's number in the file. Raises KeyError if it was destroyed before it got one."""
        with self._groups_lock:
            if group not in self._groups:
                assert self._log is not None
                self._log.add("groups", _describe(group))
                self._groups[group] = self._group_count
                self._group_count += 1
            return self._groups[group]

    def note_recording(self, step: int, path: Path, reason: str) -> None:
        """Note a recording that begins before this step, and why."""
        if self._log is not None:
            self._log.add("recordings", {"step": step, "path": str(path), "reason": reason})

    def note(self, text: str) -> None:
        """Warn once, and write into the header, what is not watched."""
        if text in self._notes:
            return
        self._notes.add(text)
        if self._log is not None:
            self._log.add("notes", text)
        _warn(f"{self._out}: {text}")

    def _fail(self, error: Exception) -> None:
        """Something has gone wrong in here: say so once, and watch no more."""
        if self._broken:
            return
        self._broken = True
        text = f"the training is watched no more: {' '.join(f'{type(error).__name__}: {error}'.split())[:200]}"
        tidying: tuple[Callable[[], None], ...] = (lambda: self.note(text), self._shut)
        for tidy_up in tidying:
            try:
                tidy_up()
            except Exception as another:
                print(f"overlaplab: {another}", file=sys.stderr)

    def _shut(self) -> None:
        global _watching
        log, self._log = self._log, None
        if _watching is self:
            _watching = None
        atexit.unregister(self.close)
        if self._lookout is not None:
            self._lookout.close()
        if self._waits is not None:
            self._waits.restore()
        if self._passes is not None:
            self._passes.remove()
        for timers in self._timers:
            timers.stop()
        self._timers = []
        if log is not None and self._is_ours():
            log.close(ended=not self._broken)

    def _is_ours(self) -> bool:
        """Whether this process is the one that watches, and not a fork, such as a data loader's worker."""
        return self._pid == os.getpid()


def _errors() -> set[int]:
    """The error that is being handled, and the one that has ended the interpreter, or a notebook's cell; by id, as
    errors hold tensors of the frames that they passed.
    """
    errors = (sys.exc_info()[1], getattr(sys, "last_value", None))
    return {id(error) for error in errors if error is not None}


def _profiler_runs() -> bool:
    enabled = getattr(torch._C._autograd, "_profiler_enabled", None)
    return bool(enabled and enabled())


def _describe(group: Any) -> dict[str, Any]:
    """What the header says of a process group; its members are those of the same name on other ranks."""
    return {
        "name": str(group.group_name),
        "description": str(getattr(group, "group_desc", "")),
        "ranks": list(dist.get_process_group_ranks(group)),
    }


def _warn(text: str) -> None:
    try:
        warnings.warn(text, stacklevel=4)
    except Warning:  # where warnings are errors, too, the training goes on
        print(f"overlaplab: {text}", file=sys.stderr)
