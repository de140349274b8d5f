"""A recorder for any training loop: one trace per rank, run.json, and labels that suit the model.

    with Recorder("runs/mine", model) as recorder:
        for batch in batches:
            ...
            recorder.step()

It calls no collectives of its own. If DDP has a comm hook, every rank needs a recorder, started before the same step:
see [Note: one hook per reducer].
"""

import os
import shlex
import sys
import warnings
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from overlaplab_engine.errors import EngineError
from overlaplab_engine.recording.borders import UnitBorders
from overlaplab_engine.recording.calibration import probe_ns
from overlaplab_engine.recording.device_events import cause, probe
from overlaplab_engine.recording.facts import FORMAT_VERSION, hardware, named_parameters, named_units, versions
from overlaplab_engine.recording.machine import Reading, between, marked
from overlaplab_engine.recording.subject import Subject
from overlaplab_engine.recording.trace_file import MANIFEST, TRACE, TraceFile, label_gradients, write_json
from overlaplab_engine.strategies.ddp_buckets import Hook, NamedBuckets, unnamed_because

__all__ = ["Recorder"]

MIB = 1 << 20

_open: "WeakSet[Recorder]" = WeakSet()


class Recorder:
    """Records some steps of a training loop into a run directory, which `overlaplab` opens.

    Use it as a context manager around the loop, or call `start()` before and `close()` after the loop. After
    `warmup + steps` calls of `step()` its files are written, and it writes no more labels.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        model: nn.Module | None = None,
        *,
        warmup: int = 2,
        steps: int = 3,
        comm_hook: tuple[Any, Hook] | None = None,
    ) -> None:
        """`out` is the run's directory, the same on all ranks. After `warmup` (1 or more) steps, `steps` are recorded.

        `model` is the module that the loop calls. Labels name DDP's buckets, FSDP2's units, or else the gradients.
        `comm_hook`, as (state, hook), is registered with DDP; a hook registered earlier or later works too.

        Raises EngineError for arguments or models that cannot be recorded.
        """
        if warmup < 1 or steps < 1:
            raise EngineError(f"Recorder takes 1 or more warmup steps and 1 or more steps, not {warmup} and {steps}")
        if model is not None and not isinstance(model, nn.Module):
            raise EngineError(f"Recorder's model must be a torch.nn.Module, not a {type(model).__name__}")
        self._subject = Subject() if model is None else Subject.of(model)
        if comm_hook is not None and self._subject.ddp is None:
            raise EngineError("Recorder's comm_hook is for a model in DistributedDataParallel")
        self._out = Path(out).expanduser().absolute()  # the loop may change its working directory
        self._warmup, self._steps, self._comm_hook = warmup, steps, comm_hook
        self._opened: ExitStack | None = None
        self._started, self._steps_done = False, 0
        self._passes = 0  # forward passes of this step
        self._machine: list[Reading] = []  # at the borders of the recorded steps
        self.done = False
        """Whether all steps are recorded."""

    def __enter__(self) -> Self:
        """See `start`."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """See `close`."""
        self.close()

    def start(self) -> Self:
        """Start recording, before a step. An older run in the directory is deleted."""
        if self._started:
            raise EngineError("this Recorder was started before; make a new one for each recording")
        _require_no_other()
        distributed = dist.is_initialized()
        self._rank, world_size = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
        _clear(self._out, self._rank, world_size)
        device, strategy = _device(self._subject.module), self._subject.strategy
        self._device = device
        self._manifest = {
            "format_version": FORMAT_VERSION,
            "strategy": strategy.name if strategy else None,
            "traits": asdict(strategy.traits) if strategy else None,
            "device": device.type,
            "backend": _backend(device) if distributed else None,
            "world_size": world_size,
            "link": None,
            "versions": versions(),
            "hardware": hardware(device),
            "warmup": self._warmup,
            "steps": self._steps,
            "command": shlex.join(["python", *sys.argv]),
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            **_facts(self._subject),
        }
        gpu = device if device.type == "cuda" else None
        trace = TraceFile(self._out, self._rank, warmup=self._warmup, steps=self._steps, gpu=gpu, shapes=gpu is None)
        with ExitStack() as opening:
            self._buckets = self._label(opening)
            self._trace = opening.enter_context(trace)
            self._opened = opening.pop_all()
        self._started = True
        self._probe_ns = probe_ns() if device.type == "cpu" else None
        _open.add(self)
        return self

    def step(self) -> None:
        """Mark the end of a step: call it after every optimizer step. Does nothing once all steps are recorded."""
        if not self._started:
            raise EngineError("this Recorder was not started: call step() inside its `with` block, or after start()")
        if self._opened is None:
            return
        self._steps_done += 1
        self._passes = 0
        if self._steps_done >= self._warmup:
            self._machine.append(Reading.now())
        try:
            self._trace.step()
        except OSError as error:
            self._end(str(error))
            return
        if self._steps_done == self._warmup + self._steps:
            self.done = True
            self.close()

    def close(self) -> None:
        """Stop; `step` calls this after the last recorded step. An incomplete recording is discarded."""
        too_few = f"the loop made {self._steps_done} steps, but the recording takes {self._warmup} + {self._steps}"
        self._end(None if self.done else too_few)

    def _end(self, fault: str | None) -> None:
        """Stop; `fault` says why there is no run. Files that cannot be written are a fault, but no error."""
        if self._opened is None:
            return
        opened, self._opened = self._opened, None
        _open.discard(self)
        try:
            opened.close()
            if fault is None and self._trace.saw_no_device:
                self._report_missing()
            if fault is None and self._rank == 0:
                buckets = [] if self._buckets is None else self._buckets.buckets
                rows = [{"index": i, "bytes": nbytes, "parameters": names} for i, (nbytes, names) in enumerate(buckets)]
                write_json(self._out / MANIFEST, {**self._manifest, "buckets": rows, **self._measured()})
        except OSError as error:
            fault = fault or str(error)
        if fault is not None:
            self.done = False
            with suppress(OSError):
                (self._out / TRACE.format(rank=self._rank)).unlink(missing_ok=True)
            warnings.warn(f"no run in {self._out}: {fault}", stacklevel=3)

    def _measured(self) -> dict[str, Any]:
        """On a CPU, what rank 0 knows of its machine; what other ranks use looks to it like others' processes."""
        if self._probe_ns is None:
            return {}
        steps = enumerate(pairwise(self._machine), self._warmup)
        rows = [replace(between(0, step, since, until), busy_ns=None) for step, (since, until) in steps]
        return {
            "machine": [asdict(row) for row in marked(rows)],
            "calibration": {"units": [], "collectives": [], "probe_ns": [[self._probe_ns, probe_ns()]]},
        }

    def _report_missing(self) -> None:
        """Report, also in run.json, why the trace contains nothing that ran on the GPU; the loop goes on."""
        why = cause(probe(str(self._device)))
        self._manifest["device_activity_missing"] = why
        warnings.warn(f"{self._out}: the profiler saw nothing run on {self._device}: {why}", stacklevel=4)

    def _count_pass(self, module: nn.Module, inputs: Any) -> None:
        if not torch.compiler.is_compiling():
            self._passes += 1

    def _label(self, opening: ExitStack) -> NamedBuckets | None:
        """Write labels until `opening` closes."""
        module, ddp = self._subject.module, self._subject.ddp
        if module is not None and not isinstance(module, FSDPModule):  # FSDP2 writes its own ranges
            borders = UnitBorders(self._subject.units if ddp is not None else (), lambda: max(self._passes - 1, 0))
            counting = module.register_forward_pre_hook(self._count_pass, prepend=True)
            for handle in (counting, *label_gradients(module, came=borders.gradient_came), *borders.register().handles):
                opening.callback(handle.remove)
        if ddp is None:
            return None
        if self._comm_hook is not None:
            ddp.register_comm_hook(*self._comm_hook)
        why = unnamed_because(ddp)
        if why is not None:
            warnings.warn(f"the buckets stay unnamed: {why}", stacklevel=4)
            return None
        buckets = NamedBuckets(ddp)
        opening.callback(buckets.restore)
        return buckets


def _require_no_other() -> None:
    """torch has one profiler per process: a second one would lose the first one's events, or crash the process."""
    for other in _open:
        raise EngineError(f"another Recorder is open, on {other._out}; close it first")
    if torch._C._autograd._profiler_enabled():
        raise EngineError("a profiler is running, and torch allows only one; stop it before starting a Recorder")


def _device(module: nn.Module | None) -> torch.device:
    """The device on which a model computes; without a model, a GPU if there is one."""
    parameter = None if module is None else next(module.parameters(), None)
    offloaded = isinstance(parameter, DTensor) and parameter.device_mesh.device_type == "cuda"  # shards on the CPU
    if parameter is not None and not offloaded:
        return parameter.device
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _backend(device: torch.device) -> str | None:
    """The backend for a device's tensors: in `cpu:gloo,cuda:nccl`, one of the two."""
    backends = dict(pair.split(":") for pair in dist.get_backend_config().split(","))
    return backends.get(device.type)


def _facts(subject: Subject) -> dict[str, Any]:
    """The part of run.json about the model; empty without one."""
    if subject.module is None:
        return {}
    return {
        "model": {"parameters": sum(p.numel() for p in subject.module.parameters())},
        "bucket_cap_mb": None if subject.ddp is None else round(subject.ddp.bucket_bytes_cap / MIB, 3),
        "parameters": named_parameters(subject.module.named_parameters(), subject.units),
        "units": named_units(subject.units),
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
