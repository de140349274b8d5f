"""How long the training's thread waits in collectives that Python waits for, whatever library started them.

[Note: replaced methods]
During a burst and the step before it `torch.distributed.Work.wait`, that of every subclass, and futures' `wait` are
replaced; works themselves are not, as torch takes a proxy for no work at all and then does not wait. The process
groups' methods are replaced, too: a work does not know its group, nor, over gloo, what it is. What is waited for in a
burst may have been launched in the step before. Afterwards all is as it was. Not seen are functional collectives,
DTensor's, and waits in C++, of which DDP's has timers (`ddp_timers.py`).
"""

import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, Literal

import torch
import torch.distributed as dist

from overlaplab_engine.network.communicator import ThreadCall
from overlaplab_engine.watching.clock import EventClock, WatchHostClock
from overlaplab_engine.watching.log import CellKind

MAX_ALL_REDUCES = 256
"""All-reduces of a step whose durations are written; of the others only the sum of waits."""
PROMPT_WAIT_NS = 200_000
"""A wait that begins so soon after the launch ends with the collective, even where it was over by then."""

_METHODS = {
    CellKind.EXPOSED_GRADIENTS: "allreduce allreduce_coalesced reduce reduce_scatter _reduce_scatter_base "
    "reduce_scatter_single reduce_scatter_single_coalesced reduce_scatter_tensor_coalesced",
    CellKind.EXPOSED_GATHERS: "allgather _allgather_base allgather_coalesced allgather_into_tensor_coalesced "
    "all_gather_single all_gather_single_coalesced",
    CellKind.EXPOSED_OTHER: "broadcast barrier gather scatter send recv recv_anysource alltoall alltoall_base "
    "all_to_all_single",
}
METHODS = {name: kind for kind, names in _METHODS.items() for name in names.split()}
"""The methods of process groups, and what waiting for them counts as; no torch has all of them."""


@dataclass(frozen=True, slots=True)
class _Launch:
    """A collective that the training's thread has launched."""

    work: "weakref.ref[Any]"
    kind: CellKind
    group: Any
    number: int | None
    """Its number among the all-reduces of its group in this step; None of others."""
    at_ns: int
    stream_start: Any
    """The mark before it, where it runs in a GPU's current stream, as synchronous ones do since torch 2.8."""


@dataclass(slots=True)
class _Wait:
    """The outermost wait under way."""

    start: Any
    """The clock's mark."""
    kind: CellKind | None
    launch: _Launch | None
    """An all-reduce that does not end before the wait for it begins."""


def _guard(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, but its error goes to the object's `_failed`, and None is returned."""

    @wraps(method)
    def call(self: Any, *args: Any) -> Any:
        try:
            return method(self, *args)
        except Exception as error:
            self._failed(error)
            return None

    return call


class Waits:
    """The waits of the thread that makes it, while methods are replaced."""

    def __init__(
        self,
        clock: WatchHostClock | EventClock,
        receiver: Callable[[CellKind], Callable[[int], None]],
        failed: Callable[[Exception], None],
    ) -> None:
        """`receiver(kind)` returns the function that gets the duration of a wait of this step in ns.

        `failed` gets what goes wrong in here, of which the training learns nothing.
        """
        self._clock, self._receiver, self._failed = clock, receiver, failed
        self._thread = threading.get_ident()
        self._restore: list[Callable[[], None]] = []
        self._launches: dict[int, _Launch] = {}
        self._numbers: Counter[Any] = Counter()
        self._launching = False
        self.measuring = False
        """Whether waits are measured, and not only launches noted."""
        self._waiting: _Wait | None = None
        self.future_kind = CellKind.EXPOSED_OTHER
        """What waiting for a future counts as: within a comm hook of DDP's, gradients."""
        self.all_reduces: list[tuple[Any, int, int]] = []
        """Those that the thread has waited for in this step: group, number there, and duration in ns."""

    @property
    def active(self) -> bool:
        """Whether the methods are replaced."""
        return bool(self._restore)

    def replace(self) -> None:
        """Replace the methods; see [Note: replaced methods]. Where a name is missing, AttributeError."""
        for cls in _with_subclasses(dist.Work):
            self._put(cls, "wait", partial(self._time_wait, None))
        by_hand = partial(self._time_wait, CellKind.EXPOSED_GRADIENTS)  # messages of gradients
        self._put(ThreadCall, "wait", by_hand)
        for cls in _with_subclasses(torch._C.Future):
            self._put(cls, "wait", partial(self._time_wait, "future"))
        for cls in _with_subclasses(dist.ProcessGroup):
            for name in METHODS:
                self._put(cls, name, partial(self._note_launch, name))

    def restore(self) -> None:
        """Undo `replace`."""
        while self._restore:
            self._restore.pop()()
        self._launches.clear()
        self.next_step(measuring=False)

    def next_step(self, *, measuring: bool) -> None:
        """Forget the step that has ended, but for works that are still to be waited for."""
        self.measuring = measuring
        alive = {place: launch for place, launch in self._launches.items() if launch.work() is not None}
        self._launches = {place: replace(launch, number=None) for place, launch in alive.items()}
        self._numbers.clear()
        self.all_reduces = []

    def _put(self, cls: type, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace a method that the class has itself; restoring leaves alone what somebody else put there later."""
        original = vars(cls).get(name)
        if original is None:
            if name == "wait" and cls is dist.Work:
                raise AttributeError("torch.distributed.Work.wait")
            return
        replacement: Any = wraps(original)(wrap(original))
        # From a frame of the method's name pybind calls no override: so a user's subclass may call what it inherits.
        replacement.__code__ = replacement.__code__.replace(co_name=name)
        setattr(cls, name, replacement)

        def restore() -> None:
            if vars(cls).get(name) is replacement:
                setattr(cls, name, original)

        self._restore.append(restore)

    def _counts(self) -> bool:
        return self.active and threading.get_ident() == self._thread

    def _time_wait(self, default: CellKind | Literal["future"] | None, original: Any) -> Callable[..., Any]:
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            outermost = self._counts() and self._begin(work, default)
            try:
                return original(work, *args, **kwargs)
            finally:
                if outermost:
                    self._end()

        return wait

    @_guard
    def _begin(self, work: Any, default: CellKind | Literal["future"] | None) -> bool:
        """Begin a wait; returns whether it is measured and outermost. An inner one may know what is waited for."""
        launch = self._take_launch(work)
        kind = launch.kind if launch else self.future_kind if default == "future" else default
        timed = launch if launch and self._tells_when_it_ends(launch, work) else None
        if not self.measuring:
            return False
        if self._waiting is not None:
            if launch is not None:
                self._waiting.kind, self._waiting.launch = kind, timed
            return False
        stream_start = None if launch is None else launch.stream_start
        self._waiting = _Wait(self._clock.mark() if stream_start is None else stream_start, kind, timed)
        return True

    def _tells_when_it_ends(self, launch: _Launch, work: Any) -> bool:
        """Whether it is an all-reduce that ends with the wait that begins now; on a GPU the host waits for no end."""
        if launch.number is None or not isinstance(self._clock, WatchHostClock):
            return False
        return time.perf_counter_ns() - launch.at_ns < PROMPT_WAIT_NS or not work.is_completed()

    @_guard
    def _end(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        end = self._clock.mark()
        self._clock.span(waiting.start, end, self._receiver(waiting.kind or CellKind.EXPOSED_OTHER))
        launch = waiting.launch
        if launch is not None and launch.number is not None and len(self.all_reduces) < MAX_ALL_REDUCES:
            self.all_reduces.append((launch.group, launch.number, time.perf_counter_ns() - launch.at_ns))

    def _note_launch(self, name: str, original: Any) -> Callable[..., Any]:
        def launch(group: Any, *args: Any, **kwargs: Any) -> Any:
            if self._launching or not self._counts():
                return original(group, *args, **kwargs)
            self._launching = True
            try:
                at_ns, stream_start = time.perf_counter_ns(), self._stream_start(args, kwargs)
                work = original(group, *args, **kwargs)
            finally:
                self._launching = False
            try:
                self._note(name, group, work, at_ns, stream_start)
            except Exception as error:
                self._failed(error)
            return work

        return launch

    @_guard
    def _stream_start(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A mark before a collective with these arguments, if it runs in a GPU's current stream."""
        options = (*args, *kwargs.values())
        in_stream = isinstance(self._clock, EventClock) and any(
            getattr(option, "asyncOp", True) is False for option in options
        )
        return self._clock.mark() if in_stream else None

    def _note(self, name: str, group: Any, work: Any, at_ns: int, stream_start: Any) -> None:
        number = None
        if name == "allreduce":
            number = self._numbers[group]
            self._numbers[group] += 1
        if work is not None:
            launch = _Launch(weakref.ref(work), METHODS[name], group, number, at_ns, stream_start)
            self._launches[id(work)] = launch

    def _take_launch(self, work: Any) -> _Launch | None:
        launch = self._launches.pop(id(work), None)
        return launch if launch is not None and launch.work() is work else None


def _with_subclasses(cls: Any) -> Iterator[Any]:
    yield cls
    for subclass in cls.__subclasses__():
        yield from _with_subclasses(subclass)
