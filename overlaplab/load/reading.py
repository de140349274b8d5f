"""Work on several files: on small ones in this process, on large ones in parallel by an executor's workers."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Protocol, TypeVar

from overlaplab.errors import OverlaplabError
from overlaplab.load.cache import Cache
from overlaplab.load.file import NotATraceError, TraceFile, read_trace
from overlaplab.load.packed import pack, unpack
from overlaplab.load.places import Located, stream

Advance = Callable[[float, int], None]
"""`advance(done, files)`, at the start and after each file; within a large one that this process reads, fractions."""

Found = TypeVar("Found")
Sent = TypeVar("Sent")
Given = TypeVar("Given", covariant=True)


class Work(Protocol[Given]):
    """What is done with a file; `progress(part)` is called while a large one is read."""

    def __call__(self, file: Located, progress: Callable[[float], None] | None = None) -> Given:
        """What came of it."""


WORTH_BYTES = 300_000_000
"""From this size of text on, the start of worker processes pays off."""
_SHRUNK = 12
"""The least factor by which gzip shrinks a trace."""


def read_all(
    files: Sequence[Located],
    *,
    cache: Cache | None,
    executor: Executor | None,
    optional: Container[str],
    progress: Advance,
) -> list[TraceFile | NotATraceError]:
    """The content of each file, in order; of those at the `optional` paths that they are no traces, if they are none.

    Without an executor, large files that are not in the cache are read by worker processes.
    """
    progress(0, len(files))
    read: dict[int, TraceFile | NotATraceError] = {}
    for place, file in enumerate(files):
        if cache and (known := cache.get(file)) is not None:
            read[place] = known
            progress(len(read), len(files))
    missing = [place for place in range(len(files)) if place not in read]

    def received(place: int, packed: bytes) -> TraceFile:
        if cache:
            cache.put(files[missing[place]], packed)
        return unpack(packed)

    found = _each(
        [files[place] for place in missing],
        work=_packed,
        received=received,
        here=lambda file: _read_here(file, cache, lambda part: progress(len(read) + part, len(files))),
        executor=executor,
        optional=optional,
    )
    for place, content in found:
        read[missing[place]] = content
        progress(len(read), len(files))
    return [read[place] for place in range(len(files))]


def work_on_each(
    files: Sequence[Located],
    work: Work[Found],
    *,
    executor: Executor | None,
    optional: Container[str],
    progress: Advance,
) -> list[Found | NotATraceError]:
    """What the work finds of each file, in order, as `read_all`: but its results come back as they are (pickled)."""
    progress(0, len(files))
    found: dict[int, Found | NotATraceError] = {}
    for place, one in _each(
        files,
        work=work,
        received=lambda _, one: one,
        here=lambda file: work(file, lambda part: progress(len(found) + part, len(files))),
        executor=executor,
        optional=optional,
    ):
        found[place] = one
        progress(len(found), len(files))
    return [found[place] for place in range(len(files))]


def _each(
    files: Sequence[Located],
    *,
    work: Callable[[Located], Sent],
    received: Callable[[int, Sent], Found],
    here: Callable[[Located], Found],
    executor: Executor | None,
    optional: Container[str],
) -> Iterator[tuple[int, Found | NotATraceError]]:
    """By index what `received(index, work(file))` gives, the work being a worker's, or `here(file)` without workers."""
    left, own = list(range(len(files))), executor is None
    with _workers(files) if executor is None else nullcontext(executor) as workers:
        if workers is not None:
            try:
                for place, sent in _by_workers(workers, files, work, optional, own=own):
                    with _blaming(files[place], own=own):
                        one = sent if isinstance(sent, NotATraceError) else received(place, sent)
                    left.remove(place)
                    yield place, one
            except BrokenExecutor:
                pass  # the workers were probably killed for lack of memory: one file at a time needs less
    for place in left:
        yield place, _or_none(partial(here, files[place]), files[place], optional)


def _or_none(work: Callable[[], Found], file: Located, optional: Container[str]) -> Found | NotATraceError:
    """What the work finds, or that an optional file is no trace."""
    try:
        return work()
    except NotATraceError as error:
        if file.path not in optional:
            raise
        return error


@contextmanager
def _blaming(file: Located, *, own: bool) -> Iterator[None]:
    """Errors of an executor that is not our own may be of any type: they are this file's."""
    try:
        yield
    except OverlaplabError:
        raise
    except Exception as error:
        if own:
            raise
        raise OverlaplabError(
            f"the executor did not read it ({type(error).__name__}: {error})", path=file.path
        ) from error


def _by_workers(
    workers: Executor,
    files: Sequence[Located],
    work: Callable[[Located], Sent],
    optional: Container[str],
    *,
    own: bool,
) -> Iterator[tuple[int, Sent | NotATraceError]]:
    asked: dict[Future[Sent], int] = {}
    for place, file in enumerate(files):
        with _blaming(file, own=own):
            asked[workers.submit(work, file)] = place
    try:
        for done in as_completed(list(asked)):
            place = asked.pop(done)
            with _blaming(files[place], own=own):
                found = _or_none(done.result, files[place], optional)
            yield place, found
    finally:
        for future in asked:
            future.cancel()


def read_here(file: Located, cache: Cache | None, progress: Callable[[float], None] | None = None) -> TraceFile:
    """The file's content by this process, from the cache if it is there; `progress(part)` while a large one is read."""
    known = cache.get(file) if cache else None
    return _read_here(file, cache, progress) if known is None else known


def _read_here(file: Located, cache: Cache | None, progress: Callable[[float], None] | None = None) -> TraceFile:
    content = _read(file, progress)
    if cache and cache.keeps(file):
        cache.put(file, pack(content))
    return content


def _read(located: Located, progress: Callable[[float], None] | None = None) -> TraceFile:
    told = (lambda read: progress(min(read / located.size, 1.0))) if progress and located.size else None
    with stream(located.path) as file:
        return read_trace(located.path, file, progress=told)


def _packed(file: Located) -> bytes:
    """The work of a worker. The packed form is a tenth of the table's size, and goes into the cache unchanged."""
    return pack(_read(file))


def _workers(missing: Sequence[Located]) -> AbstractContextManager[Executor | None]:
    """Worker processes, at most one per file and processor; None if they do not pay off."""
    count = min(len(missing), _processors())
    if count < 2 or sum(map(_text_bytes, missing)) < WORTH_BYTES or not all(file.shared for file in missing):
        return nullcontext(None)
    if multiprocessing.current_process().daemon:  # daemons may not have children
        return nullcontext(None)
    from loky import ProcessPoolExecutor

    # Not the standard library's: it imports the caller's script anew in each worker, which runs the whole of a script
    # that has no `if __name__ == "__main__"`; and forking is unsafe beside threads, which Streamlit and pyarrow start.
    with contextlib.suppress(OSError):
        return ProcessPoolExecutor(count)  # type: ignore[no-any-return]
    return nullcontext(None)


def _text_bytes(file: Located) -> int:
    return file.size * (_SHRUNK if file.name.endswith(".gz") else 1)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
