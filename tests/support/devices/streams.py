"""Streams that only take notes, and collectives that do nothing: for passes on the `meta` device.

There nothing is computed and a read by the host raises, so that a pass shows what it asks of a GPU's streams, in order.
`Device` also has torch's sanitizer (torch/cuda/_sanitizer.py) judge it by happens-before: no two streams may touch a
storage unordered, and none may be freed before the computation's stream has waited for what touches it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.c10d_logger as c10d_logger
from overlaplab_engine import labels
from overlaplab_engine.labels import Word
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.streams import CommStreams
from ranks.label_texts import parse
from torch.cuda import _sanitizer
from torch.cuda._sanitizer import ArgumentHandler, EventHandler
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META = torch.device("meta")
WORLD_SIZE = 2
NAMING = {Word.GATHER_LAUNCH, Word.SCATTER_LAUNCH, Word.BUCKET_LAUNCH, Word.PARAM_GATHER_LAUNCH}
"""Labels around a launch, which tell what is launched."""
NOTED = {Word.FIRST_USE: "use", Word.FREE: "free", Word.BUCKET_READY: "ready", Word.BUCKET_DONE: "done"}


class HostReadError(Exception):
    """The host waited for the device."""


class RaceError(Exception):
    """Two streams touch a storage unordered, or it is freed while a collective touches it."""


class Event:
    def __init__(self, device: "Device", what: str) -> None:
        self.device, self.what = device, what

    def synchronize(self) -> None:
        self.device.handler._handle_event_synchronization(id(self))
        self.device.log.append(f"host waits for {self.what}")

    def query(self) -> bool:
        return False


class Stream:
    def __init__(self, device: "Device", name: str) -> None:
        self.device, self.name, self.last = device, name, name

    def record_event(self) -> Event:
        event = Event(self.device, self.last)
        self.device.handler._handle_event_record(id(event), id(self))
        self.device.events.append(event)  # else another gets its id
        return event

    def wait_event(self, event: Event) -> None:
        self.device.check_alive()
        self.device.handler._handle_event_wait(id(event), id(self))
        self.device.log.append(f"{self.name} waits for {event.what}")

    def wait_stream(self, stream: "Stream") -> None:
        self.wait_event(stream.record_event())


@dataclass(frozen=True)
class Collective:
    """One that was launched."""

    what: str
    group: str
    """The one that it went through."""
    label: tuple[str, int]
    """The group and the number that its label tells."""
    beside: list[str]
    """Earlier ones that nothing orders before it: neither an event, nor NCCL, which runs a group's in turn."""


class Device:
    """What `CommStreams` asks of torch.cuda, with the log of it all."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.collectives: list[Collective] = []
        self.begun = 0
        self.label = ("", -1)
        self._launches: list[tuple[str, str, Stream, int]] = []  # what, group, stream, number of the kernel
        self.handler = EventHandler()
        self.events: list[Event] = []
        self._names = iter(["gathers", "reductions", "down", "up"])
        self._compute = self._current = Stream(self, "compute")
        self._known: dict[int, StorageWeakRef] = {}  # which keep addresses from being given to others
        self._flying: list[tuple[StorageWeakRef, str]] = []
        self.launching: list[str] = []

    def Stream(self, priority: int) -> Stream:  # noqa: N802
        assert priority < 0
        return Stream(self, next(self._names))

    def current_stream(self) -> Stream:
        return self._current

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self._current = self._current, stream
        yield
        self._current = before

    def collective(self, group: str, kind: str, written: list[torch.Tensor], read: list[torch.Tensor]) -> None:
        stream = self._current
        stream.last = " ".join([kind, *self.launching[-1:]])
        self.log.append(f"{stream.name}: {stream.last}")
        self.touch({self.key(t) for t in read}, {self.key(t) for t in written}, stream.last)
        beside = [
            what
            for what, through, on, number in self._launches
            if through != group and not self.handler.syncs.is_ordered_after(id(stream), number, id(on))
        ]
        self.collectives.append(Collective(stream.last, group, self.label, beside))
        self._launches.append((stream.last, group, stream, self.handler.seq_num))
        self._flying += [(self._known[self.key(t)], stream.last) for t in (*written, *read)]

    def key(self, tensor: torch.Tensor) -> int:
        reference = StorageWeakRef(tensor.untyped_storage())
        return self._known.setdefault(reference.cdata, reference).cdata

    def touch(self, read: set[int], written: set[int], what: str) -> None:
        """The current stream does."""
        self.check_alive()
        errors = self.handler._handle_kernel_launch(
            id(self._current), read - written, written, set(), what, {k: [] for k in read | written}
        )
        if errors:
            raise RaceError(f"{self._current.name}: {what}, against {errors[0].previous_access.operator}")

    def keep(self, storages: set[int], what: str) -> None:
        """What a stream beside the computation's touches must not be freed before that one has waited."""
        if self._current is not self._compute:
            self._flying += [(self._known[key], what) for key in storages]

    def check_alive(self) -> None:
        """No storage has gone that a collective may still touch, as far as the computation's stream knows."""
        self._flying = [(r, what) for r, what in self._flying if not self._over(r.cdata)]
        for reference, what in self._flying:
            storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is None or storage.nbytes() == 0:
                raise RaceError(f"freed under {what}")

    def done(self) -> None:
        """The computation's stream has waited for every collective."""
        self.check_alive()
        if self._flying:
            raise RaceError(f"{self._flying[0][1]} is not waited for")

    def _over(self, key: int) -> bool:
        """Whether the computation's stream has waited for all that was done to it."""
        info = self.handler.tensors_accessed.accesses[key]
        accesses = [*info.reads, *([info.write] if info.write else [])]
        return all(self.handler.syncs.is_ordered_after(id(self._compute), a.seq_num, a.stream) for a in accesses)


class _Arguments(ArgumentHandler):
    """torch's reading of an operator's schema, with storages for pointers."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device

    def _handle_argument(self, value: Any, is_write: bool, metadata_only: bool, **_: Any) -> None:
        if isinstance(value, torch.Tensor) and (is_write or not metadata_only):
            (self.dataptrs_written if is_write else self.dataptrs_read).add(self._device.key(value))


class Kernels(TorchDispatchMode):
    """Every operator is a kernel on the current stream."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        factory = "new_" in func._schema.name or func._schema.name.endswith("_like")
        arguments = _Arguments(self._device)
        arguments.parse_inputs(func._schema, args, kwargs, is_factory=factory)
        result = func(*args, **kwargs)
        arguments.parse_outputs(func._schema, result, is_factory=factory)
        there = {t.device.type for t in tree_leaves((args, kwargs, result)) if isinstance(t, torch.Tensor) and t.dim()}
        if there == {"cpu", "meta"}:
            raise HostReadError(f"{func} takes memory of the host")
        self._device.touch(arguments.dataptrs_read, arguments.dataptrs_written, str(func))
        self._device.keep(arguments.dataptrs_read | arguments.dataptrs_written, str(func))
        return result


class Literals(TorchFunctionMode):
    """`torch.tensor([…], device=…)` copies from the host, and waits."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.tensor, torch.as_tensor) and torch.device((kwargs or {}).get("device") or "cpu") == META:
            raise HostReadError("torch.tensor takes memory of the host")
        return func(*args, **(kwargs or {}))


class _Span:
    """A label, noted or giving its name to what is launched in it."""

    device: Device

    def __init__(self, text: str) -> None:
        self._word, values = parse(text)
        self._name = str(values.get("unit", values.get("bucket", "")))
        self._label = (str(values.get("group")), int(str(values.get("seq", -1))))

    def __enter__(self) -> None:
        if self._word is Word.COLLECTIVE:
            self.device.label = self._label
        if self._word in NAMING:
            self.device.launching.append(self._name)
        if self._word in NOTED:
            self.device.log.append(f"{NOTED[self._word]} {self._name}")

    def __exit__(self, *_: object) -> None:
        if self._word in NAMING:
            self.device.launching.pop()


class _Asynchronous:
    def get_future(self) -> str:
        return "a future"


class _Group(dist.ProcessGroup):
    """Collectives that only leave a note."""

    def __init__(self, device: Device, name: str) -> None:
        super().__init__(0, WORLD_SIZE)
        self._device = device
        self._name = name

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> "_Asynchronous | None":
        self._device.collective(self._name, "all_reduce", tensors, [])
        return _Asynchronous() if opts.asyncOp else None

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> None:
        assert not opts.asyncOp
        self._device.collective(self._name, "broadcast", tensors, [])

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> None:
        assert not opts.asyncOp
        self._device.collective(self._name, "all_gather", [output], [input])

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> None:
        assert not opts.asyncOp
        self._device.collective(self._name, "reduce_scatter", [output], [input])

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single

    def getGroupName(self) -> str:  # noqa: N802
        return self._name


class _Alike(Communicator):
    """All ranks say the same."""

    def gather_objects(self, value: Any) -> list[Any]:
        return [value] * self.world_size

    def broadcast_object(self, value: Any) -> Any:
        return value

    def broadcast_ints(self, values: list[int]) -> list[int]:
        return values

    def exchange_through_store(self, key: str, value: str, timeout_s: float) -> list[str] | None:
        return [value] * self.world_size


class _NoTraceback:
    """In place of the module: the sanitizer's, one for every kernel, take ten times as long as all the rest."""

    @staticmethod
    def walk_stack(_: Any) -> None: ...

    class StackSummary:
        @staticmethod
        def extract(*_: Any, **__: Any) -> list[str]:
            return []


@contextmanager
def on_streams(monkeypatch: pytest.MonkeyPatch, communicators: int = 1) -> Iterator[tuple[Communicator, Device]]:
    """A communicator as on CUDA, of two ranks over NCCL, and the device that takes notes; models on META come first.

    With 2 `communicators` gathers go through the group "1", and all else through "0".
    """
    device = Device()
    monkeypatch.setattr(_sanitizer, "traceback", _NoTraceback)
    monkeypatch.setattr(labels, "Span", type("Span", (_Span,), {"device": device}))
    monkeypatch.setattr(dist, "get_backend", lambda _: "nccl")
    monkeypatch.setattr(c10d_logger, "_get_msg_dict", lambda *_, **__: {})  # before 2.13, of registered groups alone
    with Kernels(device), Literals():
        gathers = _Group(device, "1") if communicators == 2 else None
        yield _Alike(_Group(device, "0"), META, CommStreams(device), gathers), device
