"""One file's text, decoded in portions by other processes while this one inflates it and joins what they return.

A worker does with its portion what this process would do, from the same state and with the same chunks. Only where it
ends is assumed beforehand; a portion that ends elsewhere, or whose events depend on earlier ones (`B`, `E`), is decoded
here, and so is all that follows. The tables are the same, therefore, whoever decodes. This module imports no pandas,
which takes longer than all else that a worker waits for.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from typing import TypeVar

from msgspec import Struct

from overlaplab.load.file.gathered import Gathered
from overlaplab.load.file.slices import Portion, Slices

Result = TypeVar("Result")

PORTION_CHUNKS = 4
_PORTIONS_PER_WORKER = 2
"""One is decoded while the next one is on its way."""

_WATCH_S = 1.0


class Decoders(Struct, frozen=True):
    """The processes that decode portions of a file."""

    executor: Executor
    count: int

    def submit(self, job: Callable[..., Result], *arguments: object) -> Future[Result]:
        """The job's future; if the executor takes none, as its workers were killed, that is the future's error."""
        try:
            return self.executor.submit(job, *arguments)
        except Exception as error:
            for process in list((getattr(self.executor, "_processes", None) or {}).values()):
                process.terminate()  # one that has started, though others could not, would never be told to end
                process.join()
            refused: Future[Result] = Future()
            refused.set_exception(error)
            return refused


def gather(slices: Slices, gathered: Gathered, decoders: Decoders | None) -> Iterator[None]:
    """Add all slices, and yield after each step."""
    if decoders is not None:
        ready = decoders.submit(_is_ready)
        for events, us in slices:  # while the workers start
            gathered.append(events, us)
            yield
            if gathered.ns is not None and ready.done():
                break
        else:
            return
        yield from _gather_portions(slices, gathered, decoders)
    for events, us in slices:
        gathered.append(events, us)
        yield


def _gather_portions(slices: Slices, gathered: Gathered, decoders: Decoders) -> Iterator[None]:
    """Add the next slices by workers, as far as they get."""
    underway: deque[tuple[Portion, Future[tuple[Gathered, Counter[str]] | None]]] = deque()
    try:
        while True:
            most = _PORTIONS_PER_WORKER * decoders.count
            while len(underway) < most and (portion := slices.take_portion(PORTION_CHUNKS)):
                underway.append((portion, decoders.submit(decode_portion, portion, gathered.ns)))
            if not underway:
                return
            decoded = None
            with suppress(Exception):  # a killed worker, one without memory; or an error that is raised here again
                decoded = underway[0][1].result()
            if decoded is None:
                slices.put_back([portion for portion, _ in underway])
                return
            underway.popleft()
            gathered.extend(decoded[0])
            slices.repairs.update(decoded[1])
            yield
    finally:
        for _, future in underway:
            future.cancel()


def decode_portion(portion: Portion, ns: bool | None) -> tuple[Gathered, Counter[str]] | None:
    """A worker's job: the portion's content, and what was repaired; None if it depends on what lies outside of it."""
    gathered, slices = Gathered(ns), Slices(_until_the_end(portion.chunks), portion.before)
    with without_garbage_collection(), suppress(_PortionEnd):
        for events, us in slices:
            gathered.append(events, us)
    as_assumed = not slices.whole and slices.passed_bytes == portion.whole_bytes
    if not as_assumed or gathered.spans.unmatched_begins or gathered.spans.unmatched_ends:
        return None
    return gathered, slices.repairs


class _PortionEnd(Exception):  # noqa: N818 (it is not an error)
    """More of the file is needed than the portion."""


def _until_the_end(chunks: Sequence[bytes]) -> Iterator[bytes]:
    yield from chunks
    raise _PortionEnd


def _is_ready() -> None:
    """A worker's first job, which is done once it has started and imported this module."""


def end_with_parent(parent: int) -> None:
    """Make this process end soon after its parent, which may be killed without a chance to end its workers.

    An interrupt is the parent's to act on: one that comes while a worker holds the lock of the queue of results would
    leave it locked, and the parent waiting for good.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Without the garbage collector, which would search millions of short-lived objects for cycles they cannot form."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
