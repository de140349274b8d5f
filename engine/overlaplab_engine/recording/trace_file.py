"""Record the steps after warm-up with torch.profiler, one trace per rank; each file is complete or absent."""

import gzip
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.hooks import RemovableHandle

from overlaplab_engine import labels
from overlaplab_engine.labels import Span, Word
from overlaplab_engine.recording import processor
from overlaplab_engine.recording.device_events import holds_device_events
from overlaplab_engine.strategies.hooks import after_accumulation

__all__ = ["MANIFEST", "TRACE", "TraceFile", "clear", "label_gradients", "sweep", "whole", "write_json"]

TRACE = "rank{rank}.pt.trace.json.gz"
MANIFEST = "run.json"


class TraceFile:
    """Records the steps after `warmup` into `<out>/rankN.pt.trace.json.gz`; a context manager around the loop."""

    def __init__(
        self,
        out: Path,
        rank: int,
        *,
        warmup: int,
        steps: int,
        gpu: torch.device | None = None,
        all_threads: bool = False,
        shapes: bool = False,
        hold: bool = False,
    ) -> None:
        """`warmup` (1 or more) steps run first, the last of them with the profiler on; then `steps` are recorded.

        With `hold` the file is written by `write`, which may be left out, or after an error.

        `gpu` is this rank's GPU, if it computes on one; it need not be torch's current device. `shapes` records the
        shapes of operators' inputs, which give the size of collectives without a label.
        """
        self._path = out / TRACE.format(rank=rank)
        self._gpu, self._warmup, self._ended, self._hold = gpu, warmup, 0, hold
        self.saw_no_device = False
        """Whether a GPU was to be recorded, but the trace contains nothing that ran on it."""
        self._profiler = profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])],
            schedule=schedule(wait=warmup - 1, warmup=1, active=steps, repeat=1),
            on_trace_ready=self._ended_recording,
            record_shapes=shapes,
            # By default the profiler does not record threads such as the emulated link's.
            experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=all_threads),
        )

    def __enter__(self) -> "TraceFile":
        """Start the profiler's schedule; the first step begins."""
        with _one_cycle():
            self._profiler.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Write what was recorded, even after an error."""
        self._hold = self._hold and kind is None
        self._profiler.__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]

    def step(self) -> None:
        """End a step and begin the next."""
        self._ended += 1
        if self._gpu and self._ended == self._warmup:
            torch.cuda.synchronize(self._gpu)  # work launched during warm-up must not run in the recorded steps
        # When the recording ends, torch's profiler synchronizes the current device.
        with _one_cycle(), torch.cuda.device(self._gpu) if self._gpu else nullcontext():
            self._profiler.step()

    def write(self) -> None:
        """Write what was recorded and held back."""
        self._export(self._profiler)

    def discard(self) -> None:
        """Delete the file."""
        self._path.unlink(missing_ok=True)

    def _ended_recording(self, profiler: Any) -> None:
        if not self._hold:
            self._export(profiler)

    def _export(self, profiler: Any) -> None:
        with whole(self._path) as temporary:
            plain = temporary.with_name(temporary.name + ".json")
            try:
                profiler.export_chrome_trace(str(plain))
                if self._gpu:
                    with plain.open("rb") as lines:
                        self.saw_no_device = not holds_device_events(lines)
                with plain.open("rb") as source, gzip.open(temporary, "wb", compresslevel=6) as target:
                    # The trace contains the name of the temporary file; put the final name there.
                    temporary_name, name = str(plain).encode(), self._path.name.encode()
                    while piece := source.readlines(1 << 20):
                        target.write(b"".join(piece).replace(temporary_name, name))
            finally:
                plain.unlink(missing_ok=True)


@contextmanager
def _one_cycle() -> Iterator[None]:
    """Suppress torch 2.11's warning that a cycle's events are lost in the next: there is only one cycle."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning: Profiler clears events")
        yield


def label_gradients(
    model: nn.Module, unit_of: Mapping[str, str] | None = None, came: Callable[[str], None] = lambda name: None
) -> list[RemovableHandle]:
    """Put an `engine::gradient_ready` into the trace whenever autograd has accumulated a parameter's gradient, then
    call `came` with its name.

    With `unit_of`, each parameter's unit, the thread's counts go with it (see `recording.processor`). To stop, remove
    the handles.
    """
    marks = {
        parameter: labels.span(Word.GRADIENT_READY, parameter=name)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    names = {parameter: name for name, parameter in model.named_parameters()}
    units = {} if unit_of is None else {parameter: unit_of.get(name, "") for parameter, name in names.items()}
    return [
        after_accumulation(parameter, partial(_ready, mark, units.get(parameter), partial(came, names[parameter])))
        for parameter, mark in marks.items()
    ]


def _ready(mark: Span, unit: str | None, came: Callable[[], None], _: torch.Tensor) -> None:
    if unit is not None:
        processor.mark(unit, "backward")
    labels.instant(mark)
    came()


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to `path` on success: a file that exists is complete."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    """Write one JSON document."""
    with whole(path) as temporary:
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
