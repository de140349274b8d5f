"""Record the steps after warm-up with torch.profiler, one trace per rank; each file is complete or absent."""

import gzip
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._C._profiler import _RecordFunctionFast as Span
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.hooks import RemovableHandle

from overlaplab_engine import labels
from overlaplab_engine.errors import EngineError
from overlaplab_engine.labels import Word
from overlaplab_engine.recording import processor
from overlaplab_engine.recording.device_events import holds_device_events
from overlaplab_engine.strategies.gradients.hooks import after_accumulation

TRACE = "rank{rank}.pt.trace.json.gz"
MANIFEST = "run.json"
NO_STEP = "overlaplab::next_step"
"""The name of a range that only ends the step before it, as in what `overlaplab slice` writes."""
OTHER_PROFILER_STARTED = "another profiler was started meanwhile, and torch allows only one"
_RANGE = re.compile(rb"(?<=\"name\": \")ProfilerStep#(overlaplab)?(\d+)(?=\")")
"""The name of a step's range, before it is numbered. Without `overlaplab` it is that of another, idle profiler."""
_TS = re.compile(rb'^    "ts": ([\d.]+)', re.MULTILINE)
_ALWAYS_KEPT = re.compile(rb'"ph": "M"|"cat": "(?:kernel|gpu_mem\w+)"')
"""Names of threads, and what runs on a GPU: that may be later than the step that launched it."""


def experimental_config(all_threads: bool, gpu: bool) -> Any:
    """What the profiler does not record by default: all threads (the emulated link's), waits between streams."""
    return torch._C._profiler._ExperimentalConfig(profile_all_threads=all_threads, enable_cuda_sync_events=gpu)


class TraceFile:
    """Records the steps after `warmup` into `<out>/rankN.pt.trace.json.gz`; a context manager around the loop.

    The trace is cut into ranges without a gap, each a step's by `numbers`, or outside all steps.
    """

    def __init__(
        self,
        out: Path,
        rank: int,
        *,
        warmup: int,
        steps: int | None = None,
        first: int | None = None,
        gpu: torch.device | None = None,
        all_threads: bool = False,
        shapes: bool = False,
        hold: bool = False,
        most_bytes: int | None = None,
    ) -> None:
        """`warmup` (1 or more) steps run first, on a GPU the last with a prepared profiler; then `steps` are recorded.

        Without `steps` the recording ends with the context. The first recorded step has the number `first`, by default
        `warmup`. With `hold` only `write` writes the file, unless an error ends the recording.

        `gpu` is this rank's GPU, if it computes on one; it need not be torch's current device. `shapes` records the
        shapes of operators' inputs, which give the size of collectives without a label. If the trace has more than
        `most_bytes` before it is compressed, only its first steps are written: as many as fit if all are equally large.
        """
        self._path = out / TRACE.format(rank=rank)
        self._gpu, self._warmup, self._steps, self._ended, self._hold = gpu, warmup, steps, 0, hold
        self._first = warmup if first is None else first
        self._most_bytes, self._all_threads = most_bytes, all_threads
        self._range: record_function | None = None
        self._prepared = False
        self.numbers: list[int | None] = []
        """The step of each range that was begun; may be changed until the end. None: in no step."""
        self.saw_no_device = False
        """Whether a GPU was to be recorded, but the trace contains nothing that ran on it."""
        self._profiler = profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])],
            record_shapes=shapes,
            experimental_config=experimental_config(all_threads, gpu is not None),
        )

    def __enter__(self) -> "TraceFile":
        self._advance()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Write what was recorded, even after an error."""
        self._hold = self._hold and kind is None
        if self._range is not None:
            self._stop()
        elif self._prepared and not self.numbers and not torch._C._autograd._profiler_enabled():
            # a prepared profiler can only be started and stopped
            self._profiler.start_trace()
            self._profiler.stop_trace()

    def step(self) -> None:
        """A step is over."""
        self._ended += 1
        self._advance()

    def cut(self, number: int | None) -> None:
        """While steps are recorded, end a range and begin the one of step `number`."""
        if self._range is not None:
            self._range.__exit__(None, None, None)
        self._range = record_function(f"ProfilerStep#overlaplab{len(self.numbers)}")
        self.numbers.append(number)
        self._range.__enter__()  # type: ignore[no-untyped-call]

    def write(self) -> None:
        """Write the trace that was held."""
        self._export(self._profiler)

    def discard(self) -> None:
        self._path.unlink(missing_ok=True)

    def _advance(self) -> None:
        """The warm-up's last step begins, or a recorded one, or what comes after them."""
        recorded = self._ended - self._warmup  # steps; -1: the warm-up's last one begins
        with torch.cuda.device(self._gpu) if self._gpu else nullcontext():
            if recorded == -1 and self._gpu:
                self._prepare()
            elif recorded == 0:
                if self._gpu:
                    torch.cuda.synchronize(self._gpu)  # what warm-up launched must not run in the recorded steps
                if torch._C._autograd._profiler_enabled():
                    raise EngineError("another profiler is running, and torch allows only one")
                if not self._gpu:  # not earlier, as a profiler of the loop's own would undo it
                    self._prepare()
                self._profiler.start_trace()
        if recorded == self._steps:
            self._stop()
        elif recorded >= 0 and (self._steps is None or recorded < self._steps):
            self.cut(self._first + recorded)

    def _prepare(self) -> None:
        with warnings.catch_warnings():  # torch before 2.13 warns in the first cycle, without cause
            warnings.filterwarnings("ignore", "Warning: Profiler clears events")
            self._profiler.prepare_trace()
        self._prepared = True

    def _stop(self) -> None:
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None
        # Torch crashes if it is stopped twice. With `all_threads` this thread cannot ask whether it still runs.
        if not self._all_threads and not torch._C._autograd._profiler_enabled():
            raise EngineError(OTHER_PROFILER_STARTED)
        # Torch waits for the current device.
        with torch.cuda.device(self._gpu) if self._gpu else nullcontext():
            self._profiler.stop_trace()
        if not self._hold:
            self._export(self._profiler)

    def _export(self, profiler: Any) -> None:
        with atomic_path(self._path) as temporary:
            plain = temporary.with_name(temporary.name + ".json")
            try:
                profiler.export_chrome_trace(str(plain))
                if not plain.exists():  # torch's profiler raises no error
                    raise EngineError("torch's profiler could not write its trace; is the disk full?")
                if self._gpu:
                    with plain.open("rb") as lines:
                        self.saw_no_device = not holds_device_events(lines)
                with self._text(plain) as source, gzip.open(temporary, "wb", compresslevel=6) as target:
                    # The trace contains the name of the temporary file; put the final name there.
                    temporary_name, name = str(plain).encode(), self._path.name.encode()
                    written: set[int] = set()
                    for piece in source:
                        target.write(
                            _RANGE.sub(partial(self._final_name, written), piece.replace(temporary_name, name))
                        )
                if any(number is not None and place not in written for place, number in enumerate(self.numbers)):
                    raise EngineError(OTHER_PROFILER_STARTED)
            finally:
                plain.unlink(missing_ok=True)
                plain.with_name(plain.name + ".tmp").unlink(missing_ok=True)  # torch's partial file

    @contextmanager
    def _text(self, plain: Path) -> Iterator[Iterable[bytes]]:
        """The trace in pieces of whole lines, as much of it as is to be written."""
        steps = [place for place, number in enumerate(self.numbers) if number is not None]
        size = plain.stat().st_size
        fitting = len(steps) if self._most_bytes is None else max(1, self._most_bytes * len(steps) // size)
        if fitting < len(steps):
            end = steps[fitting]
            self.numbers[end:] = [None for _ in self.numbers[end:]]
            yield _shorten_trace(plain, b"ProfilerStep#overlaplab%d" % end)
        else:
            with plain.open("rb") as lines:
                yield iter(lambda: b"".join(lines.readlines(1 << 20)), b"")

    def _final_name(self, written: set[int], match: re.Match[bytes]) -> bytes:
        """The final name of a range, whose place is then among those written."""
        if match[1] is None:
            return b"profiler.step#" + match[2]
        place = int(match[2])
        written.add(place)
        number = self.numbers[place]
        return b"%b#%d" % (NO_STEP.encode(), place) if number is None else b"ProfilerStep#%d" % number


def _shorten_trace(trace: Path, end: bytes) -> Iterator[bytes]:
    """Yield the text of the trace, as Kineto writes it, up to where the range called `end` begins, and that range."""
    name = b'"name": "%b"' % end
    with trace.open("rb") as lines:
        cut_us = next(_start_us(piece) for piece, is_event in _pieces(lines) if is_event and name in piece)
    with trace.open("rb") as lines:
        between = b""
        for piece, is_event in _pieces(lines):
            if not is_event:
                yield (b"\n" if between else b"") + piece
            elif _ALWAYS_KEPT.search(piece) or _start_us(piece) < cut_us or name in piece:
                yield between + piece
                between = b",\n"


def _pieces(lines: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """The text, each piece with whether it is one event; these come without the comma after them."""
    piece: list[bytes] = []
    for line in lines:
        if line == b"  {\n" and piece:
            yield b"".join(piece), False
            piece = []
        piece.append(line)
        if piece[0] == b"  {\n" and line in (b"  },\n", b"  }\n"):
            yield b"".join([*piece[:-1], b"  }"]), True
            piece = []
    if piece:
        yield b"".join(piece), False


def _start_us(event: bytes) -> float:
    match = _TS.search(event)
    return 0.0 if match is None else float(match[1])


def label_gradients(
    parameters: Mapping[str, nn.Parameter],
    unit_of: Mapping[str, str] | None = None,
    call: Callable[[str], None] = lambda name: None,
    hook: Callable[[Callable[..., None]], Callable[..., None]] = lambda call: call,
) -> list[RemovableHandle]:
    """Put an `engine::gradient_ready` into the trace whenever autograd has accumulated the gradient of one of these
    named parameters, then call `call` with its name.

    With `unit_of`, each parameter's unit, the thread's counts go with it (see `recording.processor`). `hook` wraps each
    callback before torch gets it. To stop, remove the handles.
    """
    handles = []
    for name, parameter in parameters.items():
        if parameter.requires_grad:
            mark = labels.span(Word.GRADIENT_READY, parameter=name)
            unit = None if unit_of is None else unit_of.get(name, "")
            handles.append(after_accumulation(parameter, hook(partial(_mark_ready, mark, unit, partial(call, name)))))
    return handles


def _mark_ready(mark: Span, unit: str | None, call: Callable[[], None], _: torch.Tensor) -> None:
    if unit is not None:
        processor.mark(unit, "backward")
    labels.instant(mark)
    call()


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, renamed to `path` on success: a file that exists is complete."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    """Write one JSON document."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1) + "\n")


def clear(out: Path) -> None:
    """Create the run's directory; delete an older run and temporary files there."""
    out.mkdir(parents=True, exist_ok=True)
    sweep(out)
    for path in [*out.glob(MANIFEST), *out.glob(TRACE.format(rank="[0-9]*"))]:
        path.unlink(missing_ok=True)


def sweep(out: Path) -> None:
    """Delete temporary files that a killed run left."""
    for path in out.glob(".*.tmp*"):
        if path.name.startswith((f".{MANIFEST}", ".rank")):
            path.unlink(missing_ok=True)
