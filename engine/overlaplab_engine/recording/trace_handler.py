"""A handler for `torch.profiler.profile(on_trace_ready=…)` that also logs, in one line, what a trace says of overlap.

The line is that of `overlaplab summary --line`, a process of its own: the training process starts a thread that waits
for it, and is held for no longer, whatever becomes of that process.
"""

import atexit
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import TypeAlias

import torch.distributed as dist
from torch.profiler import profile

from overlaplab_engine.recording.recording import error_line

OnTraceReady: TypeAlias = Callable[[profile], None]
_LOG = logging.getLogger("overlaplab")
_ENDING = ".pt.trace.json"
_WAIT_FOR_RANKS_S = 60.0
_LONGEST_LINE_S = 600.0
"""After that the process that computes a line is killed."""
_AT_EXIT_S = 60.0
"""A training that ends waits for so long for the last line."""
_POLL_S = 0.1
_NICENESS = 10
"""The process computes with what training leaves of the cores."""


def trace_handler(out: str | os.PathLike[str], *, all_ranks: bool = False, use_gzip: bool = False) -> OnTraceReady:
    """Return a handler for `profile(on_trace_ready=…)` that writes traces, and of rank 0 logs one line for each.

    As torch's `tensorboard_trace_handler` does, it writes a file into the folder `out` on every rank that calls it,
    called `rank0_step12.1700000000000000000.pt.trace.json`, whole or not at all. The line says what was exposed, why,
    and what to try first with its predicted gain, as `overlaplab summary` of the file does. It is logged by
    `logging.getLogger("overlaplab")` at the level INFO. With `all_ranks` the line is about all ranks' files, for which
    rank 0's waits for a minute, so that it knows which rank waited for which.

    It never raises an error where it is called: what fails is logged as one warning.
    """
    return _TraceHandler(Path(out).expanduser().absolute(), all_ranks=all_ranks, ending=_ENDING + ".gz" * use_gzip)


class _TraceHandler:
    def __init__(self, out: Path, *, all_ranks: bool, ending: str) -> None:
        self._out, self._all_ranks, self._ending = out, all_ranks, ending
        self._earlier = set(_names_in(out))
        self._thread: Thread | None = None
        self._ends = Event()

    def __call__(self, profiler: profile) -> None:
        """Write the trace, and begin to compute its line."""
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        step = getattr(profiler, "step_num", 0)
        file = self._out / f"rank{rank}_step{step}.{time.time_ns()}{self._ending}"
        try:
            self._out.mkdir(parents=True, exist_ok=True)
            _export(profiler, file)
        except Exception as error:
            _LOG.warning("no trace in %s: %s", self._out, error_line(error))
            return
        if rank == 0:
            self._begin(file, step, ranks if self._all_ranks else 1)

    def _begin(self, file: Path, step: int, ranks: int) -> None:
        if self._thread is not None and self._thread.is_alive():
            _LOG.warning("%s: no line, as the one before is still being computed", file)
            return
        thread = Thread(target=self._log_line, args=(file, step, ranks), name="overlaplab line", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            _LOG.warning("%s: no line: %s", file, error_line(error))
            return
        if self._thread is None:
            atexit.register(self._end)
        self._thread = thread

    def _end(self) -> None:
        """Wait for the last line for a while, as the process ends."""
        if self._thread is not None:
            self._thread.join(_AT_EXIT_S)
            self._ends.set()
            self._thread.join()

    def _log_line(self, file: Path, step: int, ranks: int) -> None:
        try:
            files = self._files(file, step, ranks) if ranks > 1 else [file]
            with _as_run(files) as arguments:
                line = _summary_line(arguments, self._ends)
            if len(files) < ranks:
                line += f" (Of {ranks} ranks {len(files)} wrote a trace in time.)"
        except Exception as error:
            _LOG.warning("%s: no line: %s", file, error_line(error))
            return
        # Where nobody configures logging, Python prints warnings alone.
        _LOG.log(logging.INFO if _LOG.hasHandlers() else logging.WARNING, "%s: %s", file, line)

    def _files(self, file: Path, step: int, ranks: int) -> list[Path]:
        """The ranks' files of this recording, once all are there or the wait for them is over."""
        until = time.monotonic() + _WAIT_FOR_RANKS_S
        while True:
            named: dict[str, list[str]] = {}
            for name in sorted(_names_in(self._out)):
                rank, _, recording = name.partition("_")
                is_of_step = recording.startswith(f"step{step}.") and recording.endswith(self._ending)
                if is_of_step and name not in self._earlier:
                    named.setdefault(rank, []).append(name)
            # A step may be recorded again: a rank's n-th file of it belongs to rank 0's n-th.
            place = sum(name < file.name for name in named.pop("rank0", ()))
            files = [file, *(self._out / names[place] for names in named.values() if len(names) > place)]
            if len(files) >= ranks or time.monotonic() > until or self._ends.wait(_POLL_S):
                return files


def _names_in(folder: Path) -> Iterator[str]:
    """The names of the traces in a folder; none where it cannot be read."""
    with suppress(OSError):
        yield from (name for name in os.listdir(folder) if name.startswith("rank"))


def _export(profiler: profile, file: Path) -> None:
    """Write the trace to a name that nobody reads, then rename it."""
    hidden = file.with_name(f".{file.name}")
    try:
        profiler.export_chrome_trace(str(hidden))
        hidden.replace(file)
    finally:
        hidden.unlink(missing_ok=True)


@contextmanager
def _as_run(files: Sequence[Path]) -> Iterator[tuple[str, ...]]:
    """The arguments of a command about these files alone, whatever else their folder holds."""
    if len(files) == 1:
        yield (str(files[0]),)
        return
    with TemporaryDirectory(prefix="overlaplab-") as folder:
        for file in files:
            Path(folder, file.name).symlink_to(file)
        yield folder, "--no-cache"  # which goes by paths


def _summary_line(arguments: Sequence[str], ends: Event) -> str:
    """What `overlaplab summary --line` prints. Raises ChildProcessError where the process fails or is killed."""
    command = [sys.executable, "-m", "overlaplab", "summary", "--line", *arguments]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    # In a session of its own, Ctrl-C does not reach it.
    with subprocess.Popen(
        command, stdin=nothing, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
        until = time.monotonic() + _LONGEST_LINE_S
        while True:
            try:
                line, errors = process.communicate(timeout=_POLL_S)
                break
            except subprocess.TimeoutExpired:
                if ends.is_set() or time.monotonic() > until:
                    process.kill()
    if process.returncode < 0:
        raise ChildProcessError(f"its process was ended by signal {-process.returncode}")
    if process.returncode:
        raise ChildProcessError(next(iter(errors.strip().splitlines()[-1:]), f"exit code {process.returncode}"))
    return line.strip()
