"""One recording: steps to warm up, then steps that leave a trace per rank and, by rank 0, run.json."""

import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from overlaplab_engine.errors import EngineError
from overlaplab_engine.labels import dtype_name
from overlaplab_engine.network.process_group import BACKEND
from overlaplab_engine.recording import facts
from overlaplab_engine.recording.borders import UnitBorders
from overlaplab_engine.recording.calibration import probe_ns
from overlaplab_engine.recording.device_events import cause, probe
from overlaplab_engine.recording.machine import Reading, machine_step, mark_busy
from overlaplab_engine.recording.subject import Root, Subject
from overlaplab_engine.recording.trace_file import MANIFEST, TRACE, TraceFile, label_gradients, write_json
from overlaplab_engine.strategies.gradients.ddp_buckets import BucketLabels, CommHook, unnamed_because
from overlaplab_engine.strategies.gradients.hooks import Hook, before_backward

MIB = 1 << 20
TRIES = 4
"""A recording ends after this multiple of the steps that were asked for, if pauses split too many of them."""


@dataclass(slots=True)
class _Segment:
    """The part of a step between two pauses."""

    place: int
    """The place of its range in the trace."""
    since: Reading
    until: Reading | None = None
    work: int = 0
    """The model's passes and gradients in it."""

    @property
    def took_ns(self) -> int:
        return 0 if self.until is None else self.until.at_ns - self.since.at_ns


def _close_on_error(method: Callable[["Recording"], None]) -> Callable[["Recording"], None]:
    """The method ends the recording where it would raise an error, except for warnings that are errors."""

    @wraps(method)
    def call(recording: "Recording") -> None:
        try:
            method(recording)
        except Warning:
            raise
        except Exception as error:
            recording.close(fault=error_line(error))

    return call


class Recording:
    """Records `steps` steps after `warmup`, from its creation on."""

    def __init__(
        self,
        out: Path,
        subject: Subject,
        *,
        first: int,
        warmup: int,
        steps: int,
        ranks: Sequence[int] | None,
        most_bytes: int | None,
    ) -> None:
        """`first` is the loop's number of the step that begins; `ranks` are those that leave a trace, None for all.

        A trace whose text has more than `most_bytes` is shortened to the first steps; None: none is.

        An older run in `out` is deleted. OSError where files cannot be written.
        """
        self._out, self._subject, self._first, self._warmup, self._steps = out, subject, first, warmup, steps
        distributed = dist.is_initialized()
        self._rank, self._world_size = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
        _clear(out, self._rank, self._world_size)
        self._device = device = _device(subject)
        self._manifest = self._begin_manifest(warmup, ranks)
        self.done = False
        """Whether all steps are recorded."""
        self._ended_steps = 0
        self._passes: Counter[nn.Module] = Counter()  # forward passes of this step
        self._sent = False  # whether a backward pass of this step has sent gradients
        self._recorded_steps: list[tuple[int, _Segment]] = []  # the number and the range of each recorded step
        self._unsent_steps: list[int] = []  # those in which gradients came and were not sent
        self._segments: list[_Segment] = []  # of this step, once it is recorded
        self._paused = False
        self._why_short: str | None = None  # why steps that were recorded are not written
        self._labels: list[BucketLabels] = []  # of each model in DDP
        self._bucket_numbers: dict[tuple[int, int], int] = {}  # shared by `_labels`
        self._fault: str | None = None  # why a label could not be written
        self._reported = False  # whether that was said
        gpu = device if device.type == "cuda" else None
        self._trace: TraceFile | None = None
        if ranks is None or self._rank in ranks:
            self._trace = TraceFile(
                out,
                self._rank,
                warmup=warmup,
                first=first + warmup,
                gpu=gpu,
                shapes=gpu is None,
                all_threads=gpu is None and _behind_a_link(),
                most_bytes=most_bytes,
            )
        with ExitStack() as opening:
            self._write_labels(opening)
            if self._trace is not None:
                opening.enter_context(self._trace)
            self._exit_stack: ExitStack | None = opening.pop_all()
        self._probe_ns = probe_ns() if device.type == "cpu" else None

    def _begin_manifest(self, warmup: int, ranks: Sequence[int] | None) -> dict[str, Any]:
        subject, device = self._subject, self._device
        strategy = subject.strategy
        return {
            "format_version": facts.FORMAT_VERSION,
            "strategy": strategy.name if strategy else None,
            "traits": asdict(strategy.traits) if strategy else None,
            "device": device.type,
            "backend": _backend(device) if dist.is_initialized() else None,
            "world_size": self._world_size,
            "link": None,
            "versions": facts.versions(),
            "hardware": facts.hardware(device),
            "warmup": warmup,
            "trace_ranks": None if ranks is None else sorted(ranks),
            "command": shlex.join(["python", *sys.argv]),
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    @property
    def is_over(self) -> bool:
        return self._exit_stack is None

    @_close_on_error
    def step(self) -> None:
        """A step ends, and the next begins."""
        if self._ended_steps >= self._warmup:
            self._keep_step()
        else:
            for labels in self._labels:
                labels.restart()  # DDP cuts its buckets anew in the warm-up
        self._ended_steps += 1
        self._passes, self._sent, self._segments = Counter(), False, []
        self._report_fault()
        self.done = len(self._recorded_steps) == self._steps
        if self.done or self._ended_steps == self._warmup + TRIES * self._steps:
            self.close()
            return
        if self._trace is not None and self._ended_steps <= self._warmup:
            self._trace.step()
            if self._paused:  # the range began within a pause, and is no step's
                self._trace.numbers = [None for _ in self._trace.numbers]
        elif not self._paused:
            self._cut(self._first + self._ended_steps)
        if self._ended_steps >= self._warmup and not self._paused:
            self._begin_segment()

    @_close_on_error
    def pause(self) -> None:
        """What follows is no part of a step, and leaves no operators in the trace."""
        self._paused = True
        if self._ended_steps >= self._warmup:
            self._end_segment()
            self._cut(None)
        torch._C._autograd._enable_record_function(False)

    @_close_on_error
    def resume(self) -> None:
        """After a pause the step goes on, or begins."""
        if not self._paused:
            return
        torch._C._autograd._enable_record_function(True)
        self._paused = False
        if self._ended_steps >= self._warmup:
            self._cut(self._first + self._ended_steps)
            self._begin_segment()

    def close(self, warn_if_empty: bool = True, fault: str | None = None) -> None:
        """Stop, and write what was recorded; a step that has not ended is left out.

        Without `warn_if_empty` there is no warning where no step was recorded. With a `fault` nothing is written.
        """
        if self._exit_stack is None:
            return
        exit_stack, self._exit_stack = self._exit_stack, None
        self.resume()
        self._leave_out(self._segments)
        if fault is None and not self._recorded_steps:
            fault = f"{self._too_few_steps()}, so that no step was recorded"
        try:
            exit_stack.close()
            self._drop_left_out()
            if self._rank == 0 and self._recorded_steps and fault is None:
                self._write_manifest()
        except Warning:
            raise
        except Exception as error:
            fault = fault or error_line(error)
        if fault is not None:
            self.done = False
            with suppress(OSError):
                (self._out / TRACE.format(rank=self._rank)).unlink(missing_ok=True)
            if not warn_if_empty:
                with suppress(OSError):  # of other ranks there may be more
                    self._out.rmdir()
            else:
                warnings.warn(f"no run in {self._out}: {fault}", stacklevel=5)
        elif len(self._recorded_steps) < self._steps:
            why = self._why_short or self._too_few_steps()
            warnings.warn(f"{self._out} has {len(self._recorded_steps)} of {self._steps} steps: {why}", stacklevel=5)
        if self._unsent_steps and self._rank == 0:
            self._report_unsent()
        if self._rank == 0 and fault is None:
            with suppress(OSError, ValueError):  # a folder that is gone, a stderr that is closed
                self._report_run()

    def _report_run(self) -> None:
        """Say what was recorded, and what shows it; other ranks may still write theirs."""
        here = Path.cwd()
        run = self._out.relative_to(here) if self._out.is_relative_to(here) else self._out
        steps = f"{len(self._recorded_steps)} step{'s' * (len(self._recorded_steps) > 1)}"
        command = f"overlaplab summary {shlex.quote(str(run))}"
        print(f"overlaplab: {steps} recorded in {run}: {command}", file=sys.stderr, flush=True)

    def _keep_step(self) -> None:
        """The step that ends is recorded, unless a pause has split its work."""
        self._end_segment()
        segments, number = self._segments, self._first + self._ended_steps
        worked = [segment for segment in segments if segment.work]
        longest = max(worked or segments, key=lambda segment: segment.took_ns, default=None)
        if longest is None or len(worked) > 1:
            self._leave_out(segments)
            return
        self._leave_out([segment for segment in segments if segment is not longest])
        self._recorded_steps.append((number, longest))
        if worked and not self._sent and self._world_size > 1:
            self._unsent_steps.append(number)

    def _leave_out(self, segments: Sequence[_Segment]) -> None:
        if self._trace is not None:
            for segment in segments:
                self._trace.numbers[segment.place] = None

    def _drop_left_out(self) -> None:
        """Forget the steps that made the trace too large."""
        if self._trace is None:
            return
        written = [
            (number, segment)
            for number, segment in self._recorded_steps
            if self._trace.numbers[segment.place] is not None
        ]
        if len(written) < len(self._recorded_steps):
            self._why_short = (
                f"{len(self._recorded_steps)} steps are more than max_mb; record fewer, or fewer ranks (steps=, ranks=)"
            )
        self._recorded_steps = written

    def _cut(self, number: int | None) -> None:
        if self._trace is not None:
            self._trace.cut(number)

    def _begin_segment(self) -> None:
        place = 0 if self._trace is None else len(self._trace.numbers) - 1
        self._segments.append(_Segment(place, Reading.take()))

    def _end_segment(self) -> None:
        if self._segments and self._segments[-1].until is None:
            self._segments[-1].until = Reading.take()

    def _too_few_steps(self) -> str:
        return f"the loop made {self._ended_steps} steps, but the recording takes {self._warmup} + {self._steps}"

    def _write_manifest(self) -> None:
        if self._trace is not None and self._trace.saw_no_device:
            self._report_missing()
        buckets = {number: bucket for labels in self._labels for number, bucket in labels.buckets.items()}
        rows = [{"index": i, "bytes": nbytes, "parameters": names} for i, (nbytes, names) in sorted(buckets.items())]
        write_json(
            self._out / MANIFEST,
            {
                **self._manifest,
                **self._model_facts(),
                "steps": len(self._recorded_steps),
                "buckets": rows,
                **self._machine_facts(),
            },
        )

    def _machine_facts(self) -> dict[str, Any]:
        """On a CPU, what rank 0 measured of its machine, but no `busy_ns`: it cannot tell ranks from other programs."""
        if self._probe_ns is None:
            return {}
        rows = [
            replace(machine_step(0, number, segment.since, segment.until), busy_ns=None)
            for number, segment in self._recorded_steps
            if segment.until is not None
        ]
        return {
            "machine": [asdict(row) for row in mark_busy(rows)],
            "calibration": {"units": [], "collectives": [], "probe_ns": [[self._probe_ns, probe_ns()]]},
        }

    def _report_missing(self) -> None:
        """Report, also in run.json, why the trace contains nothing that ran on the GPU; the loop goes on."""
        why = cause(probe(str(self._device)))
        self._manifest["device_activity_missing"] = why
        warnings.warn(f"{self._out}: the profiler saw nothing run on {self._device}: {why}", stacklevel=7)

    def _report_unsent(self) -> None:
        unsent = f"in {len(self._unsent_steps)} of {len(self._recorded_steps)} recorded steps no gradients were sent"
        warnings.warn(
            f"{self._out}: {unsent}; call step() once per optimizer step, not per microbatch (with Accelerate: if "
            "accelerator.sync_gradients)",
            stacklevel=5,
        )

    def _model_facts(self) -> dict[str, Any]:
        """The part of run.json about the model; empty without one, and where it cannot be told."""
        try:
            return _model_facts(self._subject)
        except Exception as error:
            warnings.warn(f"{self._out} has nothing about the model: {error_line(error)}", stacklevel=7)
            return {}

    def _report_fault(self) -> None:
        """Name the first label that could not be written: not where that happens, within a pass."""
        if self._fault is not None and not self._reported:
            self._reported = True
            warnings.warn(f"labels are missing in {self._out}: {self._fault}", stacklevel=5)

    def _note_failure(self, error: Exception) -> None:
        self._fault = self._fault or error_line(error)

    def _hook(self, call: Callable[..., None]) -> Hook:
        return Hook(call, self._note_failure)

    def _count_work(self, root: Root) -> None:
        if self._paused:
            return
        if self._segments:
            self._segments[-1].work += 1
        self._sent = self._sent or root.sends()

    def _count_pass(self, root: Root, module: nn.Module, inputs: Any) -> None:
        if not torch.compiler.is_compiling() and torch.is_grad_enabled():
            self._passes[module] += not self._paused
            self._count_work(root)

    def _count_backward(self, root: Root, module: nn.Module, inputs: Any, output: Any) -> None:
        if not torch.compiler.is_compiling():
            before_backward(output, self._hook(partial(self._count_work, root)))

    def _write_labels(self, opening: ExitStack) -> None:
        """Write labels until `opening` closes. Where some cannot be written the others are."""
        for root in self._subject.roots:
            writes_ranges = isinstance(root.module, FSDPModule)
            for label in (
                self._count_passes,
                self._prefix_ranges if writes_ranges else self._label_gradients,
                self._label_buckets,
            ):
                self._hook(label)(root, opening)

    def _count_passes(self, root: Root, opening: ExitStack) -> None:
        module = root.module
        if isinstance(module, torch.jit.ScriptModule):  # which takes no hooks
            return
        count = self._hook(partial(self._count_pass, root))
        opening.callback(module.register_forward_pre_hook(count, prepend=True).remove)
        if isinstance(module, FSDPModule):
            count = self._hook(partial(self._count_backward, root))
            opening.callback(module.register_forward_hook(count).remove)

    def _prefix_ranges(self, root: Root, opening: ExitStack) -> None:
        if root.prefix:
            name_ranges = opening.enter_context(root.naming_ranges())
            opening.callback(root.module.register_forward_pre_hook(self._hook(lambda *_: name_ranges())).remove)

    def _label_gradients(self, root: Root, opening: ExitStack) -> None:
        units = root.units if root.ddp is not None else ()
        # A microbatch has the number of its forward pass in the step, from 0.
        borders = UnitBorders(units, lambda: max(self._passes[root.module] - 1, 0), hook=self._hook)

        def note_gradient(parameter: str) -> None:
            borders.gradient_came(parameter)
            self._count_work(root)

        shaped = {name: parameter for name, parameter in root.parameters.items() if not is_lazy(parameter)}
        for handle in (*label_gradients(shaped, call=note_gradient, hook=self._hook), *borders.register().handles):
            opening.callback(handle.remove)
        if shapeless := len(root.parameters) - len(shaped):
            raise EngineError(f"{shapeless} parameters have no shape before the model's first batch")

    def _label_buckets(self, root: Root, opening: ExitStack) -> None:
        if root.ddp is None:
            return
        if (why := unnamed_because(root.ddp)) is not None:
            warnings.warn(f"the buckets stay unnamed: {why}", stacklevel=8)
            return
        labels = BucketLabels(root.parameters, self._bucket_numbers)
        self._labels.append(labels)
        opening.callback(CommHook.install(root.ddp).label(labels, self._note_failure))


def error_line(error: Exception) -> str:
    """What an error says, for a warning."""
    text = " ".join(str(error).split())[:200]
    return text if isinstance(error, EngineError | OSError) else f"{type(error).__name__}: {text}"


def _device(subject: Subject) -> torch.device:
    """The device on which a model computes; without a model, a GPU if there is one."""
    parameter = next((p for p in subject.parameters.values() if p.device.type != "meta"), None)
    offloaded = isinstance(parameter, DTensor) and parameter.device_mesh.device_type == "cuda"  # shards on the CPU
    if parameter is not None and not offloaded:
        return parameter.device
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _backend(device: torch.device) -> str | None:
    """The backend for a device's tensors: in `cpu:gloo,cuda:nccl`, one of the two."""
    backends = dict(pair.split(":") for pair in dist.get_backend_config().split(","))
    return backends.get(device.type)


def _model_facts(subject: Subject) -> dict[str, Any]:
    """The part of run.json about the model; empty without one, and of FSDP1's, which has flat shards in its place."""
    modules = (module for root in subject.roots for module in root.module.modules())
    if not subject.roots or any(isinstance(module, FullyShardedDataParallel) for module in modules):
        return {}
    caps = {round(ddp.bucket_bytes_cap / MIB, 3) for ddp in subject.ddps}
    precisions = {root.precision for root in subject.roots}
    param_dtype, reduce_dtype = precisions.pop() if len(precisions) == 1 else (None, None)
    return {
        "model": {"parameters": sum(facts.whole_shape(p).numel() for p in subject.parameters.values())},
        "bucket_cap_mb": caps.pop() if len(caps) == 1 else None,
        "parameters": facts.named_parameters(subject.parameters.items(), subject.units),
        "units": facts.named_units(subject.units, param_dtype),
        "param_dtype": param_dtype and dtype_name(param_dtype),
        "reduce_dtype": reduce_dtype and dtype_name(reduce_dtype),
    }


def _clear(out: Path, rank: int, world_size: int) -> None:
    """Delete this rank's older trace; rank 0 also deletes the files that no rank of this run will replace.

    So no rank deletes what another rank has just written, and the ranks need not wait for each other.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / TRACE.format(rank=rank)).unlink(missing_ok=True)
    if rank == 0:
        (out / MANIFEST).unlink(missing_ok=True)
        beyond = world_size
        while (path := out / TRACE.format(rank=beyond)).exists():
            path.unlink()
            beyond += 1


def _behind_a_link() -> bool:
    """Whether collectives run on the thread of an emulated link, which is none of the loop's."""
    return dist.is_initialized() and str(dist.get_backend()) == BACKEND
