"""Work on several files: on small ones in this process, on large ones in parallel by an executor's workers."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Container, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol, TypeVar

from overlaplab.errors import OverlaplabError
from overlaplab.load.cache import Cache
from overlaplab.load.file.portions import Decoders, end_with_parent
from overlaplab.load.file.trace_file import NotATraceError, TraceFile, read_trace
from overlaplab.load.packed import pack, unpack
from overlaplab.load.places import Located, stream

Advance = Callable[[float, int], None]
"""`advance(done, files)`, at the start and after each file; within a large one that this process reads, fractions."""

Result = TypeVar("Result")
Packed = TypeVar("Packed")
Output = TypeVar("Output", covariant=True)


class FileJob(Protocol[Output]):
    """What is done with a file; `progress(part)` is called while a large one is read, which `decoders` may decode."""

    def __call__(
        self, file: Located, progress: Callable[[float], None] | None = None, decoders: Decoders | None = None
    ) -> Output: ...


WORTH_BYTES = 300_000_000
"""From this size of text on, the start of worker processes pays off."""
MOST_DECODERS = 6
"""Processes for one file: this one inflates and joins no faster than these decode."""
_DECODING = threading.Lock()
"""Held while processes decode a file: of several threads that read files, each would start as many."""
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
    """The content of each file, in order; the `NotATraceError` of one at an `optional` path that is no trace.

    Without an executor, large files that are not in the cache are read by worker processes.
    """
    progress(0, len(files))
    read: dict[int, TraceFile | NotATraceError] = {}
    for place, file in enumerate(files):
        if cache and (cached := cache.get(file)) is not None:
            read[place] = cached
            progress(len(read), len(files))

    def unpack_and_cache(file: Located, packed: bytes) -> TraceFile:
        if cache:
            cache.put(file, packed)
        return unpack(packed)

    return _fill_results(
        read,
        files,
        _read_packed,
        unpack_and_cache,
        lambda file, part, decoders: _read_here(file, cache, part, decoders),
        executor=executor,
        optional=optional,
        progress=progress,
    )


def work_on_each(
    files: Sequence[Located],
    work: FileJob[Result],
    *,
    executor: Executor | None,
    optional: Container[str],
    progress: Advance,
) -> list[Result | NotATraceError]:
    """Return what the job makes of each file, in order, as `read_all` does, but pickled between processes."""
    progress(0, len(files))
    return _fill_results(
        {}, files, work, lambda _, result: result, work, executor=executor, optional=optional, progress=progress
    )


def _fill_results(
    results: dict[int, Result | NotATraceError],
    files: Sequence[Located],
    worker_job: Callable[[Located], Packed],
    receive: Callable[[Located, Packed], Result],
    read_locally: Callable[[Located, Callable[[float], None], Decoders | None], Result],
    *,
    executor: Executor | None,
    optional: Container[str],
    progress: Advance,
) -> list[Result | NotATraceError]:
    """Each file's result, in order; those that are not there yet are what `receive` makes of what a worker sends.

    Without workers, or once they break, they are those of `read_locally(file, progress(part), decoders)`.
    """
    waiting = [place for place in range(len(files)) if place not in results]
    missing, own_workers = [files[place] for place in waiting], executor is None

    def add(place: int, result: Result | NotATraceError) -> None:
        results[place] = result
        progress(len(results), len(files))

    with _workers(missing) if executor is None else nullcontext(executor) as workers:
        if workers is not None:
            sendings = _run_by_workers(workers, missing, worker_job, optional, own_workers=own_workers)
            # Broken workers were probably killed for lack of memory: one file at a time needs less. If the sendings
            # were not closed, an error of `progress` would keep workers alive with its traceback.
            with contextlib.suppress(BrokenExecutor), contextlib.closing(sendings):
                for number, sent in sendings:
                    with _blame_file(missing[number], own_workers=own_workers):
                        result = sent if isinstance(sent, NotATraceError) else receive(missing[number], sent)
                    add(waiting[number], result)
    with _decoders(missing) if executor is None else nullcontext() as decoders:
        for place in [place for place in waiting if place not in results]:
            work = partial(read_locally, files[place], lambda part: progress(len(results) + part, len(files)), decoders)
            add(place, _result_or_error(work, files[place], optional))
    return [results[place] for place in range(len(files))]


def _result_or_error(work: Callable[[], Result], file: Located, optional: Container[str]) -> Result | NotATraceError:
    """What the work returns; the error of an optional file that is no trace."""
    try:
        return work()
    except NotATraceError as error:
        if file.path not in optional:
            raise
        return error


@contextmanager
def _blame_file(file: Located, *, own_workers: bool) -> Iterator[None]:
    """Errors of an executor that is not our own may be of any type: they are this file's."""
    try:
        yield
    except OverlaplabError:
        raise
    except Exception as error:
        if own_workers:
            raise
        what = f"the executor did not read it ({type(error).__name__}: {error})"
        raise OverlaplabError(what, path=file.path) from error


def _run_by_workers(
    workers: Executor,
    files: Sequence[Located],
    work: Callable[[Located], Packed],
    optional: Container[str],
    *,
    own_workers: bool,
) -> Generator[tuple[int, Packed | NotATraceError], None, None]:
    futures: dict[Future[Packed], int] = {}
    for place, file in enumerate(files):
        with _blame_file(file, own_workers=own_workers):
            futures[workers.submit(work, file)] = place
    try:
        for done in as_completed(list(futures)):
            place = futures.pop(done)
            with _blame_file(files[place], own_workers=own_workers):
                result = _result_or_error(done.result, files[place], optional)
            yield place, result
    finally:
        for future in () if own_workers else futures:  # our own end at once; loky's thread fails at cancelled jobs
            future.cancel()


def read_here(
    file: Located,
    cache: Cache | None,
    progress: Callable[[float], None] | None = None,
    decoders: Decoders | None = None,
) -> TraceFile:
    """The file's content by this process, from the cache if it is there; `progress(part)` while a large one is read."""
    cached = cache.get(file) if cache else None
    return _read_here(file, cache, progress, decoders) if cached is None else cached


def _read_here(
    file: Located, cache: Cache | None, progress: Callable[[float], None] | None, decoders: Decoders | None
) -> TraceFile:
    content = _read(file, progress, decoders)
    if cache and cache.keeps(file):
        cache.put(file, pack(content))
    return content


def _read(
    located: Located, progress: Callable[[float], None] | None = None, decoders: Decoders | None = None
) -> TraceFile:
    report_bytes = (lambda read: progress(min(read / located.size, 1.0))) if progress and located.size else None
    with stream(located.path) as file:
        return read_trace(located.path, file, progress=report_bytes, decoders=decoders)


def _read_packed(file: Located) -> bytes:
    """A worker's job. The packed form is a tenth of the table's size, and goes into the cache unchanged."""
    return pack(_read(file))


def _workers(missing: Sequence[Located]) -> AbstractContextManager[Executor | None]:
    """Worker processes for files, at most one per file and processor; None if they do not pay off."""
    return _pool(min(len(missing), _processors()), missing) if len(missing) > 1 else nullcontext(None)


@contextmanager
def _decoders(missing: Sequence[Located]) -> Iterator[Decoders | None]:
    """Processes that decode the one file; None if they do not pay off, decode another, or this is itself a worker."""
    is_worker = multiprocessing.parent_process() is not None  # of a pool, of which each process would start its own
    if len(missing) != 1 or is_worker or not _DECODING.acquire(blocking=False):
        yield None
        return
    try:
        count = min(_processors(), MOST_DECODERS)
        with _pool(count, missing) as executor:
            yield None if executor is None else Decoders(executor, count)
    finally:
        _DECODING.release()


@contextmanager
def _pool(count: int, missing: Sequence[Located]) -> Iterator[Executor | None]:
    """So many worker processes, which an error or an interrupt ends at once; None if they do not pay off."""
    executor = _start_workers(count, missing)
    if executor is None:
        yield None
        return
    try:
        yield executor
    except BaseException:
        executor.shutdown(kill_workers=True)
        raise
    executor.shutdown()


def _start_workers(count: int, missing: Sequence[Located]) -> Any:
    """Loky's executor; None where it does not pay off for these files, or cannot be."""
    if count < 2 or sum(map(_text_bytes, missing)) < WORTH_BYTES or not all(file.shared for file in missing):
        return None
    if multiprocessing.current_process().daemon:  # daemons may not have children
        return None
    from loky import ProcessPoolExecutor

    # Not the standard library's: it imports the caller's script anew in each worker, which runs the whole of a script
    # that has no `if __name__ == "__main__"`; and forking is unsafe beside threads, which Streamlit and pyarrow start.
    with contextlib.suppress(OSError):
        return ProcessPoolExecutor(count, initializer=end_with_parent, initargs=(os.getpid(),))
    return None


def _text_bytes(file: Located) -> int:
    return file.size * (_SHRUNK if file.name.endswith(".gz") else 1)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
